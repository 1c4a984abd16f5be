"""Answers, events, reports and errors as JSON values: each public class, with any values in its fields."""

import importlib
import inspect
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from enum import Enum
from math import inf, nan
from types import UnionType
from typing import Any, Union, get_args, get_origin

import attrs
import pytest

from rbim import (
    Answer,
    ApiError,
    Attempt,
    Fail,
    GroupDetail,
    GroupType,
    InvalidRequest,
    Invited,
    Outcome,
    Permission,
    RbimError,
    Throttled,
)
from rbim._support.json_values import ToDict, json_values
from rbim.bulk import Report
from rbim.bulk.input.rows import BadRow
from rbim.callbacks import Account, Event, parse
from rbim.credentials import Credentials
from rbim.emulator.logs import DeliveryAttempt, RecordedRequest

MODULES = ["rbim", "rbim.bulk", "rbim.callbacks", "rbim.operations", "rbim.emulator.logs"]
PUBLIC = {
    each
    for module in map(importlib.import_module, MODULES)
    for name in dir(module)
    if not name.startswith("_") and inspect.isclass(each := getattr(module, name)) and each.__module__.startswith("rbim")
}
CLASSES = sorted(
    # a RecordedRequest has an operation, whose fields depend on its class
    (each for each in PUBLIC if issubclass(each, ToDict) and each not in (Answer, RecordedRequest, ToDict)),
    key=lambda each: each.__name__,
)
NAMES = {"Mapping": Mapping, "datetime": datetime, "BadRow": BadRow}  # those that a module imports for type checkers only
SIMPLE = {
    str: "群\x00\ud83d",
    int: 2**70,
    float: nan,
    bool: True,
    bytes: b"\xff\xe7\xbe\xa4",
    datetime: datetime(2026, 1, 2, 3, tzinfo=UTC),
    date: date(2026, 1, 2),
    time: time(3, 4),
    Account: Account("app", "1001"),
}
ANYTHING = {"list": [1, {"deep": None}], "when": datetime(2026, 1, 2, tzinfo=UTC), "n": inf, 3: {Outcome.REFUSED}}


def value_of(kind: Any) -> Any:
    """Return a value of a type that is hard to write as JSON."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return value_of(arguments[0])
    if origin is tuple:
        return (value_of(arguments[0]),) * 2
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return next(iter(kind))
    if attrs.has(kind) and kind is not Account:
        return filled(kind)
    if inspect.isclass(kind) and issubclass(kind, tuple):
        return kind(*map(value_of, inspect.get_annotations(kind, eval_str=True).values()))
    return SIMPLE.get(kind, ANYTHING)


def filled(kind: type) -> Any:
    """Return a value of an attrs class with a value in each field."""
    return kind(**{a.alias: value_of(a.type) for a in attrs.fields(attrs.resolve_types(kind, localns=NAMES)) if a.init})


def error_of(kind: type[RbimError]) -> RbimError:
    error = kind("the message")
    error.operation, error.attempts = "CreateGroup", (filled(Attempt),)
    error.body = error.__dict__.get("body", b"") or b"\xff"
    return error


def strictly(document: Any) -> None:
    """Check that a document has JSON values only."""
    kinds = {type(document)} | ({type(each) for each in document.values()} if isinstance(document, dict) else set())
    assert kinds <= {str, int, float, bool, type(None), list, dict}
    for each in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        strictly(each)


def test_the_public_classes_are_found():
    assert {Event, Report, RbimError, Invited, Throttled, DeliveryAttempt} <= set(CLASSES)
    assert len(CLASSES) > 50


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_answer_event_report_and_error_is_written_as_json(kind):
    document = (error_of(kind) if issubclass(kind, RbimError) else filled(kind)).to_dict()
    strictly(document)
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_fields_of_an_answer_are_written_by_the_documented_rules():
    when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    detail = GroupDetail(name="群", date_created=when, permission=Permission.OPEN, type="9", extra={"tags": ["a", None]})
    assert detail.to_dict() == {
        "name": "群",
        "owner": "",
        "declared": "",
        "count": None,
        "count_text": "",
        "date_created": "2026-01-02T03:04:00+00:00",
        "date_created_text": "",
        "permission": "0",
        "target": None,
        "type": "9",
        "group_domain": None,
        "extra": {"tags": ["a", None]},
    }
    fail = {"member": "app#2", "reason": "r", "account": "2"}
    invited = Invited(invited=("1",), fails=(Fail(member="app#2", reason="r", account="2"),))
    assert invited.to_dict() == {"invited": ["1"], "unknown": [], "fails": [fail]}


@pytest.mark.parametrize("msg_type", ["TEXT", "NEW"])
def test_an_event_has_accounts_as_text_and_its_document_only_if_it_is_unknown(msg_type):
    body = {"convType": "TEAM", "msgType": msg_type, "fromAccount": "app#1001", "tMembers": ["1002"], "more": {"x": 1}}
    event = parse(json.dumps(body).encode())
    document = event.to_dict()
    expected = {
        "conv_type": "TEAM",
        "msg_type": msg_type,
        "from_account": "app#1001",
        "t_members": ["1002"],
        "resend_flag": False,
    }
    assert {name: document[name] for name in expected} == expected
    assert document["extra"] == {"more": {"x": 1}}
    assert document.get("document") == (body if msg_type == "NEW" else None)


def test_an_error_has_its_class_its_outcome_and_all_it_carries():
    error = Throttled("slow", code="160016", status=429, body=b"\xff{}", retry_after=inf)
    error.operation = "CreateGroup"
    error.attempts = (Attempt(number=1, elapsed=0.5, status=429, outcome=Outcome.REFUSED, error="Throttled"),)
    error.add_note("a note")
    assert error.to_dict() == {
        "class": "Throttled",
        "outcome": "refused",
        "docs": "errors#throttled",
        "message": "HTTP 429, code 160016: slow",
        "operation": "CreateGroup",
        "client": "",
        "code": "160016",
        "platform_message": "slow",
        "status": 429,
        "body": "\\xff{}",
        "retry_after": None,
        "attempts": [{"number": 1, "elapsed": 0.5, "status": 429, "code": None, "outcome": "refused", "error": "Throttled"}],
    }
    assert InvalidRequest("no", field="name", limit=50, length=51).to_dict()["limit"] == 50
    assert ApiError(outcome=Outcome.UNKNOWN).to_dict()["outcome"] == "unknown"


def test_a_secret_is_never_written():
    assert "the-token" not in json.dumps(json_values({"x": Credentials(app_id="app", app_token="the-token")}))


@attrs.frozen
class Tagged(Answer):
    """An answer of an application: with types that JSON does not have."""

    kinds: frozenset[GroupType] = frozenset({GroupType.VIP})
    by_kind: Mapping[Any, Any] = attrs.field(factory=lambda: {GroupType.VIP: 1j, 2: (nan, b"\xe7\xbe\xa4")})


def test_an_answer_of_an_application_is_written_whatever_its_types():
    assert Tagged().to_dict() == {"kinds": ["4"], "by_kind": {"4": "1j", "2": [None, "群"]}}
