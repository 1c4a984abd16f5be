"""An emulator of the written interface description, never of the service.

One state, used as a transport (no sockets), as an ASGI application, or by direct calls. Where the description leaves
something open, the emulator does as the :class:`~rbim.Dialect` of the client and its own :class:`Rules` say.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.emulator.clock import EmulatedClock as EmulatedClock
    from rbim.emulator.emulator import Emulator as Emulator
    from rbim.emulator.platform.rules import DependsOnDialect as DependsOnDialect, Refusal as Refusal
    from rbim.emulator.platform.state import Group as Group, State as State, Task as Task
    from rbim.emulator.rules import AbsentMembers as AbsentMembers, NearestMember as NearestMember, Rules as Rules
else:
    __getattr__, __dir__ = lazy_names(__name__)
