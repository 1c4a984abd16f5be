"""The messages of an inbox on NATS servers."""

from __future__ import annotations

import json
import zlib
from datetime import datetime

from rbim.callbacks.delivery import delivery_of
from rbim.jetstream.archive import Letter
from rbim.jetstream.messages import DEAD, MESSAGE_ID, dead_header, fitting, headers_of, stored
from tests.fuzz.broken import require

WHAT = "the messages and dead letters of an inbox on NATS servers"
ORACLE = "only ValueError; fields of their types; what is written is read again"
INSTRUMENT = ["rbim"]
MOST = 900
RECEIVED = "2026-01-02T03:04:05+00:00"
WORDS = [
    b"Rbim: [",
    b"Rbim-Packed: 1",
    b'Rbim-Dead: [1,"e"]',
    b"Nats-Msg-Id: x",
    b"traceparent: x",
    b"\n\n",
    RECEIVED.encode(),
    b"true",
    b"null",
    b"1.0",
    b'"\\ud83d"',
    b"[[[[",
    b"Infinity",
]


def seeds() -> list[bytes]:
    """Return messages of events, of dead letters, and of packed ones."""
    delivery = delivery_of(
        b'{"convType":"TEAM","to":"g1","msgType":"TEXT","msgId":"7"}', app_id="a", received=datetime.fromisoformat(RECEIVED)
    )
    messages = []
    for extra in ({}, {DEAD: dead_header(3, "Traceback: x")}, {"traceparent": "x"}):
        headers = {**headers_of(delivery, "7.8", number=7, replays=1), **extra}
        messages.append((headers, fitting(headers, delivery.body, 100_000)))
    messages.append(({**headers_of(delivery, "7.8"), "Rbim-Packed": "1"}, zlib.compress(delivery.body)))
    written = [
        b"".join(f"{name}: {value}\n".encode() for name, value in headers.items()) + b"\n" + content
        for headers, content in messages
    ]
    long = json.dumps([delivery.key, "c", "a", RECEIVED, "Text", "TEXT", None, 0, 0])
    written.append(f"Rbim: {len(long)}\n\n{long}{{}}".encode())
    return written


def check(data: bytes) -> None:
    """Read one message."""
    head, _, content = data.partition(b"\n\n")
    lines = [line.partition(": ") for line in head.decode("latin-1").split("\n")]
    headers = {name: value for name, colon, value in lines if colon}
    try:
        found = stored(7, headers, content)
    except ValueError:
        found = None
    try:
        letter = Letter("stream", _Message(7, headers, content))
    except ValueError:
        letter = None
    if found is None:
        require(letter is None, "a letter without an event", letter)
        return
    delivery = found.delivery
    texts = (delivery.key, delivery.conversation, delivery.app_id, delivery.msg_type, found.kind)
    require(all(isinstance(each, str) for each in texts), "a field that is no text", found)
    require(delivery.problem is None or isinstance(delivery.problem, str), "a problem that is no text", found)
    numbers = (found.number, found.replays)
    require(all(type(each) is int and each >= 0 for each in numbers), "a number that is none", found)
    require(delivery.received.tzinfo is not None, "a time without a zone", found)
    again = headers_of(delivery, headers.get(MESSAGE_ID, ""), kind=found.kind, number=found.number, replays=found.replays)
    require(
        stored(7, {**found.headers, **again}, fitting(again, delivery.body, 1_000_000)) == found, "a message changes", found
    )
    if letter is not None:
        shown = letter.shown
        require(letter.is_dead == (DEAD in headers) != shown.quarantined, "a letter of another kind", shown)
        require(type(shown.attempts) is int and isinstance(shown.error, str), "a letter with other fields", shown)
        require(shown.body == delivery.body and letter.readable.body == delivery.body, "a letter with another body", shown)


class _Message:
    """A stored message, as nats-py returns it."""

    def __init__(self, sequence: int, headers: dict[str, str], data: bytes) -> None:
        self.seq = sequence
        self.headers = headers
        self.data = data
