"""The emulator over HTTP (extra ``server``), and the commands that control it."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.emulator.server.control import Control as Control
    from rbim.emulator.server.server import Server as Server, serve as serve
else:
    __getattr__, __dir__ = lazy_names(__name__)
