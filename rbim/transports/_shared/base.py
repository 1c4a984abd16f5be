"""The base of all transports: the first of its users opens it, and the last one closes it; a warm-up."""

# States of a transport, and what moves it between them:
#
#   closed -> opening -> open       ``__aenter__`` of the first user; back to closed if opening fails or is cancelled
#   open -> open                    ``__aenter__`` and ``__aexit__`` of the other users
#   open -> closing -> closed       ``__aexit__`` of the last user; closed also if closing fails or is cancelled
#
# Always true: ``_users`` is above 0 in open only. ``_loop`` is the event loop, and None in closed.
# A user who enters while it is opening or closing waits, and then begins anew.

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING

from rbim._support.event_loops import current_loop
from rbim._support.lazy_names import late_anyio
from rbim.errors import NotSent
from rbim.transports._shared.redaction import sanitized

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

    from anyio import Event

__all__ = ["BaseTransport"]

CLAIM = threading.Lock()
"""Held while an event loop becomes that of a transport: two threads may enter one at the same moment."""


IMPORTED_LATE = ("concurrent.futures.thread", "encodings.idna")
"""Modules that the standard library imports when it looks a host up."""


class BaseTransport(ABC):
    """A transport that may be entered by many clients of one event loop.

    It is opened once, by the first client that enters it, and closed when the last client has left it; then it can be
    entered again. Entering raises RuntimeError in another event loop than that of the clients that have not left it.
    """

    _users = 0
    _loop: object = None
    _changing = False
    _changed: Event | None = None

    async def __aenter__(self) -> Self:
        while self._join():
            changed = self._changed = self._changed or late_anyio().Event()
            await changed.wait()
        if self._users:
            self._users += 1
            return self
        self._changing = True
        try:
            await self._open()
            self._users = 1
        finally:
            self._end_of_change()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if not self._users:
            return
        self._users -= 1
        if self._users:
            return
        self._changing = True
        try:
            await self._close()
        finally:
            self._end_of_change()

    async def warm_up(self, *origins: str) -> None:
        """Import and prepare what a first request needs, so that it does not hold up the event loop; connect to nothing.

        ``origins``, such as ``https://host:8883``, are prepared, with TLS only if one of them needs it; without any, TLS is
        prepared. Raises RuntimeError if the transport is not open, and NotSent for an option or origin that cannot be used.
        """
        if not self._users:
            raise RuntimeError("the transport is not open: use it inside 'async with'")
        for module in IMPORTED_LATE:
            import_module(module)
        try:
            self._prepare(origins, secure=not origins or any(origin.startswith("https:") for origin in origins))
        except (OSError, ValueError) as error:
            raise NotSent(f"cannot connect: {error}") from sanitized(error)

    @abstractmethod
    async def _open(self) -> None:
        """Open the transport. It stays closed if this raises."""

    @abstractmethod
    async def _close(self) -> None:
        """Close the transport. It is closed even if this raises."""

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:  # noqa: B027  # AutoTransport has nothing to prepare
        """Prepare routes to these origins, and TLS if ``secure``. Raises OSError or ValueError if that is not possible."""

    def _join(self) -> bool:
        """Make the caller's event loop that of the transport; return whether it is opening or closing.

        Raises RuntimeError if the transport has another event loop.
        """
        loop = current_loop()
        with CLAIM:
            if self._loop is None:
                self._loop = loop
        if self._loop is not loop:
            raise RuntimeError("the transport is open in another event loop: use one transport per event loop")
        return self._changing

    def _end_of_change(self) -> None:
        self._changing = False
        if not self._users:
            self._loop = None
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()
