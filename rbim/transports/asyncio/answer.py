"""One answer after the other out of the bytes of a connection: the llhttp parser, and what it does not look after.

llhttp has no limit to the size of a head, httptools cannot tell it that the connection ended, and both go on to what follows
an answer. So bytes are counted here, the framing is known here, and whatever comes after an answer is noticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from rbim.http import answered

if TYPE_CHECKING:
    from rbim.http import Response

try:
    import httptools
except ImportError as error:
    raise ImportError('this transport needs httptools: python -m pip install "rbim[fast]"') from error

__all__ = ["HEAD_LIMIT", "AnswerReader", "Known"]

HEAD_LIMIT = 64 * 1024
"""Bytes that may come without any of a body among them: heads of interim answers and of the answer, or its trailers."""

HEADS = 64  # that are kept
SHORT = 4096  # bytes of an answer that is worth it
BLANK = b"\r\n\r\n"
BODILESS = frozenset({204, 304})
SWITCHING = 101
FIRST_STATUS = 100
FIRST_FINAL = 200
STOP = (httptools.HttpParserError, httptools.HttpParserUpgrade)


class _Stop(Exception):
    """The rest of what was read is not to be parsed."""


class Known:
    """What is known of the answers of one transport: how long a body may be, and heads that came before.

    A head that the parser has understood means the same the next time. Where it comes again, with the body that it says and
    in one read, as most answers of a busy hour do (their date changes once a second), the parser need not look at it.
    """

    __slots__ = ("_heads", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._heads: dict[bytes, tuple[int, dict[str, str], int]] = {}

    def answer(self, data: bytes) -> Response | None:
        """Return the answer that these bytes are, no less and no more, if their head is known."""
        head, _, body = data.partition(BLANK)
        known = self._heads.get(head)
        if known is None or known[2] != len(body):
            return None
        return answered(known[0], known[1].copy(), body)

    def keep(self, data: bytes, status: int, headers: dict[str, str]) -> None:
        """Keep the head of these bytes, which were one answer as the parser sees it, if its length is told in plain."""
        head, _, body = data.partition(BLANK)
        if headers.get("content-length") == str(len(body)) and "transfer-encoding" not in headers:
            if len(self._heads) >= HEADS:
                self._heads.clear()
            self._heads[head] = status, headers.copy(), len(body)


class AnswerReader:
    """Reads answers, one after the other; interim ones are passed over.

    After ``feed`` or ``end`` either ``whole`` is true and ``response`` gives the answer, or ``fault`` says why there will
    be none (``too_large``: because of ``limit``, the bytes of a body), or more is needed. ``reusable`` says whether another
    answer may follow on the same connection.
    """

    __slots__ = (
        "_answer",
        "_body",
        "_dry",
        "_framed",
        "_headers",
        "_interim",
        "_interims",
        "_known",
        "_limit",
        "_parser",
        "_reading_body",
        "_size",
        "_status",
        "_tunnel",
        "fault",
        "reusable",
        "too_large",
        "whole",
    )

    def __init__(self, known: Known) -> None:
        self._known = known
        self._limit = known.limit
        self._parser = httptools.HttpResponseParser(self)
        # or it takes a Content-Length among the trailers of chunks for one too many; in the head it is refused below
        self._parser.set_dangerous_leniencies(lenient_chunked_length=True)
        self.begin()

    def begin(self, *, tunnel: bool = False) -> None:
        """Expect an answer; that of a ``tunnel`` (to CONNECT) is its head alone, and this reader's last."""
        self.whole = self.too_large = self.reusable = False
        self.fault = ""
        self._tunnel = tunnel
        self._status = self._size = self._dry = 0
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._interim = self._interims = self._reading_body = False
        self._framed = True
        self._answer: Response | None = None

    @property
    def begun(self) -> bool:
        """Whether any byte of an answer, interim ones included, has come."""
        return bool(self._dry or self._size or self._status)

    def response(self) -> Response:
        """Return the whole answer; it is kept here no longer."""
        if self._answer is not None:
            return self._answer
        body, self._body = self._body, []
        return answered(self._status, self._headers, body[0] if len(body) == 1 else b"".join(body))

    def feed(self, data: bytes | memoryview) -> bool:
        """Take what was read, and keep none of it as it is; return whether nothing more is needed."""
        if self.begun or self._tunnel or len(data) > SHORT:
            return self._parse(data)
        read = bytes(data)
        self._answer = self._known.answer(read)
        if self._answer is not None:
            self.whole = self.reusable = True
            return True
        if self._parse(read) and self.reusable and not self._interims:
            self._known.keep(read, self._status, self._headers)
        return self.whole or bool(self.fault)

    def _parse(self, data: bytes | memoryview) -> bool:
        while True:
            room = HEAD_LIMIT + 1 - self._dry
            part = data if len(data) <= room else data[:room]
            size = self._size
            try:
                self._parser.feed_data(part)
            except STOP as error:
                self.reusable = False
                if not self.whole and not self.fault:
                    self.fault = f"the answer is not HTTP/1.1 as it should be: {error}"
            if self.whole or self.fault:
                self.reusable = self.reusable and part is data
                return True
            self._dry = 0 if self._size != size else self._dry + len(part)
            if self._dry > HEAD_LIMIT:
                self.fault = f"the head of the answer is longer than {HEAD_LIMIT} bytes"
                return True
            if part is data:
                return False
            data = data[room:]

    def end(self) -> None:
        """Take notice that the connection has ended, in good order."""
        self.reusable = False
        if not self._framed:
            self.whole = True
        else:
            self.fault = f"the connection was closed {'within' if self.begun else 'before'} the answer"

    # What the parser calls. An exception stops it.

    def on_message_begin(self) -> None:
        """Notice what follows an answer."""
        if self.whole:
            raise _Stop

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header, of the head: trailers are dropped."""
        if not self._reading_body:
            key = name.decode("latin-1").lower()
            text = value.decode("latin-1").rstrip(" \t")
            headers = self._headers
            headers[key] = f"{headers[key]}, {text}" if key in headers else text

    def on_headers_complete(self) -> None:
        """Decide what kind of answer this is, or refuse it."""
        self._status = status = self._parser.get_status_code()
        if status < FIRST_FINAL:
            if status < FIRST_STATUS or status == SWITCHING:
                self._refuse(f"the answer has status {status}")
            self._interim = True
            return
        self._reading_body = True
        self.reusable = self._parser.should_keep_alive()
        if not self.reusable and self._parser.get_http_version() not in {"1.0", "1.1"}:
            self._refuse(f"the answer is HTTP/{self._parser.get_http_version()}")
        if self._tunnel:  # whatever its headers say, there is no body and the connection goes on
            self.whole = self.reusable = True
        else:
            self._frame()

    def _frame(self) -> None:
        """Decide where the body ends, or refuse the answer."""
        headers = self._headers
        if "transfer-encoding" in headers:
            if headers["transfer-encoding"].lower() != "chunked" or self._parser.get_http_version() == "1.0":
                self._refuse("the answer has a Transfer-Encoding other than chunked, or is HTTP/1.0 and has one")
            if "content-length" in headers:
                self._refuse("the answer has both a Transfer-Encoding and a Content-Length")
        elif self._status in BODILESS:
            pass
        elif "content-length" not in headers:
            self._framed = False
        elif int(headers["content-length"]) > self._limit:  # llhttp has seen to it that this is one number
            self._refuse_length()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
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
        """Take the end of an answer, or of an interim one."""
        if self._interim:
            self._interim = False
            self._interims = True
            self._headers = {}
        else:
            self.whole = True

    def _refuse(self, fault: str) -> NoReturn:
        self.fault = fault
        raise _Stop

    def _refuse_length(self) -> NoReturn:
        self.too_large = True
        self._refuse(f"the answer is longer than {self._limit} bytes")
