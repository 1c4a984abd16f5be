"""Transports that break the contract in one point each, and the cases in which the conformance suite has to fail them."""
# ruff: noqa: ARG002  # who breaks a method need not use what it is given

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager
from datetime import timedelta

from helpers import broken_answers
from helpers.handmade_transport import Breaking, Handmade, Junk
from rbim.errors import NotSent, Unanswered

__all__ = ["BROKEN"]

PHASES = ("connecting", "being sent", "waiting for an answer", "in the middle of a head", "in the middle of a body")

BROKEN = Breaking(broken_answers.BROKEN)
fails = BROKEN.fails


@asynccontextmanager
async def forever():
    yield


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


@fails(
    "reload: an idle connection is closed at any await of a request that is not written yet",
    "reload: an idle TLS connection is closed at any await of a request that is not written yet",
)
class LooksTooEarly(Handmade):
    async def attempt(self, request, progress):
        progress.connection = self.take(request.origin) or await self.connect(request.origin)
        await asyncio.sleep(0)  # as a lock does
        progress.sent = True
        progress.connection.writer.write(self.head(request) + request.body)
        return await self.answer(progress)


@fails(
    "discarded: half an unrequested answer over TLS, 10 ms behind another one",
    "discarded: an unrequested answer in two TLS records over TLS, 10 ms behind another one",
    "discarded: one byte over TLS, 0 ms behind another one",
)
class ForgetsWhatCameBehindAnAnswer(Handmade):
    def is_usable(self, connection):
        connection.reader._buffer.clear()
        return not connection.has_ended


@fails("TLS: a connection is used again after a session ticket behind a response")
class TakesEveryRecordForData(Handmade):
    def is_usable(self, connection):
        return super().is_usable(connection) and not is_tls_with_tickets(connection)


def is_tls_with_tickets(connection):
    tls = connection.writer.get_extra_info("ssl_object")
    return tls is not None and tls.session is not None and tls.session.has_ticket


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


@fails(
    "once: a kept connection closed by the server when it got a POST",
    "no answer: nothing",
    "reload: a server under load closes its idle connections again and again, and no outcome is false",
)
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


@fails("shared: entered twice and left once, it keeps its connections open")
class IsLeftByTheFirstOne(Handmade):
    async def __aexit__(self, *_):
        self.users = 1
        await super().__aexit__()


# Failures.


@fails("time-out: waiting for an answer", "time-out: on a kept connection, which is closed")
class TakesTimeOutsForNotSent(Handmade):
    def meaning(self, error, progress):
        return NotSent if isinstance(error, TimeoutError) else super().meaning(error, progress)


@fails("fails: a refused connection is not sent", "TLS: the certificate of another host is not sent to")
class TakesNotSentForUnanswered(Handmade):
    def meaning(self, error, progress):
        return Unanswered


@fails(
    "fails: a connection that ends after the request was read is unanswered",
    "no answer: nothing",
    "reload: a server under load closes its idle connections again and again, and no outcome is false",
)
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


@fails("crowd: 1,000 requests, random cancellations, each answer for its own caller")
class MixesUpAnswersNowAndThen(Handmade):
    count_of_answers = 0
    latest = None

    async def answer(self, progress):
        response, latest = await super().answer(progress), self.latest
        self.count_of_answers += 1
        self.latest = response
        return latest if latest is not None and self.count_of_answers % 250 == 0 else response


@fails("crowd: an answer nobody asked for behind the end of another one, while others begin, is nobody's")
class GivesConnectionsBackBeforeItsCallerRuns(Handmade):
    """As a library does whose parser gives them back."""

    def __init__(self, **options):
        super().__init__(**options)
        self.given_back = []

    def take(self, origin):
        return self.given_back.pop() if self.given_back else super().take(origin)

    async def attempt(self, request, progress):
        response = await super().attempt(request, progress)
        self.given_back.append(progress.connection)
        await asyncio.sleep(0)
        if progress.connection in self.given_back:
            self.given_back.remove(progress.connection)
        return response


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


@fails("fails: an error of connecting names the host and the port")
class NamesNoAddress(Handmade):
    def words(self, error, request):
        return type(error).__name__


@fails("time-out: infinite, or very long")
class ConvertsTimeOutsToMilliseconds(Handmade):
    def limit_of_time(self, timeout):
        return asyncio.timeout(timedelta(seconds=timeout) / timedelta(seconds=1))


@fails("time-out: zero or below is not sent, at once")
class TriesWithoutTime(Handmade):
    async def send(self, request, /, *, timeout):
        return await super().send(request, timeout=max(timeout, 1.0))


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


@fails(*(f"secrets: hidden from the traceback of a request cancelled while {phase}" for phase in PHASES))
class ShowsTheAddressInTracebacksOfCancellations(Handmade):
    async def attempt(self, request, progress):
        address = request.origin + request.target
        response = await super().attempt(request, progress)
        assert address
        return response


@fails(f"secrets: hidden from the traceback of a request cancelled while {PHASES[1]}")
class HangsTheAddressOnCancellations(Handmade):
    async def attempt(self, request, progress):
        try:
            return await super().attempt(request, progress)
        except asyncio.CancelledError as cancelled:
            raise cancelled from ValueError(request.target)


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
