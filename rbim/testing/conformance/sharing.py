"""Conformance cases about a transport that several clients of one event loop enter.

Either it stays open until the last of them has left, or it refuses the second one with a RuntimeError.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from threading import Event
from typing import TYPE_CHECKING

from anyio import create_task_group

from rbim.errors import NotSent
from rbim.testing.conformance.case import (
    WHOLE,
    Cases,
    Conformance,
    all_closed,
    check,
    eventually,
    expect_error,
    expect_response,
    request,
    served,
)
from rbim.testing.conformance.server import PATIENCE, Peer, RawServer, Received, reply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from rbim.http import Transport

__all__ = ["CASES"]

CASES = Cases()


@asynccontextmanager
async def _entered_once_more(transport: Transport) -> AsyncGenerator[bool]:
    """Enter an open transport; give False if it refuses."""
    try:
        await transport.__aenter__()
    except RuntimeError:
        yield False
        return
    try:
        yield True
    finally:
        await transport.__aexit__(None, None, None)


@CASES.add("shared: entered twice and left once, it keeps its connections open")
async def _left_once(subject: Conformance) -> None:
    async with served(subject, reply(WHOLE)) as (server, transport):
        async with _entered_once_more(transport):
            await expect_response(transport, request(server.url()))
        await expect_response(transport, request(server.url()))
        check(server.accepted == 1, f"2 sequential requests used {server.accepted} connections; required: 1")


@CASES.add("shared: who leaves does not end the requests of others")
async def _others_go_on(subject: Conformance) -> None:
    may_answer = Event()

    def answer(peer: Peer, _: Received) -> None:
        may_answer.wait(PATIENCE)
        peer.send(reply(WHOLE))

    async with served(subject, answer) as (server, transport), create_task_group() as tasks:
        async with _entered_once_more(transport):
            tasks.start_soon(expect_response, transport, request(server.url()))
            await eventually(server, lambda server: server.requests)
        may_answer.set()


@CASES.add("shared: after the last one has left nothing is sent, and no connection stays open")
async def _left_by_all(subject: Conformance) -> None:
    with RawServer(reply(WHOLE)) as server:
        async with subject.make() as transport, _entered_once_more(transport):
            await expect_response(transport, request(server.url()))
        await expect_error(transport, request(server.url()), NotSent)
        check(await all_closed(server), "a connection stays open after the last one has left; required: none")


@CASES.add("shared: left by all, it is entered again, or refuses that")
async def _again(subject: Conformance) -> None:
    with RawServer(reply(WHOLE)) as server:
        async with (transport := subject.make()):
            await expect_response(transport, request(server.url()))
        with suppress(RuntimeError):
            async with transport:
                await expect_response(transport, request(server.url()))
        check(await all_closed(server), "a connection stays open after the transport was closed; required: none")
