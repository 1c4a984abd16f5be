"""Connections of a server without sockets: pieces of bytes in, what the server writes out."""

import asyncio
import logging
from socket import AF_INET

from attrs import frozen

from .broken import require

LOOP = asyncio.new_event_loop()  # the event loop of all inputs of a process
TURNS = 60  # of the event loop, in which an answer must come


class Wire(asyncio.Transport):
    """The transport of a connection: it collects what is written."""

    def __init__(self):
        super().__init__()
        self.written = b""
        self.closing = False
        self.paused = False

    def get_extra_info(self, name, default=None):
        return _Socket() if name == "socket" else default

    def write(self, data):
        if not self.closing:
            self.written += data

    def close(self):
        self.closing = True

    abort = close

    def is_closing(self):
        return self.closing

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False

    def set_write_buffer_limits(self, high=None, low=None):
        pass


class _Socket:
    """Stands for the socket of a connection, which a reset asks for."""

    family = AF_INET

    def getsockname(self):
        return "127.0.0.1", 8883

    def getpeername(self):
        return "127.0.0.1", 50000

    def setsockopt(self, *_):
        pass


class Errors(logging.Handler):
    """Collects the errors that a server logs in place of raising them, and those of the event loop."""

    def __init__(self, *loggers):
        super().__init__(logging.ERROR)
        self.texts = []
        for name in loggers:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False
        LOOP.set_exception_handler(lambda _, context: self.texts.append(str(context)))

    def emit(self, record):
        error = record.exc_info[1] if record.exc_info else None
        self.texts.append(f"{record.getMessage()} {error!r}")

    def clear(self):
        self.texts.clear()

    def check(self):
        texts, self.texts = self.texts, []
        require(not texts, f"an error in the server: {texts[0].splitlines()[0][:150] if texts else ''}", *texts)


def pieces(message, size):
    return [message[begin : begin + size] for begin in range(0, len(message), size)] if size else [message]


async def talk(protocol, tasks, parts, *, half_close=False, turns=TURNS):
    """Send the pieces to a protocol of a server, and close the connection; return it when nothing runs any more."""
    wire = Wire()
    protocol.connection_made(wire)
    try:
        for part in parts:
            if wire.closing or wire.paused:
                break
            if part:
                protocol.data_received(part)
            await _settled(tasks, turns)
        if half_close and not wire.closing:
            protocol.eof_received()
            await _settled(tasks, turns)
    finally:
        wire.closing = True
        protocol.connection_lost(None)
        await _settled(tasks, turns)
    require(not tasks, "a request runs after its connection was closed")
    return wire


async def _settled(tasks, turns):
    for _ in range(turns):
        await asyncio.sleep(0)
        if not tasks:
            return


@frozen
class Answer:
    """One answer of a server."""

    status: int
    headers: dict[str, str]
    body: bytes


def answers(written, methods):
    """Return the answers that a server wrote, read by hand; ``methods`` are those of the requests, in order."""
    found = []
    while written:
        head, blank, rest = written.partition(b"\r\n\r\n")
        require(blank, "an answer without a whole head", written)
        first, *lines = head.decode("latin-1").split("\r\n")
        require(first.startswith("HTTP/1.1 ") and first[9:12].isdigit(), "a status line that is none", first)
        status = int(first[9:12])
        headers = {}
        for line in lines:
            name, colon, value = line.partition(": ")
            require(colon and name.lower() not in headers, "a header line that is none, or twice", line)
            headers[name.lower()] = value
        if status == 100:
            written = rest
            continue
        method = methods[len(found)] if len(found) < len(methods) else ""
        # uvicorn refuses what turns out to be no HTTP with a body, whatever the method is, and closes the connection
        refused = status == 400 and headers.get("connection") == "close"
        if (method == "HEAD" and not refused) or status in (204, 304):
            body, written = b"", rest
        elif headers.get("transfer-encoding") == "chunked":
            body, written = _dechunked(rest)
        elif "content-length" in headers:
            length = int(headers["content-length"])
            require(len(rest) >= length, "an answer shorter than its Content-Length", head, rest)
            body, written = rest[:length], rest[length:]
        else:
            body, written = rest, b""
        found.append(Answer(status, headers, body))
    return found


def _dechunked(rest):
    body = b""
    while True:
        line, end, rest = rest.partition(b"\r\n")
        require(end, "a chunked answer without an end")
        size = int(line, 16)
        body, ending, rest = body + rest[:size], rest[size : size + 2], rest[size + 2 :]
        require(ending == b"\r\n", "a chunk without its end")
        if not size:
            return body, rest
