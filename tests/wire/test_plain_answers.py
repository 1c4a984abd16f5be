"""Answers that say nothing but their success, in bytes that said so before: read once, and the same as if read each time."""

from typing import Any

import pytest
from attrs import field, frozen
from hypothesis import given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from rbim import ApiError, Dialect, ProtocolError, Response
from rbim._support import json
from rbim.operations.base import Answer, operation, wire
from rbim.operations.groups import (
    CreateGroup,
    DeleteGroup,
    GroupOperation,
    GroupType,
    Invited,
    InviteJoinGroup,
    QueryGroupDetail,
    SearchPublicGroups,
    Success,
)
from rbim.wire.codec import Codec


def make(hooks=None):
    return Codec(app_id="app", base_url="https://host:8883", dialect=Dialect(), clock=FixedClock(), hooks=hooks)


def decode(op, body, codec):
    return codec.decode(op, Response(200, {}, body))


DELETE = DeleteGroup(group_id="g1")
INVITE = InviteJoinGroup(group_id="g1", members=["1001"])
CREATE = CreateGroup(name="a", type=GroupType.VIP)
PLAIN = b'{"statusCode":"000000"}'
LISTED = b'{"statusCode":"000000","statusMsg":["ok"]}'


def outcome_of(op, response, codec):
    try:
        return codec.decode(op, response)
    except (ApiError, ProtocolError) as error:
        return type(error), str(error), error.outcome


ASKED = [DELETE, INVITE, CREATE, SearchPublicGroups(name="a"), QueryGroupDetail(group_id="g1")]
SAID = [
    PLAIN,
    b'{"statusCode": "000000"}',
    b'{"statusCode":"000000","statusMsg":"ok"}',
    b'{"statusCode":"000000","statusMsg":"another"}',
    b'{"statusCode":"000000","statusMsg":null}',
    LISTED,
    b'{"statusMsg":"ok"}',
    b'{"statusCode":"000000","fails":[]}',
    b'{"statusCode":"000000","fails":[{"member":"1001","reason":"x"}]}',
    b'{"statusCode":"000000","groupId":"g1"}',
    b'{"statusCode":"000000","groups":""}',
    b'{"statusCode":"000000","more":null}',
    b'{"statusCode":"000001"}',
    b"",
]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ASKED), st.sampled_from([200, 200, 200, 500, 404]), st.sampled_from(SAID))))
def test_what_came_before_changes_no_answer(exchanges):
    codec = make()
    for op, status, body in exchanges:
        response = Response(status, {}, body)
        assert outcome_of(op, response, codec) == outcome_of(op, response, make())


@pytest.mark.parametrize(
    ("body", "extra"),
    [(PLAIN, {}), (b'{"statusCode":"000000","statusMsg":"ok"}', {"statusMsg": "ok"}), (LISTED, {"statusMsg": ["ok"]})],
)
def test_answers_of_the_same_bytes_share_nothing_that_can_be_changed(body, extra):
    codec = make()
    for _ in range(3):
        answer = decode(INVITE, body, codec)
        assert (answer, answer.extra) == (Invited(invited=("1001",), extra=extra), extra)
        for value in answer.extra.values():
            if isinstance(value, list):
                value.clear()
        answer.extra["mine"] = 1


def test_bytes_that_came_before_name_the_accounts_of_each_request():
    codec = make()
    for members in (("1001",), ("1002", "1003"), ("1001",)):
        answer = decode(InviteJoinGroup(group_id="g1", members=members), PLAIN, codec)
        assert answer == Invited(invited=members)


@frozen
class Odd(Answer):
    flag: Any = field(default=False, metadata=wire(read=lambda value: value))
    note: str = field(default="", eq=False)
    extra: dict = field(factory=dict)


@operation("Odd")
@frozen(kw_only=True)
class AskOdd(GroupOperation[Odd]):
    pass


@pytest.mark.parametrize(
    ("body", "flag", "note"), [(b'"flag":0', 0, ""), (b'"note":"new"', False, "new"), (b'"x":1', False, "")]
)
def test_what_merely_equals_a_default_is_not_taken_for_it(body, flag, note):
    codec = make()
    for _ in range(2):
        answer = decode(AskOdd(), b'{"statusCode":"000000",' + body + b"}", codec)
        assert (answer.flag, type(answer.flag), answer.note) == (flag, type(flag), note)
        assert answer.extra == ({"x": 1} if b"x" in body else {})


@frozen
class Numbered(Answer):
    number: int = field(factory=iter(range(100)).__next__)


@operation("Numbered")
@frozen(kw_only=True)
class AskNumbered(GroupOperation[Numbered]):
    pass


def test_a_default_that_is_another_each_time_stays_so():
    codec = make()
    numbers = [decode(AskNumbered(), PLAIN, codec).number for _ in range(3)]
    assert len(set(numbers)) == 3


def test_an_answer_that_says_but_its_success_is_read_once(monkeypatch):
    codec = make()
    read = []
    monkeypatch.setattr(json, "loads", lambda body, loads=json.loads: read.append(body) or loads(body))
    with_message = b'{"statusCode":"000000","statusMsg":"ok"}'
    for body in (PLAIN, PLAIN, with_message, with_message, with_message):
        assert decode(DELETE, body, codec) == Success(extra={"statusMsg": "ok"} if body is with_message else {})
    assert len(read) == 2


def test_what_is_read_each_time_is_the_document_and_not_the_answer():
    """Hooks of one's own are asked again, and may refuse."""
    asked = []

    def hooks(converter):
        def read(_fields, _kind):
            asked.append(1)
            if len(asked) > 1:
                raise ValueError
            return Success()

        converter.register_structure_hook(Success, read)

    codec = make(hooks)
    assert decode(DELETE, PLAIN, codec) == Success()
    with pytest.raises(ProtocolError):
        decode(DELETE, PLAIN, codec)


@pytest.mark.parametrize("body", [None, bytearray(PLAIN), b" " * 2000 + PLAIN], ids=["none", "a buffer", "long"])
def test_what_a_transport_of_ones_own_gives_is_taken_as_it_is_each_time(body):
    for codec in (make(), make()):
        for _ in range(2):
            if body is None:
                with pytest.raises((AttributeError, TypeError)):
                    decode(DELETE, body, codec)
            else:
                assert decode(DELETE, body, codec) == Success()
    if isinstance(body, bytearray):
        body[:] = b'{"statusCode":"000009"}'
        with pytest.raises(ApiError):
            decode(DELETE, body, codec)


@frozen
class Elsewhere:
    """An answer that is none of ours."""

    text: str


def test_an_answer_need_not_be_one_of_ours():
    @operation("AskElsewhere")
    @frozen(kw_only=True)
    class AskElsewhere(GroupOperation[Elsewhere]):
        pass

    codec = make()
    for _ in range(2):
        assert decode(AskElsewhere(), b'{"statusCode":"000000","text":"x"}', codec) == Elsewhere("x")
