"""The platform in a box: an emulator of the written interface description, never of the service.

One state, reached as a transport (no sockets), as an ASGI app, or directly. What the description leaves open is a field of
the same :class:`~rbim.dialect.Dialect` that the client has.
"""

from rbim.emulator.clock import EmulatedClock
from rbim.emulator.emulator import Emulator
from rbim.emulator.state import Group, State, Task

__all__ = ["EmulatedClock", "Emulator", "Group", "State", "Task"]
