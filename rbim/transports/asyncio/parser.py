"""The protocols of a parser of HTTP responses and of the reader whose methods it calls, for interim (1xx) responses too."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Parser", "Reader", "Stop"]


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
