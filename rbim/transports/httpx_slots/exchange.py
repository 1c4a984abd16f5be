"""The progress of one request and its response on a connection: what was written and read, and where the response ends."""

from __future__ import annotations

from rbim.transports._shared.framing import end_of_response

__all__ = ["Exchange", "Stale"]


class Stale(Exception):
    """The kept connection was closed, or has unread data, and nothing was written to it. Raised through httpcore."""


class Exchange:
    """The progress of one exchange: the bytes to write, the bytes read, and whether the request left."""

    __slots__ = ("_method", "_named", "_unwritten", "complete", "failed", "kept", "read_bytes", "sent")

    def __init__(self) -> None:
        self._unwritten: list[bytes] = []
        self._named: str = ""
        self._method = b" "
        self.failed: Exception | None = None
        """The error that prevented the connection: a proxy's pool of httpcore does not chain it."""
        self.begin("")

    def begin(self, method: str, *, kept: bool = False) -> None:
        """Begin an exchange; its request starts with this method, and goes over a ``kept`` connection or a new one."""
        self.kept = kept
        """Whether the connection was used before, and nothing was written to it in this exchange."""
        if method != self._named:
            self._named = method
            self._method = method.encode("ascii", "replace") + b" "
        self._unwritten.clear()
        self.read_bytes: list[bytes] = []
        self.sent = False
        """Whether bytes of the request may have left, in contrast to those of a proxy's handshake."""
        self.complete = False
        """Whether the response was read to its end, and nothing came behind it."""

    def add(self, data: bytes) -> None:
        """Keep bytes to write: httpcore writes head and body separately, but they leave together."""
        self._unwritten.append(data)

    def message(self) -> bytes:
        """Return the bytes to write now. If they are the request, reading starts anew: what came before was a proxy's."""
        message = self._unwritten[0] if len(self._unwritten) == 1 else b"".join(self._unwritten)
        self._unwritten.clear()
        if message.startswith(self._method):
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
