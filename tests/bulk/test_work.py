"""What a job decides, without a clock, a file or a platform: operations, verdicts, counts, and when it is over."""

from datetime import date
from itertools import product

import attrs
import pytest
from hypothesis import given, strategies as st

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
from rbim.bulk.failure_policy import Signal, Step, failed, judge
from rbim.bulk.journal.loading import Loaded
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


@pytest.mark.parametrize(
    ("operation", "options", "made"),
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


@pytest.mark.parametrize(
    ("operation", "limit", "told", "chunk"),
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


@pytest.mark.parametrize(
    ("operation", "word"),
    [(InviteJoinGroup, "invited"), (DeleteGroupMember, "removed"), (JoinGroup, "joined"), (LogoutGroup, "left")],
)
def test_each_operation_has_its_word(operation, word):
    assert work_of(operation).done_word == word


def test_any_other_has_a_word_as_well():
    assert work_of(SetMemberRole, options={"role": Role.MEMBER}).done_word == "done"


@given(st.builds(Role, st.sampled_from(list(Role))), st.none() | st.text(max_size=50))
def test_options_come_back_from_json(role, declared):
    for operation, options in ((SetMemberRole, {"role": role}), (InviteJoinGroup, {"declared": declared})):
        work = work_of(operation, options=options)
        again = Work.of(operation, work.plain_options(), work.chunk, DIALECT)
        assert again == work
        assert again.plain_options() == work.plain_options()
        assert [type(value) for value in again.options.values()] == [type(value) for value in options.values()]


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


@pytest.mark.parametrize("name", ["fails", "fail", "Fails"])
def test_a_removal_that_lists_failures_is_unknown(name):
    answer = Success(extra={name: [{"member": "a", "reason": "r"}], "more": 1})
    settlement = work_of(DeleteGroupMember).answered(chunk_of("a", "b"), answer)
    assert (settlement.state, settlement.individual) == (AccountState.UNKNOWN, ())
    assert "a" in settlement.anomalies[0][0]
    for nothing in ({}, {"fails": []}, {"fails": ""}, {"more": 1}):
        done = work_of(DeleteGroupMember).answered(chunk_of("a", "b"), Success(extra=nothing))
        assert done == Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE)


def test_an_answer_without_a_list_is_well():
    assert work_of(JoinGroup).answered(chunk_of("a"), Success()) == Settlement(
        outcome=RequestState.ANSWERED, state=AccountState.DONE
    )


@pytest.mark.parametrize(
    "text", ["\ud800 half a pair", "two\nlines", "x" * 10_000, "\x1b[31mred", "\N{RIGHT-TO-LEFT OVERRIDE}x"]
)
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

CASES = [
    # error, invitation, invitation that must not be repeated: (step, outcome, state of the accounts)
    (NotSent("refused"), (Step.AGAIN, RequestState.NOT_SENT, None), (Step.AGAIN, RequestState.NOT_SENT, None)),
    (DeadlineExceeded("late"), (Step.AGAIN, RequestState.NOT_SENT, None), (Step.AGAIN, RequestState.NOT_SENT, None)),
    (
        DeadlineExceeded("late", outcome=Outcome.UNKNOWN),
        (Step.AGAIN, RequestState.UNKNOWN, None),
        (Step.SETTLED, RequestState.UNKNOWN, AccountState.UNKNOWN),
    ),
    (
        Unanswered("reset"),
        (Step.AGAIN, RequestState.UNKNOWN, None),
        (Step.SETTLED, RequestState.UNKNOWN, AccountState.UNKNOWN),
    ),
    (
        AnswerTooLarge("much"),
        (Step.AGAIN, RequestState.UNKNOWN, None),
        (Step.SETTLED, RequestState.UNKNOWN, AccountState.UNKNOWN),
    ),
    (BAD_GATEWAY, (Step.AGAIN, RequestState.UNKNOWN, None), (Step.SETTLED, RequestState.UNKNOWN, AccountState.UNKNOWN)),
    (DIVIDED, (Step.AGAIN, RequestState.UNKNOWN, None), (Step.SETTLED, RequestState.UNKNOWN, AccountState.UNKNOWN)),
    (TOO_MANY, (Step.AGAIN, RequestState.REFUSED, None), (Step.AGAIN, RequestState.REFUSED, None)),
    (BUSY, (Step.AGAIN, RequestState.REFUSED, None), (Step.SETTLED, RequestState.REFUSED, AccountState.FAILED)),
    (ODD, (Step.SPLIT, RequestState.REFUSED, None), (Step.SPLIT, RequestState.REFUSED, None)),
    (
        GONE,  # no half of its accounts is to blame
        (Step.SETTLED, RequestState.REFUSED, AccountState.FAILED),
        (Step.SETTLED, RequestState.REFUSED, AccountState.FAILED),
    ),
    (
        InvalidRequest("no", field="members"),
        (Step.SPLIT, RequestState.NOT_SENT, None),
        (Step.SPLIT, RequestState.NOT_SENT, None),
    ),
    (
        AuthenticationError("no", code="111109"),
        (Step.STOP, RequestState.REFUSED, None),
        (Step.STOP, RequestState.REFUSED, None),
    ),
    (
        TimestampExpired("old", code="161106"),
        (Step.AGAIN, RequestState.REFUSED, None),
        (Step.AGAIN, RequestState.REFUSED, None),
    ),
    (ClientClosed("closed"), (Step.STOP, RequestState.NOT_SENT, None), (Step.STOP, RequestState.NOT_SENT, None)),
]
NAMES = [type(error).__name__ for error, *_ in CASES]


@pytest.mark.parametrize(("error", "often", "once"), CASES, ids=NAMES)
def test_what_becomes_of_a_request(error, often, once):
    for op, expected in ((INVITATION, often), (ASKED, once)):
        decision = judged(error, op=op)
        assert (decision.step, decision.settlement.outcome, decision.settlement.state) == expected
        assert decision.settlement.again == (decision.step in {Step.AGAIN, Step.STOP})
        assert decision.final == (decision.settlement.state is not None)
        assert decision.settlement.reason.error == type(error).__name__


SIGNALS = {
    NotSent: Signal.LOST,
    Unanswered: Signal.LOST,
    AnswerTooLarge: Signal.LOST,
    ProtocolError: Signal.LOST,
    ServerTrouble: Signal.LOST,
    Throttled: Signal.THROTTLED,
    ApiError: Signal.ANSWERED,
    NotFound: Signal.ANSWERED,
    AuthenticationError: Signal.ANSWERED,
    TimestampExpired: Signal.ANSWERED,
    InvalidRequest: Signal.NOTHING,
    ClientClosed: Signal.NOTHING,
}


@pytest.mark.parametrize("error", [error for error, *_ in CASES], ids=NAMES)
def test_what_the_pace_is_told(error):
    expected = SIGNALS.get(type(error)) or (Signal.LOST if error.outcome is Outcome.UNKNOWN else Signal.NOTHING)
    assert judged(error).signal is expected
    assert judged(error, op=ASKED).signal is expected


ERRORS = [error for error, *_ in CASES] + [
    NotMember("not there", code="560072"),
    AlreadyMember("there", code="590017"),
    Throttled("busy", code="160016", status=503, outcome=Outcome.UNKNOWN),
    AuthenticationError("no", code="111109", status=500, outcome=Outcome.UNKNOWN),
    ClientClosed("closed", outcome=Outcome.UNKNOWN),
    RbimError("something", outcome=Outcome.REFUSED),
]


@pytest.mark.parametrize("op", [INVITATION, ASKED, REMOVAL, JOINING])
def test_laws_of_all_verdicts(op):
    for error, resent, lost, expired in product(ERRORS, (False, True), (0, 1, 2), (False, True)):
        check_laws(error, op, {"resent": resent, "unknown_attempts": lost, "expired": expired})


def check_laws(error, op, facts):
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


def test_a_request_of_one_account_is_not_halved():
    decision = judged(GONE, op=JOINING)
    assert (decision.step, decision.settlement.state, decision.final) == (Step.SETTLED, AccountState.FAILED, True)
    assert "no such group" in decision.settlement.reason.text
    assert decision.settlement.reason.code == "900404"


@pytest.mark.parametrize(
    ("before_effect", "status", "step"),
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
    assert (chunk.waited, chunk.due, chunk.ready_since) == (0, 0, 0)
    assert [chunk.left, chunk.begun, chunk.mark, chunk.repeats, chunk.operation, chunk.invalid] == [None] * 6


@pytest.mark.parametrize(("lost", "again"), [(0, True), (1, True), (2, False)])
def test_attempts_are_those_of_unknown_outcome(lost, again):
    for error in (Unanswered("reset"), DeadlineExceeded("late", outcome=Outcome.UNKNOWN), BAD_GATEWAY):
        decision = judged(error, unknown_attempts=lost, attempt=50)
        assert (decision.step is Step.AGAIN) == again
        assert decision.final != again
        for never_mind in (NotSent("no"), BUSY, TOO_MANY):
            assert judged(never_mind, unknown_attempts=lost, attempt=50).step is Step.AGAIN


def test_pauses_are_those_of_the_retry_policy():
    assert judged(Unanswered("reset")).pause == pytest.approx(0.1)
    assert judged(Unanswered("reset"), unknown_attempts=1).pause == pytest.approx(0.2)
    assert judged(TOO_MANY).retry_after == 7.0
    assert judged(TOO_MANY).pause == 7.0
    assert judged(BUSY).pause == 1.0  # throttled, without a Retry-After
    asked = ServerTrouble("trouble", code="529999", status=503, retry_after=4.0)
    assert judged(asked).pause == pytest.approx(4.1)


def test_a_request_that_was_not_sent_says_nothing_but_that_it_waits():
    decision = judged(NotSent("refused"))
    assert (decision.pause, decision.retry_after) == (1.0, None)
    assert (decision.final, decision.expired, decision.whole_group) == (False, False, False)


def test_an_old_timestamp_is_made_anew_once():
    old = TimestampExpired("old", code="161106")
    first, second = judged(old), judged(old, expired=True)
    assert (first.step, first.expired, second.step, second.expired) == (Step.AGAIN, True, Step.STOP, False)


@pytest.mark.parametrize(
    ("op", "error"),
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


def test_who_may_have_been_reached_before_is_unknown():
    assert (failed(chunk_of("a")), failed(chunk_of("a", resent=True))) == (AccountState.FAILED, AccountState.UNKNOWN)


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


def test_a_request_that_stays_open_settles_nobody():
    run_counts = RunCounts(
        Loaded(rows=3, bad=0, duplicates=0, digest=""), dict.fromkeys(AccountState, 0) | {AccountState.WAITING: 3}, 0.0
    )
    run_counts.ended(None, 3, throttled=False, final=False)
    seen = run_counts.snapshot("running", 1.0, 1)
    assert (seen.waiting, seen.requests) == (3, 1)
    assert seen.eta is None


def test_the_present_rate_is_that_of_the_last_ten_seconds():
    run_counts = RunCounts(
        Loaded(rows=2000, bad=0, duplicates=0, digest=""), dict.fromkeys(AccountState, 0) | {AccountState.WAITING: 2000}, 0.0
    )
    for second in range(1, 41):
        for _ in range(20 if second <= 20 else 2):
            run_counts.ended(
                Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE), 4, throttled=False, final=False
            )
        run_counts.sample(float(second), float(second), 1, None)
    seen = run_counts.snapshot("running", 40.0, 1)
    assert (seen.rate, seen.request_rate) == (pytest.approx(8.0), pytest.approx(2.0))
    assert seen.eta == pytest.approx((2000 - 4 * (400 + 40)) / 8.0)
    assert seen.elapsed == 40.0


def test_options_that_json_has_not():
    """Checked here for dates, which no built-in operation takes."""
    from rbim.operations.base import operation
    from rbim.operations.groups import GroupOperation

    @operation("Expire")
    @attrs.frozen(kw_only=True)
    class Expire(GroupOperation[Success]):
        group_id: str = attrs.field()
        on: date = attrs.field()

    work = work_of(Expire, options={"on": date(2026, 1, 2)})
    assert work.plain_options() == {"on": "2026-01-02"}
