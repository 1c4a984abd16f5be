"""Transports that break the contract in one point each, and the cases in which the conformance suite has to fail them."""
# ruff: noqa: ARG002  # who breaks a method need not use what it is given

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager, suppress

from helpers.handmade_transport import Handmade, Junk
from rbim.errors import NotSent

BROKEN = {}


def fails(case):
    def decorator(transport):
        BROKEN[transport] = case
        return transport

    return decorator


@asynccontextmanager
async def forever():
    yield


@fails("request: line, headers and body as asked for")
class LowersTheQuery(Handmade):
    def target(self, request):
        path, mark, query = request.target.partition("?")
        return path + mark + query.lower()


@fails("framing: a length")
class DropsTheLastByte(Handmade):
    async def body(self, *arguments):
        return (await super().body(*arguments))[:-1]


@fails("status: every one is an answer, read whole, followed nowhere and not repeated")
class FollowsRedirects(Handmade):
    async def attempt(self, request, progress):
        response = await super().attempt(request, progress)
        if response.headers.get("location", "").startswith("/"):
            self.release(request.origin, progress, kept=True)
            return await super().attempt(request, progress)
        return response


@fails("no answer: a length cut short")
class TakesHalfAnAnswer(Handmade):
    async def exactly(self, reader, length):
        try:
            return await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            return error.partial

    async def chunks(self, reader):
        with suppress(EOFError):
            return await super().chunks(reader)
        return b"{}"


@fails("size: a length, at the limit and past it")
class IgnoresTheLimit(Handmade):
    def count(self, length):
        pass


@fails("discarded: junk while idle")
class UsesAConnectionAfterJunk(Handmade):
    def is_usable(self, connection):
        return not connection.has_ended


@fails("stale: closed by the server while idle, for what must not be repeated")
class UsesStaleConnections(Handmade):
    def is_usable(self, connection):
        return not connection.has_more


@fails("connection: kept and used again, for what must not be repeated too")
class KeepsNoConnection(Handmade):
    def does_stay(self, version, connection):
        return False


@fails("once: a kept connection closed by the server when it got a POST")
class RepeatsOnItsOwn(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except asyncio.IncompleteReadError:
            progress.connection.close()
            return await super().attempt(request, progress)


@fails("time-out: waiting for an answer")
class LeaksWhatFailed(Handmade):
    def release(self, origin, progress, *, kept):
        if kept:
            super().release(origin, progress, kept=kept)


@fails("request: none before the transport is entered")
class IsAlwaysOpen(Handmade):
    def __init__(self, **options):
        super().__init__(**options)
        self.open = True

    async def __aexit__(self, *_):
        await super().__aexit__()
        self.open = True


@fails("time-out: waiting for an answer")
class TakesTimeOutsForNotSent(Handmade):
    def meaning(self, error, progress):
        return NotSent if isinstance(error, TimeoutError) else super().meaning(error, progress)


@fails("time-out: an answer that arrived while the event loop was blocked is read")
class EndsBeforeItHasRead(Handmade):
    def limit_of_time(self, timeout):
        return asyncio.timeout(timeout)


@fails("time-out: a body drop by drop")
class TimesEachReadOut(Handmade):
    async def attempt(self, request, progress):
        progress.connection = self.take(request.origin) or await self.connect(request.origin)
        progress.sent = True
        reader = progress.connection.reader
        progress.connection.writer.write(self.head(request) + request.body)
        while not reader.at_eof():
            before = len(reader._buffer)
            async with asyncio.timeout(1.0):
                while len(reader._buffer) == before:
                    await asyncio.sleep(0.01)
        return await self.answer(progress)

    def limit_of_time(self, timeout):
        return forever()


@fails("cancelled: before an answer, at once, with no secret in its traceback, and the connection is closed")
class SwallowsCancellation(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except asyncio.CancelledError as error:
            raise Junk from error


@fails("cancelled: the late answer to a cancelled request is nobody's")
class KeepsTheConnectionOfWhatWasCancelled(Handmade):
    def release(self, origin, progress, *, kept):
        super().release(origin, progress, kept=True)

    def is_usable(self, connection):
        return True  # also if the late answer is there already


@fails("crowd: 1,000 requests, random cancellations, each answer for its own caller")
class SharesAConnectionNowAndThen(Handmade):
    taken = 0
    latest = None

    def take(self, origin):
        self.taken += 1
        if self.taken % 100 or self.latest is None or not self.is_usable(self.latest.connection):
            return super().take(origin)
        return self.latest.connection

    async def attempt(self, request, progress):
        self.latest = progress
        return await super().attempt(request, progress)


@fails("TLS: the certificate of another host is not sent to")
class VerifiesNothing(Handmade):
    def secure_context(self):
        return ssl._create_unverified_context()


@fails("fails: a refused connection is not sent, and the error names the host and the port")
class NamesNoAddress(Handmade):
    def words(self, error, request):
        return type(error).__name__


@fails("fails: a refused connection is not sent, and the error names the host and the port")
class ShowsTheAddressInTracebacks(Handmade):
    async def send(self, request, /, *, timeout):
        address = request.origin + request.target
        try:
            return await super().send(request, timeout=timeout)
        finally:
            del timeout
            assert address


@fails("secrets: hidden in what is logged of requests that are answered, refused, too slow")
class LogsTheAddress(Handmade):
    async def attempt(self, request, progress):
        logging.getLogger("a.library").debug("%s %s%s", request.method, request.origin, request.target)
        return await super().attempt(request, progress)
