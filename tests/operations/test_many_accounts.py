"""``groups.invite_all`` and ``groups.remove_all``: every account in exactly one state, whatever becomes of the requests."""

import pytest
from anyio import CancelScope, sleep
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.emulators import box, client_of
from helpers.tables import each_row
from rbim import (
    AlreadyMember,
    AuthenticationError,
    Character,
    DeadlineExceeded,
    DeleteGroupMember,
    Dialect,
    Fail,
    Groups,
    GroupType,
    InvalidRequest,
    Invited,
    InviteJoinGroup,
    NotMember,
    Outcome,
    Success,
    Unanswered,
)
from rbim.operations.groups import PARALLEL


class Platform:
    """A sender that answers each request by its first account: with an answer, or with an error to raise."""

    def __init__(self, limit=50, ends=None):
        self.dialect = Dialect(invite_limit=limit, character=Character.UTF16_UNIT)
        self.ends = ends or {}
        self.requests = []
        self.in_flight = self.most = 0

    async def send(self, operation, /):
        self.requests.append(operation.members)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await checkpoint()
            end = self.ends.get(operation.members[0], DONE)
        finally:
            self.in_flight -= 1
        if isinstance(end, Exception):
            raise end
        return end(operation)


def done(operation):
    return Invited(invited=operation.members) if isinstance(operation, InviteJoinGroup) else Success()


def one_refused(operation):
    first, *others = operation.members
    return Invited(invited=tuple(others), fails=(Fail(member=first, account=first, reason="absent"),))


def unattributed(operation):
    return Invited(unknown=operation.members, fails=(Fail(member="?"),))


DONE = done


def names(*numbers):
    return tuple(f"a{number}" for number in numbers)


async def test_over_the_emulator_no_account_is_lost():
    emulator = box()
    emulator.never_logged_in("a77")
    members = list(names(*range(120)))
    async with client_of(emulator) as client:
        group = (await client.groups.create(name="团队", type=GroupType.VIP)).group_id
        answer = await client.groups.invite_all(group_id=group, members=members * 2)
        assert set(answer.invited) == {*members} - {"a77"}
        assert (*answer.refused,) == ("a77",)
        assert (answer.unknown, answer.errors) == ((), {})
        assert {*emulator.state.groups[group].members} == {"admin", *answer.invited}
        removed = await client.groups.remove_all(group_id=group, members=answer.invited)
        assert removed.removed == answer.invited
        assert (removed.refused, removed.unknown, removed.errors) == ({}, (), {})
        assert [*emulator.state.groups[group].members] == ["admin"]
        absent = await client.groups.remove_all(group_id=group, members=["a1"])
        assert isinstance(absent.errors["a1"], NotMember)
        assert absent.refused == {"a1": absent.errors["a1"].message}


async def test_a_removal_of_which_an_unread_field_tells_failures_is_unknown():
    platform = Platform(limit=2, ends={"a1": lambda _: Success(extra={"failList": ["a1"]})})
    answer = await Groups(platform).remove_all(group_id="g1", members=names(1, 2, 3))
    assert (answer.removed, answer.unknown, answer.refused) == (("a3",), ("a1", "a2"), {})
    assert answer.to_dict() == {"removed": ["a3"], "refused": {}, "unknown": ["a1", "a2"], "errors": {}}


LOST = Unanswered("no answer")
BUSY = DeadlineExceeded("no turn", outcome=Outcome.NOT_SENT)
LATE = DeadlineExceeded("no answer in time", outcome=Outcome.UNKNOWN)
ALREADY = AlreadyMember("is a member", code="590017")


@each_row(
    "end, invited, refused, unknown, error",
    [
        (done, ("a2", "a3"), {}, (), None),
        (one_refused, ("a3",), {"a2": "absent"}, (), None),
        (unattributed, (), {}, ("a2", "a3"), None),
        (LOST, (), {}, ("a2", "a3"), LOST),
        (LATE, (), {}, ("a2", "a3"), LATE),
        (BUSY, (), {"a2": "no turn", "a3": "no turn"}, (), BUSY),
        (ALREADY, (), {"a2": ALREADY.message, "a3": ALREADY.message}, (), ALREADY),
    ],
)
async def test_what_becomes_of_the_accounts_of_one_request(end, invited, refused, unknown, error):
    platform = Platform(limit=2, ends={"a2": end})
    answer = await Groups(platform).invite_all(group_id="g1", members=names(*range(6)))
    assert answer.invited == ("a0", "a1", *invited, "a4", "a5")
    assert answer.refused == refused
    assert answer.unknown == unknown
    assert answer.errors == ({} if error is None else {"a2": error, "a3": error})
    assert platform.requests == [("a0", "a1"), ("a2", "a3"), ("a4", "a5")]


async def test_every_field_is_in_every_request():
    sent = []

    class Sender:
        async def send(self, operation, /):
            sent.append(operation)
            return done(operation)

    members = names(*range(60))
    answer = await Groups(Sender()).invite_all(
        group_id="g1", members=members, needs_confirmation=True, declared="hello", user_name="boss"
    )
    assert answer.invited == members
    fields = {"group_id": "g1", "needs_confirmation": True, "declared": "hello", "user_name": "boss"}
    assert sent == [InviteJoinGroup(members=part, **fields) for part in (members[:50], members[50:])]
    sent.clear()
    await Groups(Sender()).remove_all(group_id="g1", members=members, user_name="boss")
    assert sent == [
        DeleteGroupMember(group_id="g1", members=part, user_name="boss") for part in (members[:50], members[50:])
    ]


REFUSED = AuthenticationError("wrong credentials", code="161102")


async def test_after_refused_credentials_no_further_request_is_sent_and_what_was_done_is_told():
    """Those that are in flight at that moment end as they end."""
    platform = Platform(limit=1, ends={"a3": REFUSED})
    answer = await Groups(platform).invite_all(group_id="g1", members=names(*range(30)))
    sent = {each for (each,) in platform.requests}
    assert {"a0", "a1", "a2"} <= set(answer.invited) == sent - {"a3"}
    assert len(sent) < 2 * PARALLEL
    assert answer.errors["a3"] is REFUSED
    assert {each for each, error in answer.errors.items() if error.outcome is Outcome.NOT_SENT} == (
        set(names(*range(30))) - sent
    )
    assert {*answer.refused} == {*answer.errors}


@each_row(
    "options, match",
    [
        ({"members": "1001"}, "bare str"),
        ({"members": []}, "at least one account"),
        ({"members": ["1", ""]}, "not empty"),
        ({"group_id": ""}, "group_id"),
        ({"declared": "😀" * 30}, "declared: at most 50 UTF-16 units"),
    ],
)
async def test_what_is_wrong_is_refused_before_anything_is_sent(options, match):
    platform = Platform()
    with pytest.raises(InvalidRequest, match=match):
        await Groups(platform).invite_all(**{"group_id": "g1", "members": ["1"], **options})
    assert platform.requests == []


async def test_a_cancelled_caller_leaves_no_request_behind():
    began, ended = [], []

    class Slow:
        dialect = Dialect(invite_limit=1)

        async def send(self, operation, /):
            began.append(operation)
            if len(began) == PARALLEL:
                scope.cancel()
            try:
                await sleep(3600)
            finally:
                ended.append(operation)

    with CancelScope() as scope:
        await Groups(Slow()).invite_all(group_id="g1", members=names(*range(20)))
    assert scope.cancelled_caught
    assert len(ended) == len(began) == PARALLEL


async def test_an_error_of_a_sender_that_is_none_of_rbims_is_raised_as_it_is():
    platform = Platform(limit=1, ends={"a1": KeyError("a1")})
    with pytest.raises(KeyError):
        await Groups(platform).invite_all(group_id="g1", members=names(*range(20)))
    assert platform.in_flight == 0


ENDS = st.sampled_from([done, one_refused, unattributed, LOST, BUSY, LATE, REFUSED])


@settings(max_examples=60, deadline=None)
@given(
    numbers=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    limit=st.integers(1, 7),
    ends=st.dictionaries(st.integers(0, 40), ENDS),
)
async def test_every_account_is_in_exactly_one_state(numbers, limit, ends):
    platform = Platform(limit=limit, ends={f"a{number}": end for number, end in ends.items()})
    answer = await Groups(platform).invite_all(group_id="g1", members=names(*numbers))
    states = [*answer.invited, *answer.refused, *answer.unknown]
    assert sorted(states) == sorted(set(names(*numbers)))
    assert {*answer.errors} <= {*answer.refused, *answer.unknown}
    sent = [account for request in platform.requests for account in request]
    assert len(set(sent)) == len(sent)
    assert {*answer.invited, *answer.unknown} <= set(sent)
    assert all(len(request) <= limit for request in platform.requests)
    assert platform.most <= PARALLEL
