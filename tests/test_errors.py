"""The exceptions: the tree as it is drawn, what each carries, and that all of it survives pickle and copy."""

import copy
import inspect
import pickle
import re

import pytest

from helpers.paths import ROOT
from helpers.tables import each_row
from rbim import errors
from rbim.errors import (
    AnswerTooLarge,
    ApiError,
    Attempt,
    DeadlineExceeded,
    InvalidRequest,
    NotSent,
    Outcome,
    ProtocolError,
    RbimError,
    ServerTrouble,
    Throttled,
    Unanswered,
)

CLASSES = {
    name: value for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, BaseException)
}


# ---------------------------------------------------------------------------------------- the tree


def drawn():
    """Yield the drawing's rows: the class, its parent, and the second base that stands in brackets."""
    above = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(?: \(also (\w+)\))?(?:  |$)", line)
        if found:
            depth = len(found[1]) // 4
            del above[depth:]
            yield found[2], above[-1] if above else "Exception", found[3]
            above.append(found[2])


def test_the_drawing_shows_every_class():
    assert {name for name, _, _ in drawn()} == set(CLASSES)
    assert len(list(drawn())) == len(CLASSES)


@each_row("name, parent, also", list(drawn()))
def test_the_tree_is_as_it_is_drawn(name, parent, also):
    bases = [base.__name__ for base in CLASSES[name].__bases__]
    assert bases == [parent, *([also] if also else []), *(["ToDict"] if name == "RbimError" else [])]


def test_callers_may_catch_what_python_calls_it():
    with pytest.raises(ValueError, match="no"):
        raise InvalidRequest("no", field="name")
    with pytest.raises(TimeoutError):
        raise DeadlineExceeded("late")
    assert not issubclass(ApiError, (ValueError, OSError))


# ----------------------------------------------------------------------------------- documentation

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")


def slug(heading):
    """Return the anchor that GitHub and MyST give to a heading."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


ANCHORS = [slug(heading) for heading in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)]


@each_row("name", CLASSES)
def test_every_class_has_a_section_of_its_own_in_the_documentation(name):
    page, _, anchor = CLASSES[name]("m").docs.partition("#")
    assert page == "errors"
    assert ANCHORS.count(anchor) == 1
    assert f"\n### {name}\n" in PAGE


# ---------------------------------------------------------------------------------------- outcomes

DEFAULTS = {
    "RbimError": "not sent",
    "InvalidRequest": "not sent",
    "TransportError": "unknown",
    "NotSent": "not sent",
    "Unanswered": "unknown",
    "AnswerTooLarge": "unknown",
    "ProtocolError": "unknown",
    "IntermediaryError": "unknown",
    "ApiError": "refused",
    "AuthenticationError": "refused",
    "TimestampExpired": "refused",
    "Throttled": "refused",
    "NotFound": "refused",
    "AlreadyMember": "refused",
    "NotMember": "refused",
    "ServerTrouble": "unknown",
    "DeadlineExceeded": "not sent",
    "ClientClosed": "not sent",
    "CallbackRejected": "not sent",
}


@each_row("name", CLASSES)
def test_what_is_known_of_the_effect_unless_told(name):
    assert CLASSES[name]("m").outcome is Outcome(DEFAULTS[name])


@each_row(
    "one, other, both",
    [
        ("not sent", "not sent", "not sent"),
        ("not sent", "refused", "refused"),
        ("not sent", "unknown", "unknown"),
        ("refused", "refused", "refused"),
        ("refused", "unknown", "unknown"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_two_attempts_are_as_uncertain_as_the_less_certain_one(one, other, both):
    assert Outcome(one) | Outcome(other) is Outcome(both)
    assert Outcome(other) | Outcome(one) is Outcome(both)


# ----------------------------------------------------------------------------------- pickle and copy


class OfOnesOwn(ApiError):
    """A user's class with a constructor like no other."""

    def __init__(self, first, second, *, third):
        super().__init__(f"{first} {second}", code="1")
        self.third = third


MADE = [
    RbimError("m", outcome=Outcome.REFUSED),
    InvalidRequest("m", field="name", limit=50, length=51),
    NotSent("m"),
    Unanswered("m"),
    AnswerTooLarge("m", limit=8),
    ProtocolError("why", status=502, body=b"<html>", retry_after=2.5),
    errors.IntermediaryError("why", status=403, body=b"<html>", server="squid", outcome=Outcome.REFUSED),
    ApiError("no", code="112310", status=500, body=b"{}", retry_after=1.0, outcome=Outcome.UNKNOWN),
    *(kind("no", code="112310", body=b"{}") for name, kind in CLASSES.items() if issubclass(kind, ApiError)),
    DeadlineExceeded("late", outcome=Outcome.UNKNOWN),
    errors.ClientClosed("closed"),
    errors.CallbackRejected("no"),
    errors.TransportError("lost"),
    OfOnesOwn("a", "b", third={"x": 1}),
    RbimError(),
]


def test_every_class_is_among_those_that_are_tried():
    assert {type(error) for error in MADE} >= set(CLASSES.values())


def again(error):
    return pickle.loads(pickle.dumps(error))


def twice(error):
    return again(again(error))


@each_row("renewed", [again, twice, copy.copy, copy.deepcopy])
@each_row("made", MADE)
def test_an_error_survives_pickle_and_copy_with_all_it_carries(made, renewed):
    error = renewed(made)  # fresh for each test: what follows must not change the one above
    error.operation = "CreateGroup"
    error.attempts = (
        Attempt(number=1, elapsed=0.5, outcome=Outcome.NOT_SENT, error="NotSent"),
        Attempt(number=2, elapsed=1.0, status=200, code="112310", outcome=Outcome.REFUSED, error="ApiError"),
    )
    error.add_note("not tried again")
    copied = renewed(error)
    assert type(copied) is type(made)
    assert vars(copied) == vars(error)
    assert copied.__notes__ == ["not tried again"]
    assert (str(copied), repr(copied), copied.args) == (str(error), repr(error), error.args)
    assert copied.outcome is error.outcome
    assert copied.args == made.args


# ------------------------------------------------------------------------------------------- words


def test_an_error_says_operation_attempts_and_outcome():
    error = ApiError("no such group", code="112310")
    assert str(error) == "code 112310: no such group"
    error.operation = "DeleteGroup"
    assert str(error) == "DeleteGroup: code 112310: no such group"
    error.attempts = (Attempt(number=1, elapsed=0.1),)
    assert str(error) == "DeleteGroup: code 112310: no such group (1 attempt, outcome refused)"
    error.attempts *= 2
    error.outcome |= Outcome.UNKNOWN
    assert str(error) == "DeleteGroup: code 112310: no such group (2 attempts, outcome unknown)"


@each_row(
    "error, text",
    [
        (ApiError(), "no code"),
        (ApiError(status=404), "HTTP 404, no code"),
        (ApiError("x", code="1", status=400), "HTTP 400, code 1: x"),
        (Throttled(code="160001"), "code 160001"),
        (ServerTrouble("x"), "no code: x"),
        (ProtocolError("not JSON", status=502, body=b"<html>\n"), "HTTP 502, not JSON: '<html>'"),
        (
            ProtocolError("why", body=b" \x1b[31m\x00 \r\n\t " + "研发".encode() + b"\xff"),
            "why: '\ufffd[31m\ufffd 研发\ufffd'",
        ),
        (ProtocolError("why", body=b"x" * 120), f"why: '{'x' * 120}'"),
        (ProtocolError("why", body=b"x" * 1_000_000), f"why: '{'x' * 120}...'"),
        (ProtocolError("why", body=b" " * 1000 + b"x"), "why: '...'"),
        (ProtocolError("an empty answer", status=200), "HTTP 200, an empty answer"),
        (ProtocolError("why"), "why"),
        (AnswerTooLarge("more than 8 bytes", limit=8), "more than 8 bytes"),
    ],
)
def test_what_an_answer_becomes_in_words(error, text):
    assert str(error) == text
