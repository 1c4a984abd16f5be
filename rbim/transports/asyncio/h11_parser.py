"""The parser of :mod:`rbim.transports.asyncio` where httptools is not installed: h11, which httpx brings.

h11 is more lenient than llhttp: it accepts folded headers, lines without a carriage return, and a length that is stated
twice. It does not reuse connections of HTTP/1.0.
"""

from __future__ import annotations

from typing import Any

from rbim._support.text import install_command

try:
    import h11
except ImportError as missing:
    raise ImportError(f"AsyncioTransport needs httptools or h11: {install_command('fast')}") from missing

__all__ = ["H11Parser"]

MAX_EVENT = 256 * 1024  # bytes; the reader's own limit of a head is lower
REQUEST = h11.Request(method="GET", target="/", headers=[("Host", "h")]), h11.EndOfMessage()
"""A request that is never sent: h11 expects one before each response."""


class H11Parser:
    """A parser like that of httptools, made of h11. It follows both sides of a connection: see ``REQUEST``."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_EVENT)
        self._head: Any = None

    def feed_data(self, data: bytes | memoryview) -> None:  # noqa: C901, PLR0912  # a branch for each kind of event
        """Parse these bytes. Raises the exception with which the reader stops the parser, also if they are invalid."""
        connection, reader = self._connection, self._reader
        if connection.our_state is h11.IDLE:
            for part in REQUEST:
                connection.send(part)
        connection.receive_data(bytes(data))
        try:
            while (event := connection.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    reader.on_body(bytes(event.data))
                elif isinstance(event, (h11.Response, h11.InformationalResponse)):
                    self._head = event
                    reader.on_message_begin()
                    for name, value in event.headers:
                        reader.on_header(name, value)
                    reader.on_headers_complete()
                    if isinstance(event, h11.InformationalResponse):
                        reader.on_message_complete()
                elif isinstance(event, h11.EndOfMessage):
                    reader.on_message_complete()
                    if connection.trailing_data[0]:
                        reader.on_message_begin()
                    if connection.our_state is h11.DONE:
                        connection.start_next_cycle()
                    break
                else:  # paused, or the connection was closed
                    reader.refuse("the response is not valid HTTP/1.1")
        except h11.RemoteProtocolError as error:
            fault = str(error).partition(":")[0]  # behind the colon it may quote the response
        else:
            return
        reader.refuse(f"the response is not valid HTTP/1.1: {fault}")

    def get_status_code(self) -> int:
        """Return the status of the current response."""
        return int(self._head.status_code)

    def get_http_version(self) -> str:
        """Return the version of the current response."""
        return str(self._head.http_version, "ascii")

    def should_keep_alive(self) -> bool:
        """Return whether the connection stays open: h11 leaves DONE at once where it must be closed."""
        return self._connection.our_state is h11.DONE and self.get_http_version() == "1.1"
