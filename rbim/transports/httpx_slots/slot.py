"""A slot: one connection that httpcore drives, and its turn with one request after the other.

httpcore writes a request and reads its response through the methods of a network stream. Those of a slot write head and body
at once, keep the deadline, and know which bytes are pending, also over TLS.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio

from rbim.transports._shared.link import DeadlinePassed

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

__all__ = ["Slot", "StaleConnection", "end_of_response"]

BLANK = b"\r\n\r\n"
LINE = b"\r\n"
OF_A_PROXY = (b"CONNECT ", b"\x05", b"\x01")  # how handshakes begin: HTTP, SOCKS5, and its login
STATUS = 9  # where the status begins in ``HTTP/1.1 200``


class StaleConnection(Exception):
    """The kept connection was closed, or has unread data, and nothing was written to it. Raised through httpcore."""


class Slot:
    """What a slot on asyncio and one on trio have in common: how far the turn of a request came."""

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        self.http: Any = None
        """The connection of httpcore, or a pool for this one connection."""
        self.failed: Exception | None = None
        """The error that prevented the connection: a proxy's pool of httpcore does not chain it."""
        self._unwritten: list[bytes] = []
        self._deadline = 0.0

    def begin_turn(self, deadline: float, *, kept: bool = False) -> None:
        """Begin with a request; it ends by ``deadline`` (monotonic clock)."""
        self.busy = True
        self.kept = kept
        """Whether the connection was used before, and nothing was written to it in this turn."""
        self._unwritten.clear()
        self._deadline = deadline
        self.read_bytes: list[bytes] = []
        self.sent = False
        """Whether bytes of the request may have left, in contrast to those of a proxy's handshake."""
        self.complete = False
        """Whether the response was read to its end, and nothing came behind it."""

    async def write(self, buffer: bytes, timeout: object = None) -> None:  # noqa: ARG002, ASYNC109  # httpcore's signature
        """Keep the bytes: httpcore writes head and body separately, and they leave together, before the next read."""
        self._unwritten.append(buffer)

    def message(self) -> bytes:
        """Return the bytes to write now. If they are the request, reading starts anew: what came before was a proxy's."""
        message = self._unwritten[0] if len(self._unwritten) == 1 else b"".join(self._unwritten)
        self._unwritten.clear()
        if message and not message.startswith(OF_A_PROXY):
            self.kept = False
            self.sent = True
            self.read_bytes.clear()
        return message

    def ends_with(self, body: bytes, *, chunked: bool) -> bool:
        """Return whether the bytes that were read end with the response that has this body.

        Bytes behind it stay in httpcore's parser, which would read them as the response to the next request.
        """
        data = self.read_bytes[0] if len(self.read_bytes) == 1 else b"".join(self.read_bytes)
        return end_of_response(data, len(body), chunked=chunked) == len(data)

    @contextmanager
    def opening(self, *errors: type[Exception]) -> Generator[None]:
        """Connect, or start TLS, in the block. Raises DeadlinePassed, or httpcore's ConnectError for one of ``errors``."""
        try:
            with anyio.move_on_after(self._deadline - time.monotonic()) as scope:
                yield
        except errors as error:
            if time.monotonic() < self._deadline:
                self.failed = error
                raise self.core.ConnectError(str(error)) from error
            raise DeadlinePassed from error
        if scope.cancelled_caught:
            raise DeadlinePassed


def end_of_response(data: bytes, length: int, *, chunked: bool) -> int:
    """Return where the first final response in these bytes ends, whose body has this length; -1 if it is unclear."""
    start = 0
    while (blank := data.find(BLANK, start)) >= 0 and data[start + STATUS : start + STATUS + 1] == b"1":
        start = blank + len(BLANK)  # an interim response
    if blank < 0:
        return -1
    place = blank + len(BLANK)
    if not chunked:
        return place + length
    while (line := data.find(LINE, place)) >= 0:
        size = int(data[place:line].partition(b";")[0], 16)  # the parser has read the same
        place = line + len(LINE)
        if not size:
            if data.startswith(LINE, place):
                return place + len(LINE)
            blank = data.find(BLANK, place)
            return blank + len(BLANK) if blank >= 0 else -1
        place += size + len(LINE)
    return -1
