"""Conformance cases about bytes behind a response over TLS: the connection must not be used again while any are pending.

The library may have read, or decrypted, a record while the socket has nothing more to read. A session ticket behind a
response is no reason to close the connection.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from rbim.errors import Unanswered
from rbim.testing.conformance.case import Cases, Conformance, check, expect_response, request, served
from rbim.testing.conformance.server import PATIENCE, Peer, Received, reply
from rbim.testing.conformance.tls import authority
from rbim.testing.conformance.tls_records import ServerRecords

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CASES"]

CASES = Cases()

TIMES = 10
MOMENT = 0.02  # seconds
WRONG = reply(b"wrong")
HALF = WRONG[: len(WRONG) // 2]


async def _exchanges(
    subject: Conformance,
    script: Callable[[Peer, Received, ServerRecords], object],
    pause: float,
    *,
    refusable: bool = False,
) -> int:
    """Send requests one after the other, and return the number of connections they used.

    With ``pause`` (seconds) the client waits for the end of the script before the next request, and then so long. If
    ``refusable``, a response may be Unanswered, because of the bytes behind it.
    """
    done = threading.Semaphore(0)

    with ServerRecords(authority().of_a_server()) as records:

        def scripted(peer: Peer, received: Received) -> None:
            peer.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a second segment may wait for a request
            script(peer, received, records)
            done.release()

        async with served(subject, scripted, greet=records.greet, options=authority().trusted_by(subject)) as (
            server,
            transport,
        ):
            for number in range(TIMES):
                body = b"%d" % number
                with suppress(Unanswered) if refusable else nullcontext():
                    await expect_response(transport, request(server.url("https"), body=body), body)
                if pause:
                    await to_thread.run_sync(partial(done.acquire, timeout=PATIENCE))
                    await anyio.sleep(pause)
    return len({each.connection for each in server.requests})


def _in_one_segment(*behind: bytes | None) -> Callable[[Peer, Received, ServerRecords], object]:
    return lambda peer, received, records: records.send(peer, reply(received.body), *behind)


def _later(pause: float, *behind: bytes | None) -> Callable[[Peer, Received, ServerRecords], object]:
    """Return a script that responds, and sends each record in a segment of its own after a pause in seconds."""

    def script(peer: Peer, received: Received, records: ServerRecords) -> None:
        records.send(peer, reply(received.body))
        for each in behind:
            if pause:
                time.sleep(pause)
            records.send(peer, each)

    return script


async def _not_used_again(
    subject: Conformance, script: Callable[[Peer, Received, ServerRecords], object], pause: float
) -> None:
    connections = await _exchanges(subject, script, pause, refusable=True)
    check(
        connections == TIMES,
        f"{TIMES} requests used {connections} connections; required: a new one for each, because something came behind "
        "each response",
    )


BEHIND: dict[str, tuple[bytes | None, ...]] = {
    "an unrequested answer": (WRONG,),
    "half an unrequested answer": (HALF,),
    "an unrequested answer in two TLS records": (HALF, WRONG[len(HALF) :]),
    "one byte": (b"x",),
    "close_notify": (None,),
}
for _name, _behind in BEHIND.items():
    CASES.add(f"discarded: {_name} over TLS, in one segment with another one", "tls")(
        partial(_not_used_again, script=_in_one_segment(*_behind), pause=0.0)
    )
    for _pause in (0.0, 0.0003, 0.01):
        CASES.add(f"discarded: {_name} over TLS, {_pause * 1000:g} ms behind another one", "tls")(
            partial(_not_used_again, script=_later(_pause, *_behind), pause=MOMENT)
        )


@CASES.add("TLS: a connection is used again after a session ticket behind a response", "tls")
async def _tickets(subject: Conformance) -> None:
    connections = await _exchanges(
        subject, lambda peer, received, records: records.send_with_ticket(peer, reply(received.body)), MOMENT
    )
    check(connections == 1, f"{TIMES} requests used {connections} connections; required: 1, because no data was pending")
