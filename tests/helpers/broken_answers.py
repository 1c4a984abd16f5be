"""Transports that send requests or read answers wrongly, in one point each; see ``broken_transports``."""
# ruff: noqa: ARG002  # who breaks a method need not use what it is given

import asyncio
import gzip
from contextlib import suppress

from helpers.handmade_transport import HEAD, Breaking, Handmade, Junk, parsed
from rbim.http import Response

__all__ = ["BROKEN"]

BROKEN = Breaking()
fails = BROKEN.fails


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
