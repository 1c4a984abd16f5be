"""Requests to a scripted server, and what becomes of them."""

import pytest
from anyio import to_thread

from rbim import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.http import Request

PATH = "/2013-12-26/Application/a1/IM/Group/QueryGroupDetail"
BODY = b'{"groupId":"g1"}'
ENOUGH = 10.0
SHORT = 0.25


async def became(server, fits):
    return await to_thread.run_sync(server.wait_until, fits)


async def is_left(server):
    return await became(server, lambda server: not server.open)


def request(origin, *, body=BODY, repeatable=True):
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json;charset=utf-8",
        "Authorization": "YTE6MjAyNg==",
    }
    return Request(origin=origin, path=PATH, query={"sig": "0A1B2C"}, headers=headers, body=body, repeatable=repeatable)


async def failure(transport, sent, timeout=ENOUGH):
    with pytest.raises(TransportError) as raised:
        await transport.send(sent, timeout=timeout)
    assert type(raised.value) in {NotSent, Unanswered, AnswerTooLarge}
    return type(raised.value)
