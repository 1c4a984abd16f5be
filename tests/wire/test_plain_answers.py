"""Answers that say nothing but their success, in bytes that said so before: the same as if read each time."""

from attrs import frozen
from hypothesis import given, settings, strategies as st

from helpers.fixed_clock import FixedClock
from helpers.tables import each_row
from rbim import ApiError, Dialect, ProtocolError, Response
from rbim.operations.base import Answer, operation
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


@frozen(kw_only=True)
class Count(Answer):
    """An answer without a field for unknown fields."""

    count: int = 0


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


@operation("Counted")
@frozen(kw_only=True)
class Counted(GroupOperation[Count]):
    pass


def test_answers_of_ones_own_are_read_in_the_same_way_each_time():
    def read_by_hand(converter):
        converter.register_structure_hook(Success, lambda *_: Success(extra={"by": "hand"}))

    for op, hooks, expected in ((Counted(), None, Count()), (DELETE, read_by_hand, Success(extra={"by": "hand"}))):
        codec = make(hooks)
        assert [codec.decode(op, Response(200, {}, PLAIN)) for _ in range(3)] == [expected] * 3


@each_row(
    "body, extra",
    [(PLAIN, {}), (b'{"statusCode":"000000","statusMsg":"ok"}', {"statusMsg": "ok"}), (LISTED, {"statusMsg": ["ok"]})],
)
def test_answers_of_the_same_bytes_share_nothing_that_can_be_changed(body, extra):
    codec = make()
    for _ in range(3):
        answer = codec.decode(INVITE, Response(200, {}, body))
        assert (answer, answer.extra) == (Invited(invited=("1001",), extra=extra), extra)
        for value in answer.extra.values():
            if isinstance(value, list):
                value.clear()
        answer.extra["mine"] = 1
