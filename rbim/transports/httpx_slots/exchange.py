"""The progress of one request and its response on a connection: what was written and read, and where the response ends."""

from __future__ import annotations

__all__ = ["Exchange"]

BLANK = b"\r\n\r\n"
LINE = b"\r\n"
STATUS = 9  # where the status begins in ``HTTP/1.1 200``


class Exchange:
    """The progress of one exchange: the bytes to write, the bytes read, and whether the request left."""

    __slots__ = ("_method", "_unwritten", "complete", "read_bytes", "sent")

    def __init__(self) -> None:
        self._unwritten: list[bytes] = []
        self.begin("")

    def begin(self, method: str) -> None:
        """Begin an exchange; its request starts with this method."""
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
            self.sent = True
            self.read_bytes.clear()
        return message

    def ends_with(self, body: bytes, *, chunked: bool) -> bool:
        """Return whether the bytes that were read end with the response that has this body.

        Bytes behind it stay in httpcore's parser, which would read them as the response to the next request.
        """
        data = self.read_bytes[0] if len(self.read_bytes) == 1 else b"".join(self.read_bytes)
        start = 0
        while (blank := data.find(BLANK, start)) >= 0 and data[start + STATUS : start + STATUS + 1] == b"1":
            start = blank + len(BLANK)  # an interim response
        if blank < 0:
            return False
        begin = blank + len(BLANK)
        return len(data) == (_end_of_chunks(data, begin) if chunked else begin + len(body))


def _end_of_chunks(data: bytes, place: int) -> int:
    """Return where a body in chunks ends, with its trailers; -1 if its lines do not end as they should."""
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
