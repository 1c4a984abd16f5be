"""What a job decides, without a clock, a file or a platform: operations, verdicts, counts, and when it is over."""

from itertools import product

import attrs
import pytest
from hypothesis import given, strategies as st

from helpers.tables import each_row
from rbim import (
    AlreadyMember,
    AnswerTooLarge,
    ApiError,
    AuthenticationError,
    ClientClosed,
    Code,
    DeadlineExceeded,
    DeleteGroupMember,
    Dialect,
    Grade,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    NotFound,
    NotMember,
    NotSent,
    Outcome,
    ProtocolError,
    RbimError,
    Retry,
    Role,
    ServerTrouble,
    SetMemberRole,
    Throttled,
    TimestampExpired,
    Unanswered,
)
from rbim.bulk.failure_policy import Signal, Step, judge
from rbim.bulk.journal.facts import Loaded
from rbim.bulk.progress import RunCounts
from rbim.bulk.work import AccountState, Chunk, FailureReason, RequestState, Settlement, Work, failure_reason
from rbim.operations.fails import Fail
from rbim.operations.groups import Invited, Success

DIALECT = Dialect(already_reasons={"there already"})
THREE = Retry(attempts=3, random=lambda: 0.5)


def chunk_of(*accounts, **facts):
    known = {"id": 1, "group": "g", "user_name": None, "accounts": accounts}
    return Chunk(**known | facts)


def work_of(operation=InviteJoinGroup, dialect=DIALECT, **facts):
    return Work(operation=operation, dialect=dialect, **facts)


INVITATION = InviteJoinGroup(group_id="g", members=("a", "b"))
ASKED = InviteJoinGroup(group_id="g", members=("a", "b"), needs_confirmation=True)
REMOVAL = DeleteGroupMember(group_id="g", members=("a", "b"))
JOINING = JoinGroup(group_id="g", user_name="a")


# -------------------------------------------------------------------------------------------- work


@each_row(
    "operation, options, made",
    [
        (InviteJoinGroup, {}, InviteJoinGroup(group_id="g", members=("a", "b"))),
        (InviteJoinGroup, {"declared": "x", "user_name": "u"}, INVITATION),
        (DeleteGroupMember, {}, REMOVAL),
        (SetMemberRole, {"role": Role.ADMINISTRATOR}, SetMemberRole(group_id="g", member="a", role=Role.ADMINISTRATOR)),
        (JoinGroup, {"declared": "hello"}, JoinGroup(group_id="g", user_name="a", declared="hello")),
        (LogoutGroup, {}, LogoutGroup(group_id="g", user_name="a")),
    ],
)
def test_accounts_become_members_or_a_member_or_the_one_who_acts(operation, options, made):
    work = work_of(operation, options=options)
    several = "members" in {each.name for each in attrs.fields(operation)}
    op = work.make(chunk_of("a", "b") if several else chunk_of("a"))
    assert op == attrs.evolve(made, **options)
    assert work.chunk == (50 if several else 1)


def test_the_one_who_acts_is_the_rows_before_the_options():
    work = work_of(options={"user_name": "usual"})
    assert work.make(chunk_of("a", user_name="special")).user_name == "special"
    assert work.make(chunk_of("a")).user_name == "usual"
    assert work_of().make(chunk_of("a")).user_name is None


@each_row(
    "operation, limit, told, chunk",
    [
        (InviteJoinGroup, 50, None, 50),
        (InviteJoinGroup, 5, None, 5),
        (InviteJoinGroup, 5, 6, None),
        (InviteJoinGroup, 5, 1, 1),
        (DeleteGroupMember, 5, None, 5),
        (DeleteGroupMember, 5, 500, 500),
        (JoinGroup, 5, 2, None),
        (SetMemberRole, 5, 2, None),
        (InviteJoinGroup, 5, 0, None),
        (InviteJoinGroup, 5, True, None),
    ],
)
def test_a_request_holds_no_more_than_it_may(operation, limit, told, chunk):
    facts = {"options": {"role": Role.MEMBER} if operation is SetMemberRole else {}}
    facts |= {} if told is None else {"chunk": told}
    dialect = Dialect(invite_limit=limit)
    if chunk is None:
        with pytest.raises(InvalidRequest) as caught:
            work_of(operation, dialect, **facts)
        assert caught.value.field == "chunk"
    else:
        assert work_of(operation, dialect, **facts).chunk == chunk


# ----------------------------------------------------------------------------------------- answers


ENTRIES = st.lists(
    st.builds(
        lambda member, reason: Fail(member=member, reason=reason),
        st.sampled_from(["a", "b", "c", "stranger", ""]),
        st.sampled_from(["there already", "never logged in", ""]),
    ),
    max_size=6,
)


@given(ENTRIES, st.booleans())
def test_an_answer_settles_each_account_once(fails, resent):
    chunk = chunk_of("a", "b", "c", resent=resent)
    settlement = work_of().answered(chunk, Invited(fails=tuple(fails)))
    others = AccountState.UNKNOWN if {entry.member for entry in fails} - {"a", "b", "c"} else AccountState.DONE
    assert settlement.state is others
    assert (settlement.reason is None) is (others is AccountState.DONE)
    states = dict.fromkeys(chunk.accounts, others)
    for place, state, reason in settlement.individual:
        account = chunk.accounts[place]
        assert states[account] is others  # nobody twice
        states[account] = state
        if state is AccountState.DONE:
            states[account] = "was there"
        assert reason.text == next(entry.reason for entry in fails if entry.member == account)
    for account, state in states.items():
        said = next((entry.reason for entry in fails if entry.member == account), None)
        after_loss = "was there" if said == "there already" else AccountState.UNKNOWN
        there = after_loss if resent else AccountState.REFUSED
        assert state == (others if said is None else there)
    strangers = [(entry.member, entry.reason) for entry in fails if entry.member not in chunk.accounts]
    assert [(account, reason.text) for account, reason in settlement.anomalies] == strangers
    assert settlement.outcome is RequestState.ANSWERED


def test_of_an_entry_without_a_reason_the_other_fields_are_shown():
    entry = Fail(member="a", extra={"why": 1})
    ((_, _, reason),) = work_of().answered(chunk_of("a"), Invited(fails=(entry,))).individual
    assert reason.text == '{"why": 1}'


@each_row("name", ["fails", "fail", "Fails"])
def test_a_removal_that_lists_failures_is_unknown(name):
    answer = Success(extra={name: [{"member": "a", "reason": "r"}], "more": 1})
    settlement = work_of(DeleteGroupMember).answered(chunk_of("a", "b"), answer)
    assert (settlement.state, settlement.individual) == (AccountState.UNKNOWN, ())
    assert "a" in settlement.anomalies[0][0]
    for nothing in ({}, {"fails": []}, {"fails": ""}, {"more": 1}):
        done = work_of(DeleteGroupMember).answered(chunk_of("a", "b"), Success(extra=nothing))
        assert done == Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE)


@each_row("text", ["\ud800 half a pair", "two\nlines", "x" * 10_000, "\x1b[31mred", "\N{RIGHT-TO-LEFT OVERRIDE}x"])
def test_what_the_platform_says_fits_into_a_file_and_a_line(text):
    entries = (Fail(member="a", reason=text), Fail(member=text, reason=text))
    settlement = work_of().answered(chunk_of("a"), Invited(fails=entries))
    ((_, _, reason),), ((account, other),) = settlement.individual, settlement.anomalies
    for kept in (*reason, *other, account, failure_reason(ApiError(text, code="999123")).text):
        assert kept.isprintable()
        assert len(kept) <= 503
        kept.encode()


# ---------------------------------------------------------------------------------------- verdicts


def judged(error, *, op=INVITATION, chunk=None, retry=THREE, **facts):
    return judge(op, chunk or chunk_of(*getattr(op, "members", ("a",)), **facts), error, retry=retry, dialect=DIALECT)


ODD = ApiError("odd", code="999123")
GONE = NotFound("no such group", code="900404")
BUSY = Throttled("busy", code="160016")
TOO_MANY = Throttled("", code="", status=429, retry_after=7.0)
DIVIDED = ServerTrouble("trouble", code="529999")
BAD_GATEWAY = ProtocolError("HTTP 502")

SENT_AGAIN = (Step.AGAIN, RequestState.NOT_SENT, None)
REFUSED_AGAIN = (Step.AGAIN, RequestState.REFUSED, None)
LOST = ((Step.AGAIN, RequestState.UNKNOWN, None), (Step.SETTLED, RequestState.UNKNOWN, AccountState.UNKNOWN))
FAILED = (Step.SETTLED, RequestState.REFUSED, AccountState.FAILED)

CASES = [
    # error, what the pace is told, and (step, outcome, state of the accounts) of an invitation; of one not to be repeated
    (NotSent("refused"), Signal.LOST, SENT_AGAIN, SENT_AGAIN),
    (DeadlineExceeded("late"), Signal.NOTHING, SENT_AGAIN, SENT_AGAIN),
    (DeadlineExceeded("late", outcome=Outcome.UNKNOWN), Signal.LOST, *LOST),
    (Unanswered("reset"), Signal.LOST, *LOST),
    (AnswerTooLarge("much"), Signal.LOST, *LOST),
    (BAD_GATEWAY, Signal.LOST, *LOST),
    (DIVIDED, Signal.LOST, *LOST),
    (TOO_MANY, Signal.THROTTLED, REFUSED_AGAIN, REFUSED_AGAIN),
    (BUSY, Signal.THROTTLED, REFUSED_AGAIN, FAILED),
    (ODD, Signal.ANSWERED, *2 * [(Step.SPLIT, RequestState.REFUSED, None)]),
    (GONE, Signal.ANSWERED, FAILED, FAILED),  # no half of its accounts is to blame
    (InvalidRequest("no", field="members"), Signal.NOTHING, *2 * [(Step.SPLIT, RequestState.NOT_SENT, None)]),
    (AuthenticationError("no", code="111109"), Signal.ANSWERED, *2 * [(Step.STOP, RequestState.REFUSED, None)]),
    (TimestampExpired("old", code="161106"), Signal.ANSWERED, REFUSED_AGAIN, REFUSED_AGAIN),
    (ClientClosed("closed"), Signal.NOTHING, *2 * [(Step.STOP, RequestState.NOT_SENT, None)]),
]


@each_row("error, signal, often, once", CASES)
def test_what_becomes_of_a_request_and_what_the_pace_is_told(error, signal, often, once):
    for op, expected in ((INVITATION, often), (ASKED, once)):
        decision = judged(error, op=op)
        assert (decision.step, decision.settlement.outcome, decision.settlement.state) == expected
        assert decision.settlement.again == (decision.step in {Step.AGAIN, Step.STOP})
        assert decision.final == (decision.settlement.state is not None)
        assert decision.settlement.reason.error == type(error).__name__
        assert decision.signal is signal
    alone = judged(error, op=JOINING)  # a request of one account is not halved
    assert alone.step is (Step.SETTLED if often[0] is Step.SPLIT else once[0])


ERRORS = [error for error, *_ in CASES] + [
    NotMember("not there", code="560072"),
    AlreadyMember("there", code="590017"),
    Throttled("busy", code="160016", status=503, outcome=Outcome.UNKNOWN),
    AuthenticationError("no", code="111109", status=500, outcome=Outcome.UNKNOWN),
    ClientClosed("closed", outcome=Outcome.UNKNOWN),
    RbimError("something", outcome=Outcome.REFUSED),
]


@each_row(
    "error, op, resent, lost, expired",
    product(ERRORS, [INVITATION, ASKED, REMOVAL, JOINING], (False, True), (0, 1, 2), (False, True)),
)
def test_laws_of_all_verdicts(error, op, resent, lost, expired):
    facts = {"resent": resent, "unknown_attempts": lost, "expired": expired}
    decision = judged(error, op=op, **facts)
    settlement = decision.settlement
    if settlement is None:  # it stays open
        assert decision.step is Step.STOP
        assert error.outcome is Outcome.UNKNOWN
        return
    if decision.step is Step.AGAIN and error.outcome is Outcome.UNKNOWN:
        assert op in (INVITATION, REMOVAL), "what must not be repeated"
        assert facts["unknown_attempts"] < 2, "three attempts"
    if settlement.state is AccountState.FAILED:
        assert error.outcome is not Outcome.UNKNOWN
        assert not facts["resent"], "an earlier one may have had its effect"
    if settlement.state is AccountState.DONE:
        assert facts["resent"]
        assert error.code in DIALECT.already_so[op.spec.name]
    if decision.step is Step.SETTLED:
        assert settlement.state is not None
        assert not settlement.again
    if isinstance(error, Throttled) and error.outcome is Outcome.REFUSED and decision.step is Step.AGAIN:
        assert not decision.final
        assert settlement.outcome is RequestState.REFUSED  # which costs no attempt
    assert decision.pause >= 0
    if isinstance(error, TimestampExpired):  # it is made anew once
        assert (decision.step, decision.expired) == ((Step.STOP, False) if expired else (Step.AGAIN, True))
    else:
        assert not decision.expired


@each_row(
    "before_effect, status, step",
    [(True, 200, Step.AGAIN), (False, 200, Step.SETTLED), (True, 429, Step.AGAIN), (False, 429, Step.AGAIN)],
)
def test_an_invitation_that_must_not_be_repeated_is_sent_again_if_its_code_comes_before_an_effect(
    before_effect, status, step
):
    code = Code(error=Throttled, grade=Grade.GUESS, note="", before_effect=before_effect)
    dialect = Dialect(codes={"160016": code})
    error = Throttled("busy", code="160016", status=status)
    decision = judge(ASKED, chunk_of("a", "b"), error, retry=THREE, dialect=dialect)
    assert (decision.step, decision.signal, decision.final) == (step, Signal.THROTTLED, step is Step.SETTLED)
    assert decision.settlement.state is (None if step is Step.AGAIN else AccountState.FAILED)
    unknown = Throttled("busy", code="999999", status=status)
    assert judge(ASKED, chunk_of("a", "b"), unknown, retry=THREE, dialect=dialect).final == (status == 200)


def test_a_chunk_that_was_never_sent_has_a_first_attempt_before_it_and_nothing_behind_it():
    chunk = chunk_of("a")
    assert (chunk.attempt, chunk.unknown_attempts, chunk.number) == (1, 0, 0)
    assert (chunk.resent, chunk.expired) == (False, False)
    assert (chunk.waited, chunk.ready_since) == (0, 0)
    assert [chunk.left, chunk.begun, chunk.repeats, chunk.operation, chunk.invalid] == [None] * 5
    assert work_of(LogoutGroup).make(chunk).user_name == "a"


@each_row(
    "op, error",
    [(INVITATION, AlreadyMember("there", code="590017")), (REMOVAL, NotMember("not there", code="560072"))],
)
def test_it_is_so_already_says_the_platform_after_a_lost_request(op, error):
    alone = chunk_of("a", resent=True)
    decision = judge(op, alone, error, retry=THREE, dialect=DIALECT)
    assert (decision.step, decision.settlement.state) == (Step.SETTLED, AccountState.DONE)
    assert (decision.signal, decision.settlement.outcome) == (Signal.ANSWERED, RequestState.ANSWERED)
    assert judge(op, chunk_of("a"), error, retry=THREE, dialect=DIALECT).settlement.state is AccountState.FAILED
    assert judged(error, op=op, resent=True).step is Step.SPLIT  # which of them it is about nobody knows
    swapped = NotMember("no", code="560072") if op is INVITATION else AlreadyMember("yes", code="590017")
    assert judged(swapped, op=op, resent=True).step is Step.SPLIT


# ------------------------------------------------------------------------------------------- tally


STATES = st.sampled_from([None, AccountState.DONE, AccountState.FAILED, AccountState.UNKNOWN])


@given(
    st.lists(st.tuples(st.integers(1, 5), STATES, st.integers(0, 5), st.booleans(), st.floats(0, 10)), max_size=30),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_counts_always_add_up(requests, bad, duplicates):
    accounts = sum(size for size, *_ in requests) + 2
    loaded = Loaded(rows=accounts + bad + duplicates, bad=bad, duplicates=duplicates, digest="")
    counts = dict.fromkeys(AccountState, 0) | {AccountState.WAITING: accounts - 1, AccountState.AGAIN: 1}
    run_counts = RunCounts(loaded, counts, 0.0)
    now = busy = 0.0
    samples = []
    for size, state, individual, throttled, seconds in requests:
        run_counts.change_in_flight(1, now)
        now += seconds
        busy += seconds
        run_counts.change_in_flight(-1, now)
        refused = (
            tuple((place, AccountState.REFUSED, FailureReason("no")) for place in range(min(individual, size)))
            if state is AccountState.DONE
            else ()
        )
        settlement = Settlement(outcome=RequestState.ANSWERED, state=state, individual=refused)
        run_counts.ended(settlement, size, throttled=throttled, final=state is AccountState.FAILED)
        samples.append(run_counts.sample(1000 + now, now, 7, None))
        seen = run_counts.snapshot("running", now, 7)
        parts = (seen.waiting, seen.done, seen.refused, seen.failed, seen.unknown, seen.skipped, seen.duplicate)
        assert sum(parts) == seen.total == loaded.rows
        assert min(parts) >= 0
    assert run_counts.requests == len(requests) == sum(each.requests for each in samples)
    assert (
        run_counts.failures
        == sum(each.failed for each in samples)
        == sum(state is AccountState.FAILED for _, state, *_ in requests)
    )
    assert sum(each.accounts for each in samples) == accounts - run_counts.waiting
    assert sum(each.in_flight * each.seconds for each in samples) == pytest.approx(busy)
