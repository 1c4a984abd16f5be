"""Transports that break the contract in one point each, and the cases in which the conformance suite has to fail them."""
# ruff: noqa: ARG002  # who breaks a method need not use what it is given

import asyncio
import gzip
import logging
import ssl
from contextlib import asynccontextmanager, suppress

from handmade_transport import HEAD, Handmade, Junk, parsed

from rbim.errors import NotSent, Unanswered
from rbim.message import Response

__all__ = ["BROKEN"]

BROKEN = {}


@asynccontextmanager
async def forever():
    yield


def fails(*cases):
    """Say in which cases of the suite a transport fails."""

    def decorator(transport):
        BROKEN[transport] = cases
        return transport

    return decorator


# Answers.


@fails("framing: a length", "framing: until the connection is closed", "size: chunks, at the limit and past it")
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


@fails("status: every one is an answer, read whole, followed nowhere and not repeated")
class RaisesForStatus(Handmade):
    async def attempt(self, request, progress):
        response = await super().attempt(request, progress)
        if response.status >= 400:
            raise Junk
        return response


@fails("status: every one is an answer, read whole, followed nowhere and not repeated")
class RepeatsWhatWasThrottled(Handmade):
    async def attempt(self, request, progress):
        response = await super().attempt(request, progress)
        if "retry-after" in response.headers:
            self.release(request.origin, progress, kept=True)
            return await super().attempt(request, progress)
        return response


@fails("framing: 100 first", "framing: 102 and 103 first", "no answer: only an interim answer")
class TakesAnInterimAnswerForTheAnswer(Handmade):
    def is_interim(self, status):
        return False

    async def body(self, reader, status, headers, progress):
        return b"" if status < 200 else await super().body(reader, status, headers, progress)


@fails("framing: 100 first", "framing: 100 first, byte by byte")
class TakesOnlyOneRead(Handmade):
    async def answer(self, progress):
        data = await progress.connection.reader.read(HEAD)
        _, status, headers = parsed(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
        return Response(status, headers, data.partition(b"\r\n\r\n")[2])


@fails("no answer: a length cut short", "no answer: a chunk cut short")
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


@fails("no answer: no last chunk", "no answer: chunks without the last empty line")
class NeedsNoLastChunk(Handmade):
    async def line(self, reader):
        try:
            return await super().line(reader)
        except asyncio.IncompleteReadError as error:
            return error.partial or (b"0\r\n" if reader.at_eof() and not self.asked_again() else b"\r\n")

    def asked_again(self):
        self.asked = not getattr(self, "asked", True)
        return self.asked


@fails("framing: chunks with extensions")
class KnowsNoExtensions(Handmade):
    async def line(self, reader):
        line = await super().line(reader)
        if b";" in line:
            raise Junk
        return line


@fails("fails: a connection that ends after the request was read is unanswered")
class TakesAResetForTheEnd(Handmade):
    async def body(self, reader, status, headers, progress):
        try:
            return await super().body(reader, status, headers, progress)
        except ConnectionError:
            return b"{}"


@fails("body: compressed although nobody asked is given as it came")
class AsksForGzip(Handmade):
    def head(self, request):
        return super().head(request).replace(b"\r\n\r\n", b"\r\nAccept-Encoding: gzip\r\n\r\n")


@fails("body: compressed although nobody asked is given as it came")
class Decompresses(Handmade):
    async def body(self, reader, status, headers, progress):
        body = await super().body(reader, status, headers, progress)
        return gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body


@fails("size: a length, at the limit and past it", "size: chunks, at the limit and past it")
class IgnoresTheLimit(Handmade):
    def count(self, length):
        pass


@fails("size: until closed, at the limit and past it")
class CutsAtTheLimit(Handmade):
    async def body(self, *arguments):
        self.answer_limit, limit = 1 << 30, self.answer_limit
        try:
            return (await super().body(*arguments))[:limit]
        finally:
            self.answer_limit = limit


@fails("no answer: a header without end", "no answer: headers without end")
class ReadsHeadsWithoutEnd(Handmade):
    head_limit = 1 << 30


@fails("headers: repeated ones are joined, names are lowered, values are kept")
class KeepsOneOfEachHeader(Handmade):
    async def answer(self, progress):
        response = await super().answer(progress)
        headers = {name: value.split(", ")[-1] for name, value in response.headers.items()}
        return Response(response.status, headers, response.body)


@fails("framing: a length", "headers: repeated ones are joined, names are lowered, values are kept")
class TitlesTheHeaders(Handmade):
    async def answer(self, progress):
        response = await super().answer(progress)
        return Response(response.status, {name.title(): value for name, value in response.headers.items()}, response.body)


# Connections.


@fails(
    "discarded: junk while idle",
    "discarded: an answer nobody asked for while idle",
    "discarded: an answer nobody asked for together with an answer (a length)",
)
class UsesAConnectionAfterJunk(Handmade):
    def is_usable(self, connection):
        return not connection.has_ended


@fails(
    "stale: closed by the server while idle, for what must not be repeated",
    "stale: several connections closed by the server while idle",
)
class UsesStaleConnections(Handmade):
    def is_usable(self, connection):
        return not connection.has_more


@fails("framing: Connection: close from a server that does not")
class IgnoresConnectionClose(Handmade):
    def does_stay(self, version, connection):
        return version == "1"


@fails("framing: HTTP/1.0, a length")
class KeepsConnectionsOfOldServers(Handmade):
    def does_stay(self, version, connection):
        return connection != "close"


@fails("connection: kept and used again, for what must not be repeated too", "empty: 204")
class KeepsNoConnection(Handmade):
    def does_stay(self, version, connection):
        return False


@fails("connection: the one used last is the first to be used again")
class TakesTheOldestConnection(Handmade):
    def choose(self, connections):
        return connections.pop(0)


@fails("request: many origins, each with connections of its own")
class HasOnePoolForAllOrigins(Handmade):
    def pool_of(self, origin):
        return ""


@fails("once: a kept connection closed by the server when it got a POST", "no answer: nothing")
class RepeatsOnItsOwn(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except asyncio.IncompleteReadError:
            progress.connection.close()
            return await super().attempt(request, progress)


@fails("connection: kept and used again, for what must not be repeated too", "request: none after the transport is left")
class LeavesItsConnectionsOpen(Handmade):
    async def __aexit__(self, *_):
        pass


@fails(
    "time-out: waiting for an answer",
    "no answer: a bare body",
    "cancelled: before an answer, at once, and the connection is closed",
)
class LeaksWhatFailed(Handmade):
    def release(self, origin, progress, *, kept):
        if kept:
            super().release(origin, progress, kept=kept)


@fails("request: none before the transport is entered", "request: none after the transport is left")
class IsAlwaysOpen(Handmade):
    def __init__(self, **options):
        super().__init__(**options)
        self.open = True

    async def __aexit__(self, *_):
        await super().__aexit__()
        self.open = True


# Failures.


@fails("time-out: waiting for an answer", "time-out: on a kept connection, which is closed")
class TakesTimeOutsForNotSent(Handmade):
    def meaning(self, error, progress):
        return NotSent if isinstance(error, TimeoutError) else super().meaning(error, progress)


@fails("fails: a refused connection is not sent", "TLS: the certificate of another host is not sent to")
class TakesNotSentForUnanswered(Handmade):
    def meaning(self, error, progress):
        return Unanswered


@fails("fails: a connection that ends after the request was read is unanswered", "no answer: nothing")
class TakesUnansweredForNotSent(Handmade):
    def meaning(self, error, progress):
        return NotSent


@fails("fails: a refused connection is not sent")
class LetsOtherErrorsThrough(Handmade):
    def meaning(self, error, progress):
        return OSError


@fails("fails: a refused connection is not sent")
class HasAnOutcomeOfItsOwn(Handmade):
    def meaning(self, error, progress):
        def made(words):
            return NotSent(words, outcome=Unanswered.outcome)

        return made


@fails("time-out: a body drop by drop", "time-out: a head drop by drop")
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


@fails("time-out: while the request is being sent")
class TimesOnlyTheAnswer(Handmade):
    async def attempt(self, request, progress):
        progress.connection = self.take(request.origin) or await self.connect(request.origin)
        progress.sent = True
        progress.connection.writer.write(self.head(request) + request.body)
        await progress.connection.writer.drain()
        async with asyncio.timeout(0.1):  # as long as the case gives
            return await self.answer(progress)

    def limit_of_time(self, timeout):
        return forever()


# Cancellation.


@fails(
    "cancelled: before an answer, at once, and the connection is closed",
    "cancelled: a task of asyncio, whose count of cancellations is left alone",
)
class SwallowsCancellation(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except asyncio.CancelledError as error:
            raise Junk from error


@fails("cancelled: a task of asyncio, whose count of cancellations is left alone")
class TakesCancellationsBack(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
            raise


@fails(
    "cancelled: the late answer to a cancelled request is nobody's",
    "cancelled: at every await of a request on a kept connection",
)
class KeepsTheConnectionOfWhatWasCancelled(Handmade):
    def release(self, origin, progress, *, kept):
        super().release(origin, progress, kept=True)

    def is_usable(self, connection):
        return not connection.has_ended


@fails("crowd: 2,000 requests, random cancellations, each answer for its own caller")
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


@fails("crowd: 2,000 requests, random cancellations, each answer for its own caller")
class MixesUpAnswersNowAndThen(Handmade):
    count_of_answers = 0
    latest = None

    async def answer(self, progress):
        response, latest = await super().answer(progress), self.latest
        self.count_of_answers += 1
        self.latest = response
        return latest if latest is not None and self.count_of_answers % 500 == 0 else response


# Requests.


@fails("request: line, headers and body as asked for", "request: quoted path and query byte for byte")
class LowersTheQuery(Handmade):
    def target(self, request):
        path, mark, query = request.target.partition("?")
        return path + mark + query.lower()


@fails("request: quoted path and query byte for byte")
class QuotesItsOwnWay(Handmade):
    def target(self, request):
        return request.target.replace("%20", "+").replace("%7e", "~")


@fails("request: line, headers and body as asked for", "request: an IPv6 address as origin")
class ForgetsThePort(Handmade):
    def host(self, parts):
        return parts.hostname


@fails("request: line, headers and body as asked for")
class SendsAHeaderTwice(Handmade):
    def head(self, request):
        return super().head(request).replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n")


@fails("request: no cookie is kept")
class KeepsCookies(Handmade):
    cookie = None

    def head(self, request):
        head = super().head(request)
        return head.replace(b"\r\n\r\n", f"\r\nCookie: {self.cookie}\r\n\r\n".encode()) if self.cookie else head

    async def answer(self, progress):
        response = await super().answer(progress)
        self.cookie = response.headers.get("set-cookie")
        return response


@fails("request: no time at all is not sent")
class TakesNoTimeForForever(Handmade):
    async def send(self, request, /, *, timeout):
        return await super().send(request, timeout=timeout if timeout > 0 else 10.0)


@fails(
    "proxy: asked with the whole address, or the option is refused", "request: over a UNIX socket, or the option is refused"
)
class TakesOptionsWithoutEffect(Handmade):
    def __init__(self, *, proxy=None, uds=None, **options):
        super().__init__(**options)


# TLS.


@fails("TLS: the certificate of another host is not sent to", "TLS: an expired certificate is not sent to")
class VerifiesNothing(Handmade):
    def secure_context(self):
        return ssl._create_unverified_context()


@fails("TLS: the certificate of another host is not sent to")
class VerifiesNoHost(Handmade):
    def secure_context(self):
        context = super().secure_context()
        context.check_hostname = False
        return context


# Secrets.


@fails("fails: a refused connection is not sent", "secrets: hidden where a status line of the answer repeats them")
class NamesTheAddressInErrors(Handmade):
    def words(self, error, request):
        return f"{request.origin}{request.target}: {error}"


@fails("fails: a refused connection is not sent")
class ShowsTheAddressInTracebacks(Handmade):
    async def send(self, request, /, *, timeout):
        address = request.origin + request.target
        try:
            return await super().send(request, timeout=timeout)
        finally:
            del timeout
            assert address


@fails("no answer: nothing")
class ChainsWhatShowsTheAddress(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except EOFError:
            raise Unanswered from ValueError(request.target)


@fails("secrets: hidden in what is logged of requests that are answered, refused, too slow")
class LogsTheAddress(Handmade):
    async def attempt(self, request, progress):
        logging.getLogger("a.library").debug("%s %s%s", request.method, request.origin, request.target)
        return await super().attempt(request, progress)
