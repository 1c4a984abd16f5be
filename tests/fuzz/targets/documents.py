"""Documents from queues: operations, answers and errors as JSON, and the messages of an inbox on NATS servers."""

from __future__ import annotations

import json
import zlib
from datetime import datetime, time
from typing import Any

from rbim import (
    ApiError,
    Attempt,
    CreateCallTask,
    CreateGroup,
    GroupType,
    InviteJoinGroup,
    ModifyGroup,
    Outcome,
    Permission,
    ProtocolError,
    RbimError,
)
from rbim.callbacks.delivery import delivery_of
from rbim.errors import InvalidRequest
from rbim.jetstream.letters import Letter
from rbim.jetstream.messages import DEAD, MESSAGE_ID, dead_header, fitting, headers_of, stored
from rbim.operations.call_tasks import CallPolicy, Hours, NoCallPolicy
from rbim.operations.groups import Created, Invited
from rbim.wire.portable import (
    answer_from_json,
    answer_to_json,
    error_from_json,
    error_to_json,
    operation_from_json,
    operation_to_json,
)
from tests.fuzz.broken import require

WHAT = "documents from queues: operations, answers, errors, and the messages and dead letters of an inbox on NATS servers"
ORACLE = (
    "only InvalidRequest or ValueError; fields as the document has them and of their types; what is written is read again"
)
INSTRUMENT = ["rbim"]
MOST = 900
RECEIVED = "2026-01-02T03:04:05+00:00"
WORDS = [
    *(
        b'{"rbim":1,"operation":"CreateGroup","values":{',
        b'"answer":{',
        b'"error":"ApiError"',
        b'"outcome":"unknown"',
        b'"attempts":[',
    ),
    *(
        b'"group_id":"g1"',
        b'"members":["1001"]',
        b'"notes":[]',
        b'"fields":{',
        b'"class":"Hours"',
        b'"message":""',
        b'"body":"AAA="',
    ),
    *(
        b'"permission":null',
        b"2026-01-05",
        b"10:00:00",
        b"+08:00[Asia/Shanghai]",
        b"true",
        b"1.0",
        b"null",
        b'"\\ud83d"',
        b"[[[[",
    ),
    *(
        b"Rbim: [",
        b"Rbim-Packed: 1",
        b'Rbim-Dead: [1,"e"]',
        b"Nats-Msg-Id: x",
        b"traceparent: x",
        b"\n\n",
        RECEIVED.encode(),
        b"Infinity",
    ),
]


def seeds() -> list[bytes]:
    """Return documents of each kind; the first byte says which."""
    task = CreateCallTask(
        bot_id=1,
        task_name="a",
        start_date=datetime.fromisoformat(RECEIVED).date(),
        end_date=datetime.fromisoformat(RECEIVED).date(),
        max_concurrent=2,
        min_concurrent=1,
        caller="1",
        call_policy=[CallPolicy((NoCallPolicy(name="n", period=Hours(start=time(12), end=time(14))),))],
    )
    operations = [
        CreateGroup(name="a", type=GroupType.TEMPORARY, permission=Permission.OPEN),
        InviteJoinGroup(group_id="g1", members=["1001", "1002"], needs_confirmation=False),
        ModifyGroup(group_id="g1", name="a", permission=None),
        task,
    ]
    failure = ApiError("no", code="111109", status=200, body=b"{}", retry_after=1.0, outcome=Outcome.REFUSED)
    failure.attempts = (Attempt(number=1, elapsed=0.5, status=200, outcome=Outcome.UNKNOWN, error="ApiError"),)
    failure.add_note("a note")
    errors = [failure, ProtocolError("no", status=502, body=b"x"), InvalidRequest("a: b", field="a", limit=3, length=4)]
    answers = [(operations[0], Created(group_id="g1")), (operations[1], Invited(invited=("1001",), unknown=("1002",)))]
    documents = [
        *((0, operation_to_json(each)) for each in operations),
        *((1, answer_to_json(*each)) for each in answers),
        *((2, error_to_json(each)) for each in errors),
    ]
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
    return [*(bytes([kind]) + json.dumps(each).encode() for kind, each in documents), *(b"\x03" + each for each in written)]


def check(data: bytes) -> None:
    """Read one document."""
    if not data:
        return
    kind = data[0] & 3
    if kind == 3:
        _message(data[1:])
        return
    try:
        document = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    (_operation, _answer, _error)[kind](document)


def _operation(document: Any) -> None:
    try:
        op = operation_from_json(document)
    except InvalidRequest as error:
        str(error)
        return
    require(type(op).spec.name == document["operation"], "another operation", op, document)
    for name, value in document["values"].items():
        mine = getattr(op, name)
        if isinstance(value, bool) or value is None:
            require(mine is value, f"{name} has another value", mine, value)
        elif isinstance(value, str) and type(mine) is str:
            require(mine == value, f"{name} has another value", mine, value)
        elif isinstance(value, int) and isinstance(mine, (int, float)):
            require(mine == value and not isinstance(mine, bool), f"{name} has another value", mine, value)
    require(operation_from_json(_through_json(operation_to_json(op))) == op, "an operation changes as JSON", op)


def _answer(document: Any) -> None:
    try:
        answer = answer_from_json(document)
    except InvalidRequest as error:
        str(error)
        return
    name = document["operation"]
    kind = next(each.operation for each in _catalogue() if each.operation.spec.name == name)
    again = answer_from_json(_through_json(answer_to_json(kind, answer)))
    require(again == answer, "an answer changes as JSON", answer, again)


def _catalogue() -> Any:
    from rbim.operations import catalogue

    return catalogue.entries()


def _error(document: Any) -> None:
    try:
        error = error_from_json(document)
    except InvalidRequest as refused:
        str(refused)
        return
    require(isinstance(error, RbimError) and type(error).__name__ == document["error"], "another error", error)
    str(error), repr(error)
    written = _through_json(error_to_json(error))
    again = error_from_json(written)
    require(_through_json(error_to_json(again)) == written, "an error changes as JSON", error, written)


def _through_json(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


def _message(data: bytes) -> None:
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
