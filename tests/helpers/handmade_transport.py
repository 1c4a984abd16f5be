"""A small transport by hand, of asyncio streams and regular expressions, that keeps the contract.

What ``broken_transports`` breaks in it is a method of its own, which may be given more than it needs here.
"""
# ruff: noqa: ARG002  # see above

import asyncio
import re
import select
import ssl
from collections import defaultdict
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Response

HEAD = 65536
TURNS = 50  # turns of the event loop; a read of asyncio takes at most 256 KiB of plain text, and 64 KiB of a TLS stream


MADE = []  # connections, some of which a broken transport leaks: who tries it closes them


class Junk(Exception):
    """An answer that is none."""


class Connection:
    """A stream, and whether a request has begun to leave through it."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer
        MADE.append(self)

    @property
    def has_more(self):
        return bool(self.reader._buffer)

    @property
    def has_ended(self):
        """Look at the socket too: the event loop may not have seen yet that the server has closed it."""
        if self.reader._eof or self.reader.exception() is not None or self.writer.is_closing():
            return True
        return bool(select.select([self.writer.get_extra_info("socket").fileno()], [], [], 0)[0])

    def close(self):
        self.writer.transport.abort()


class Progress:
    sent = False
    connection = None
    stays = True


class Handmade:
    """asyncio streams and a few regular expressions; what a subclass breaks is a method of its own."""

    def __init__(self, *, verify=None, answer_limit=1_000_000):
        self.verify = verify
        self.answer_limit = answer_limit
        self.idle = defaultdict(list)
        self.open = False
        self.users = 0

    async def __aenter__(self):
        self.users += 1
        self.open = True
        return self

    async def __aexit__(self, *_):
        self.users -= 1
        if self.users:
            return
        self.open = False
        for connections in self.idle.values():
            for connection in connections:
                connection.close()
        self.idle.clear()
        await asyncio.sleep(0)

    async def send(self, request, /, *, timeout):
        if not self.open or timeout <= 0:
            raise NotSent
        progress, response = Progress(), None
        try:
            async with self.limit_of_time(timeout):
                response = await self.attempt(request, progress)
            return response  # noqa: TRY300  # there is a `finally`
        except TransportError:
            raise
        except (OSError, EOFError, ValueError, Junk, asyncio.LimitOverrunError) as error:
            failure = self.meaning(error, progress)(self.words(error, request))
        finally:
            if progress.connection is not None:
                self.release(request.origin, progress, kept=response is not None)
        raise failure

    @asynccontextmanager
    async def limit_of_time(self, timeout):
        """Raise TimeoutError when the time is over, but after the event loop has read what has arrived."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:

            def end(turns):
                nonlocal timer
                if turns:
                    timer = loop.call_later(0, end, turns - 1)
                else:
                    scope.reschedule(0)

            timer = loop.call_later(min(timeout, 1e9), end, TURNS)
            try:
                yield
            finally:
                timer.cancel()

    def meaning(self, error, progress):
        return Unanswered if progress.sent else NotSent

    def words(self, error, request):
        return f"{type(error).__name__} at {urlsplit(request.origin).netloc}"

    async def attempt(self, request, progress):
        progress.connection = self.take(request.origin) or await self.connect(request.origin)
        progress.sent = True
        progress.connection.writer.write(self.head(request) + request.body)
        await progress.connection.writer.drain()
        return await self.answer(progress)

    # Connections.

    def take(self, origin):
        connections = self.idle[origin]
        while connections:
            connection = connections.pop()
            if self.is_usable(connection):
                return connection
            connection.close()
        return None

    def is_usable(self, connection):
        return not connection.has_more and not connection.has_ended

    async def connect(self, origin):
        parts = urlsplit(origin)
        context = self.secure_context() if parts.scheme == "https" else None
        port = parts.port or (443 if context else 80)
        return Connection(*await asyncio.open_connection(parts.hostname, port, ssl=context, limit=HEAD))

    def secure_context(self):
        return self.verify or ssl.create_default_context()

    def release(self, origin, progress, *, kept):
        if kept and self.open and progress.stays and self.is_usable(progress.connection):
            self.idle[origin].append(progress.connection)
        else:
            progress.connection.close()

    # Messages.

    def head(self, request):
        parts = urlsplit(request.origin)
        headers = {"Host": parts.netloc, "Content-Length": str(len(request.body)), **request.headers}
        lines = [f"{request.method} {parts.path}{self.target(request)} HTTP/1.1"]
        return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode("latin-1")

    def target(self, request):
        return request.target

    async def answer(self, progress):
        reader = progress.connection.reader
        while True:
            version, status, headers = parsed(await reader.readuntil(b"\r\n\r\n"))
            if status == 101 or (version == "0" and "transfer-encoding" in headers):
                raise Junk
            if status >= 200:
                break
        progress.stays = self.does_stay(version, headers.get("connection", "").lower())
        return Response(status, headers, await self.body(reader, status, headers, progress))

    def does_stay(self, version, connection):
        return version == "1" and connection != "close"

    async def body(self, reader, status, headers, progress):
        if status in {204, 304}:
            return b""
        coding, length = headers.get("transfer-encoding"), headers.get("content-length")
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise Junk
            return await self.chunks(reader)
        if length is not None:
            if not re.fullmatch("[0-9]{1,15}", length):
                raise Junk
            self.count(int(length))
            return await self.exactly(reader, int(length))
        progress.stays = False
        body = b""
        while part := await reader.read(65536):
            body += part
            self.count(len(body))
        return body

    async def exactly(self, reader, length):
        return await reader.readexactly(length)

    async def chunks(self, reader):
        body = b""
        while True:
            size = re.fullmatch(rb"([0-9A-Fa-f]{1,8})(?:[;\t ].*)?\r\n", await reader.readuntil(b"\r\n"))
            if size is None:
                raise Junk
            if int(size[1], 16) == 0:
                break
            self.count(len(body) + int(size[1], 16))
            body += await self.exactly(reader, int(size[1], 16))
            if await reader.readexactly(2) != b"\r\n":
                raise Junk
        trailers = 0
        while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
            trailers += len(line)
            if trailers > HEAD:
                raise Junk
        return body

    def count(self, length):
        if length > self.answer_limit:
            raise AnswerTooLarge(limit=self.answer_limit)


def parsed(head):
    lines = head[:-4].decode("latin-1").split("\r\n")
    first = re.fullmatch(r"HTTP/1\.([01]) ([0-9]{3})(?: .*)?", lines[0])
    if first is None:
        raise Junk
    headers = {}
    for line in lines[1:]:
        found = re.fullmatch(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*", line)
        if found is None:
            raise Junk
        name = found[1].lower()
        headers[name] = f"{headers[name]}, {found[2]}" if name in headers else found[2]
    return first[1], int(first[2]), headers
