"""Read HTTP responses from the bytes of a connection: a parser's events, with the checks that parsers lack.

llhttp has no limit for the size of a head, httptools cannot tell it that the connection was closed, and both continue with
the bytes behind a response. So this module counts bytes, decides where a body ends, and detects bytes behind a response.
The parser is llhttp if httptools is installed (extra ``fast``), otherwise h11; llhttp takes a tenth of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from rbim.http import answered
from rbim.transports._shared.heads import HeaderNames, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.http import Response

__all__ = ["HEAD_LIMIT", "AnswerReader", "KnownHeads"]

HEAD_LIMIT = 64 * 1024
"""The most bytes without a body byte in between: the heads of interim responses and of the response, or its trailers."""

MAX_HEADS = 64  # cached heads
RESTING = 64 * MAX_HEADS  # responses
MAX_CACHED = 4096  # bytes; the head of a longer response is not cached
BLANK = b"\r\n\r\n"
BODILESS = frozenset({204, 304})
SWITCHING = 101
FIRST_STATUS = 100
FIRST_FINAL = 200


class _Stop(Exception):
    """Raised by a reader to stop its parser."""


def _chosen() -> tuple[Callable[[AnswerReader], Any], tuple[type[Exception], ...]]:
    try:
        import httptools
    except ImportError:
        from rbim.transports.asyncio.h11_parser import H11Parser

        return H11Parser, (_Stop,)

    def llhttp(reader: AnswerReader) -> Any:
        parser: Any = httptools.HttpResponseParser(reader)
        # without it, a Content-Length in the trailers is an error; the reader refuses one in the head of a chunked response
        parser.set_dangerous_leniencies(lenient_chunked_length=True)
        return parser

    return llhttp, (_Stop, httptools.HttpParserError, httptools.HttpParserUpgrade)


_new_parser, _INVALID = _chosen()
"""Return a parser that calls the methods ``on_...`` of this reader; and the exceptions that end its work."""


class KnownHeads:
    """A cache of parsed response heads, and the ``limit`` (bytes) of a body; shared by the connections of one transport.

    The same head always parses to the same result. If a known head comes again, in one read and with a body of the length
    that it states, the parser is skipped. Some servers make each head unique, with a request's id: if a full cache was of
    no use, it is not used for the next responses, which ``resting`` counts down.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heads: dict[bytes, tuple[int, dict[str, str], int]] = {}
        self._used = False
        self.resting = 0
        self.names = HeaderNames()

    def answer(self, data: bytes) -> Response | None:
        """Return the response if these bytes are exactly one response with a known head, else None."""
        head, _, body = data.partition(BLANK)
        known = self._heads.get(head)
        if known is None or known[2] != len(body):
            return None
        self._used = True
        return answered(known[0], known[1].copy(), body)

    def keep(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        """Store the head of these bytes, which the parser read as one response, if it has a plain Content-Length."""
        head, _, body = data.partition(BLANK)
        if headers.get("content-length") == str(len(body)) and "transfer-encoding" not in headers:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
                self.resting = 0 if self._used else RESTING
                self._used = False
            self._heads[head] = status, headers.copy(), len(body)


class AnswerReader:
    """Reads responses one after the other and skips interim (1xx) ones.

    After ``feed`` or ``end`` there are three cases: ``whole`` is true and :meth:`response` returns the response; ``fault``
    says why the response is refused (``too_large``: the body is longer than the limit); or more bytes are needed.
    ``reusable`` says whether another response may follow on the same connection.
    """

    def __init__(self, known: KnownHeads) -> None:
        self._known = known
        self._limit = known.limit
        self._names = known.names
        self._parser = _new_parser(self)
        self.begin()

    def begin(self, *, tunnel: bool = False) -> None:
        """Start a response. With ``tunnel`` (the response to CONNECT) it is a head only, and this reader's last one."""
        self.whole = self.too_large = self.reusable = False
        self.fault = ""
        self._tunnel = tunnel
        self._status = self._size = self._overhead = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._interim = self._interims = self._reading_body = False
        self._framed = True
        self._answer: Response | None = None

    @property
    def begun(self) -> bool:
        """Whether any byte of a response has come, interim ones included."""
        return bool(self._overhead or self._size or self._status)

    def response(self) -> Response:
        """Return the complete response, once: the reader does not keep its body."""
        if self._answer is not None:
            return self._answer
        body, self._body = self._body, []
        return answered(self._status, self._headers, body[0] if len(body) == 1 else b"".join(body))

    def feed(self, data: bytes | memoryview) -> bool:
        """Read these bytes (they are copied); return whether the response is complete or refused."""
        if self._overhead or self._size or self._status or self._tunnel or len(data) > MAX_CACHED:
            return self._parse(data)
        known = self._known
        if known.resting:
            known.resting -= 1
            return self._parse(data)
        read = bytes(data)
        self._answer = known.answer(read)
        if self._answer is not None:
            self.whole = self.reusable = True
            return True
        if self._parse(read) and self.reusable and not self._interims:
            known.keep(read, self._status, self._headers)
        return self.whole or bool(self.fault)

    def _parse(self, data: bytes | memoryview) -> bool:
        while True:
            room = HEAD_LIMIT + 1 - self._overhead
            part = data if len(data) <= room else data[:room]
            size = self._size
            try:
                self._parser.feed_data(part)
            except _INVALID as error:
                self.reusable = False
                if not self.whole and not self.fault:
                    self.fault = f"the response is not valid HTTP/1.1: {error}"
            if self.whole or self.fault:
                self.reusable = self.reusable and part is data
                return True
            self._overhead = 0 if self._size != size else self._overhead + len(part)
            if self._overhead > HEAD_LIMIT:
                self.fault = f"the head of the response is longer than {HEAD_LIMIT} bytes"
                return True
            if part is data:
                return False
            data = data[room:]

    def end(self) -> None:
        """Handle the regular end of the connection."""
        self.reusable = False
        if not self._framed:
            self.whole = True
        else:
            self.fault = f"the connection was closed {'within' if self.begun else 'before'} the response"

    # Callbacks of the parser. An exception stops it.

    def on_message_begin(self) -> None:
        """Stop at a second response in the same bytes."""
        if self.whole:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header of the head; ignore trailers."""
        if not self._reading_body:
            key = self._names[name]
            text = value.decode("latin-1").rstrip(" \t")
            headers = self._headers
            headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        """Decide which kind of response this is, or refuse it."""
        self._status = status = self._parser.get_status_code()
        if status < FIRST_FINAL:
            if status < FIRST_STATUS or status == SWITCHING:
                self.refuse(f"unexpected status {status}")
            self._interim = True
            return
        self._reading_body = True
        self.reusable = self._parser.should_keep_alive()
        if self._tunnel:  # it has no body, and the connection stays open, whatever its headers say
            self.whole = self.reusable = True
        else:
            self._frame()

    def _frame(self) -> None:
        """Decide where the body ends, or refuse the response."""
        headers = self._headers
        chunked = "transfer-encoding" in headers
        if (chunked or not self.reusable) and (fault := fault_of(self._parser.get_http_version(), headers)):
            self.refuse(fault)
        if chunked or self._status in BODILESS:
            pass
        elif "content-length" not in headers:
            self._framed = False
        elif int(headers["content-length"]) > self._limit:  # the parser has checked that this is one number
            self._refuse_length()

    def on_body(self, part: bytes) -> None:
        """Store a part of the body; refuse the response if the body is too long."""
        if self.whole:
            raise _Stop
        if self._interim:
            return
        self._size += len(part)
        if self._size > self._limit:
            self._body.clear()
            self._refuse_length()
        self._body.append(part)

    def on_message_complete(self) -> None:
        """Handle the end of a response or of an interim one."""
        if self._interim:
            self._interim = False
            self._interims = True
            self._headers = {}
        else:
            self.whole = True

    def refuse(self, fault: str) -> NoReturn:
        """Refuse the response, and stop the parser."""
        self.fault = fault
        raise _Stop

    def _refuse_length(self) -> NoReturn:
        self.too_large = True
        self.refuse(f"the response body is longer than {self._limit} bytes")
