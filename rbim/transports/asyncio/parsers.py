"""Choose the parser of HTTP responses: llhttp if httptools is installed (extra ``fast``), otherwise h11.

Both call the methods of a reader, for interim (1xx) responses too. llhttp takes a tenth of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["INVALID", "Parser", "Reader", "Stop", "new_parser"]


class Stop(Exception):
    """Raised by a reader to stop its parser, and by h11's parser for bytes that it refuses."""


class Reader(Protocol):
    """The object whose methods a parser calls."""

    def on_message_begin(self) -> None:
        """Handle the first byte of a response."""
        ...

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle one header line, or one line of the trailers."""
        ...

    def on_headers_complete(self) -> None:
        """Handle the end of a head."""
        ...

    def on_body(self, part: bytes) -> None:
        """Handle a part of the body."""
        ...

    def on_message_complete(self) -> None:
        """Handle the end of a response."""
        ...


class Parser(Protocol):
    """A parser of the responses on one connection. ``feed_data`` raises one of INVALID for bytes that it refuses."""

    def feed_data(self, data: bytes | memoryview) -> None:
        """Parse these bytes."""
        ...

    def get_status_code(self) -> int:
        """Return the status of the current response."""
        ...

    def get_http_version(self) -> str:
        """Return the version of the current response, such as ``1.1``."""
        ...

    def should_keep_alive(self) -> bool:
        """Return whether the connection stays open after the current response."""
        ...


def _chosen() -> tuple[Callable[[Reader], Parser], tuple[type[Exception], ...]]:
    try:
        import httptools
    except ImportError:
        from rbim.transports.asyncio.h11_parser import H11Parser

        return H11Parser, (Stop,)

    def llhttp(reader: Reader) -> Parser:
        parser: Any = httptools.HttpResponseParser(reader)
        # without it, a Content-Length in the trailers is an error; the reader refuses one in the head of a chunked response
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        checked: Parser = parser
        return checked

    return llhttp, (Stop, httptools.HttpParserError, httptools.HttpParserUpgrade)


new_parser, INVALID = _chosen()
"""Return a parser that calls the methods of this reader; and the exceptions with which it refuses bytes or was stopped."""
