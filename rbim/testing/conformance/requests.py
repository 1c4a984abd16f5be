"""Conformance cases about requests: their bytes, their destination, and when they may be sent."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from unittest import SkipTest

from rbim.errors import NotSent
from rbim.http import Request
from rbim.testing.conformance.case import (
    AUTHORIZATION,
    BODY,
    REQUEST_TIMEOUT,
    WHOLE,
    Cases,
    Conformance,
    NonConforming,
    check,
    check_used,
    environment,
    expect_error,
    expect_response,
    request,
    served,
)
from rbim.testing.conformance.server import RawServer, Received, reply

__all__ = ["CASES", "expect_refusal"]

CASES = Cases()

# Headers that a transport may add, and their allowed values (None: any).
MAY_ADD: dict[str, set[str] | None] = {
    "accept": {"*/*"},
    "accept-encoding": {"identity", ""},
    "connection": {"keep-alive"},
    "content-length": None,
    "host": None,
    "user-agent": None,
}


def _check_line(seen: Received, line: str) -> None:
    check(seen.line == line, f"got the request line {seen.line!r}; required: {line!r}")


def _same(seen: Received, sent: Request) -> None:
    """Check that a request arrived exactly as it was sent."""
    _check_line(seen, f"{sent.method} {sent.target} HTTP/1.1")
    check(
        seen.body == sent.body,
        f"got a different body, of {len(seen.body)} bytes; required: the {len(sent.body)} bytes of the request",
    )
    names = [name.lower() for name, _ in seen.headers]
    check(len(names) == len(set(names)), f"got the headers {sorted(names)}; required: each name once")
    for name, value in sent.headers.items():
        check(seen.header(name) == value, f"got header {name} {seen.header(name)!r}; required: {value!r}")
    host = sent.origin.partition("://")[2].partition("/")[0]
    check(seen.header("Host") == host, f"got Host {seen.header('Host')!r}; required: {host!r}")
    length = str(len(sent.body))
    given = seen.header("Content-Length")
    check(given == length, f"got Content-Length {given!r}; required: {length!r}")
    for name, value in seen.headers:
        if name.lower() not in {each.lower() for each in sent.headers}:
            allowed = MAY_ADD.get(name.lower(), set())
            check(
                allowed is None or value.lower() in allowed,
                f"the transport added the header {name}: {value}; allowed: {sorted(MAY_ADD)}",
            )


@CASES.add("request: line, headers and body as asked for")
async def _as_asked(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        sent = request(server.url())
        await expect_response(transport, sent, times=2)
    for seen in server.requests:
        _same(seen, sent)


@CASES.add("request: quoted path and query byte for byte")
async def _quoted(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        sent = Request(
            origin=server.url(),
            path="/a%2Fb%25/%E7%A0%94%7e%41/;x=1,2",
            query={"sig": "aB b&c=%+/é", "n": "1"},
            headers={"Authorization": AUTHORIZATION},
            body=BODY,
        )
        await expect_response(transport, sent)
    line = "POST /a%2Fb%25/%E7%A0%94%7e%41/;x=1,2?sig=aB%20b%26c%3D%25%2B%2F%C3%A9&n=1 HTTP/1.1"
    _check_line(server.requests[0], line)


@CASES.add("request: the origin's own path comes first")
async def _prefix(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        sent = request(f"{server.url()}/gate%20way")
        await expect_response(transport, sent)
    _check_line(server.requests[0], f"POST /gate%20way{sent.target} HTTP/1.1")


@CASES.add("request: no query, no body")
async def _bare(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        sent = Request(origin=server.url(), path="/")
        await expect_response(transport, sent)
        await expect_response(transport, request(server.url()))
    _same(server.requests[0], sent)


@CASES.add("request: every byte in the body, and a megabyte of them")
async def _bodies(subject: Conformance) -> None:
    bodies = [bytes(range(256)), random.Random(1).randbytes(1_000_000)]  # noqa: S311  # no secret
    async with served(subject, reply(WHOLE)) as (server, transport):
        for body in bodies:
            await expect_response(transport, request(server.url(), body=body))
    check([seen.body for seen in server.requests] == bodies, "got different bodies; required: the bytes of the requests")


@CASES.add("request: no cookie is kept")
async def _cookies(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE, "200 OK", "Set-Cookie: session=1; Path=/")) as (server, transport):
        await expect_response(transport, request(server.url()), times=3)
    cookies = [seen.header("Cookie") for seen in server.requests]
    check(not any(cookies), "the transport sent a cookie back; required: no cookies")


@CASES.add("request: no password of this machine's user is sent", alone=True)
async def _netrc(subject: Conformance) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "netrc").write_text("default login user password word\n", encoding="utf-8")
        with environment({"NETRC": str(Path(folder) / "netrc"), "HOME": folder}):
            async with served(subject, reply(WHOLE)) as (server, transport):
                await expect_response(transport, request(server.url(), headers={}))
    check(not server.requests[0].header("Authorization"), "the transport added an Authorization from .netrc; required: none")


@CASES.add("request: many origins, each with connections of its own")
async def _origins(subject: Conformance) -> None:
    with RawServer(reply(b"1")) as one, RawServer(reply(b"2")) as two, RawServer(reply(b"3")) as three:
        async with subject.make() as transport:
            for server, body in [(one, b"1"), (two, b"2"), (three, b"3")] * 3:
                await expect_response(transport, request(server.url()), body)
        for server in (one, two, three):
            check_used(server, [0, 0, 0])


@CASES.add("request: an IPv6 address as origin")
async def _ipv6(subject: Conformance) -> None:
    try:
        with RawServer(host="::1"):
            pass
    except OSError as error:
        raise SkipTest("this machine has no ::1") from error
    async with served(subject, reply(WHOLE), host="::1") as (server, transport):
        sent = request(server.url())
        await expect_response(transport, sent, times=2)
    _same(server.requests[0], sent)
    check_used(server, [0, 0])


@CASES.add("request: over a UNIX socket, or the option is refused")
async def _unix(subject: Conformance) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "s")
        if not subject.unix:
            await expect_refusal(subject, uds=path)
            return
        async with served(subject, reply(WHOLE), path=path, options={"uds": path}) as (server, transport):
            sent = request("http://platform.example:8883")
            await expect_response(transport, sent, times=2)
            check_used(server, [0, 0])
        _same(server.requests[0], sent)
        async with subject.make(uds=str(Path(folder) / "missing")) as transport:
            await expect_error(transport, sent, NotSent)


async def expect_refusal(subject: Conformance, **option: str) -> None:
    """Check that a transport refuses an option with an error that names it."""
    (name,) = option
    with RawServer(reply(WHOLE)) as server:
        try:
            async with subject.make(**option) as transport:
                await transport.send(request(server.url()), timeout=REQUEST_TIMEOUT)
        except Exception as error:
            check(name in str(error), f"the error for the option {name} is: {error}; required: a text with {name!r}")
        else:
            raise NonConforming(f"the option {name} was accepted without effect; required: an error that names it")
        check(not server.requests, f"a request was sent although {name} is not supported; required: none")


@CASES.add("request: none before the transport is entered")
async def _before(subject: Conformance) -> None:
    with RawServer(reply(WHOLE)) as server:
        transport = subject.make()
        await expect_error(transport, request(server.url()), NotSent)
        check(not server.accepted, "a connection was opened before the transport was entered; required: none")
        async with transport:  # some libraries warn about objects that are never closed
            pass
