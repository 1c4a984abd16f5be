"""Jobs against the emulator: what the journal says is what the platform did, whatever went wrong on the way."""

import asyncio
import gc
import json
import sqlite3
import time
from collections import Counter, deque
from contextlib import closing
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import field, frozen
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from helpers.jobs import (
    AGAIN,
    DONE,
    FAILED,
    NO_PAUSES,
    REFUSED,
    UNKNOWN,
    WAITING,
    Sending,
    World,
    begun,
    count,
    read,
    reasons,
    rows_of,
    script,
    states,
    whole,
    world,
)
from rbim import (
    ApiError,
    AsyncClient,
    AuthenticationError,
    ClientClosed,
    CreateGroup,
    DeleteGroupMember,
    Dialect,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    NotSent,
    Rate,
    Repeat,
    Retry,
    Role,
    SetMemberRole,
    Throttled,
    TimestampExpired,
    Unanswered,
)
from rbim.bulk.job import InviteJob, Job, RemoveJob, open_job
from rbim.bulk.loading import BATCH
from rbim.emulator import Emulator
from rbim.emulator.faults import (
    Code,
    CutShort,
    InvalidJson,
    Latency,
    Refuse,
    ResetAfter,
    ResetBefore,
    Status,
    Throttle,
)
from rbim.groups import Fail, GroupOperation, Invited, Success
from rbim.operation import Method, Namespace, operation

# ------------------------------------------------------------------------------------------- means


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "journal"


# -------------------------------------------------------------------------- whatever goes wrong

ACCOUNTS = st.integers(0, 11).map(lambda number: f"a{number}")
GROUPS = st.sampled_from(["first", "second", "missing"])
GOOD = st.tuples(GROUPS, ACCOUNTS) | st.tuples(GROUPS, ACCOUNTS, st.sampled_from([None, "admin", "deputy"]))
BAD = st.sampled_from(
    [("first",), ("", "a1"), ("first", ""), ("first", ["a1"]), "first,a1", 5, None, ("a\nb", "a1"), {"group": 1, "b": 2}]
)
ROWS = st.lists(GOOD | GOOD | GOOD | BAD, max_size=40)
EFFECTS = st.sampled_from(
    [
        Refuse(),
        ResetBefore(),
        ResetAfter(),
        Status(500),
        Status(502),
        Status(503, retry_after=2),
        Status(429, retry_after=1),
        CutShort(0.5),
        InvalidJson(),
        Throttle(3),
        Throttle(2, retry_after=2),
        Throttle(2, code="160016"),
        Code("999123"),
        Code("529999"),
        Code("160016"),
        Latency(0.3),
    ]
)
FAULTS = st.lists(
    st.tuples(EFFECTS, st.fixed_dictionaries({"probability": st.floats(0, 1), "times": st.integers(0, 12)})), max_size=5
)
LOSING = {"reset_before", "reset_after", "keep", "invalid_json"}
LONG = settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
SHORT = settings(LONG, max_examples=20)


async def live_through(  # noqa: PLR0915  # one life, looked at from all sides
    rows, faults, unlucky, *, chunk, concurrency, isolate, fuse, confirm, already_fails, stop_at=None
):
    dialect = Dialect(invited_member_fails=already_fails)
    async with world(2, dialect=dialect) as it:
        names = dict(zip(("first", "second"), it.groups, strict=True))

        def named(row):
            return (names.get(row[0], row[0]), *row[1:]) if isinstance(row, tuple) else row

        it.emulator.never_logged_in(*unlucky)
        for effect, how in faults:
            it.plan(effect, **how)
        given = [named(row) for row in rows]
        known = {*names.values(), "missing"}
        good = [row for row in given if isinstance(row, tuple) and row[0] in known and str(row[1:]).startswith("('a")]
        keys = list(dict.fromkeys(row[:2] for row in good))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "journal"
            job = InviteJob(
                it.client,
                journal=path,
                chunk=chunk,
                concurrency=concurrency,
                isolate=isolate,
                max_failures=fuse,
                needs_confirmation=confirm,
                retry=NO_PAUSES,
            )
            async with job.run(given) as progress:
                async for snapshot in progress:
                    assert snapshot.total == sum(
                        getattr(snapshot, name)
                        for name in ("waiting", "done", "refused", "failed", "unknown", "skipped", "duplicate")
                    ) or (snapshot.phase == "loading")
                    if stop_at is not None and snapshot.requests >= stop_at:
                        progress.stop()
            found = states(path)
            assert list(found) == [] or set(found) == set(keys)
            assert len(found) == len(keys)
            counts = whole(await job.report())
            assert (counts.total, counts.duplicate) == (len(rows), len(good) - len(keys))
            bad = read(path, "SELECT count(*) FROM bad_row")[0][0]
            assert bad == len(rows) - len(good)

            # against what the platform holds
            reached = {key for key in keys if key[0] in it.emulator.state.groups}
            if confirm:
                members = {key for key in reached if key[1] in it.emulator.state.groups[key[0]].invited}
            else:
                members = {key for key in reached if key[1] in it.members(key[0])}
            lost = maybe_reached(path)
            assert {key for key, state in found.items() if state == DONE} <= members
            for key in members:
                assert found[key] in {DONE, UNKNOWN} or key in lost, (key, found[key])
            waiting = {key for key, state in found.items() if state in {WAITING, AGAIN}}
            assert (waiting == set()) or progress.why in {"fuse", "no answer", "stopped"}
            assert progress.why == "done" or waiting or stop_at is not None or fuse is not None
            assert counts.done == sum(state == DONE for state in found.values())
            assert counts.refused == sum(state == REFUSED for state in found.values())
            assert counts.failed == sum(state == FAILED for state in found.values())
            assert counts.unknown == sum(state == UNKNOWN for state in found.values()) + len(waiting & lost)
            assert counts.skipped == bad + len(waiting - lost)
            assert {account for (_, account), state in found.items() if state == REFUSED} <= unlucky

            # each sending is in both journals
            arrived = Counter((r.operation.group_id, r.operation.user_name, r.operation.members) for r in it.sent())
            sendings = begun(path)
            noted = Counter(sending[:3] for sending in sendings)
            assert arrived - noted == Counter()
            left_over = noted - arrived
            not_sent = Counter(sending[:3] for sending in sendings if sending[3] == 3)
            assert left_over - not_sent == Counter()
            assert not read(path, "SELECT * FROM request WHERE outcome = 0")

            if confirm:
                spent = set()
                for record in it.sent():
                    op = record.operation
                    now = {(op.group_id, account) for account in op.members}
                    assert now & spent == set(), "sent again though nobody knows what became of it"
                    if LOSING & set(record.trouble) and "status" not in record.trouble and "refuse" not in record.trouble:
                        spent |= now
            return found


def maybe_reached(path):
    """Return the accounts that wait, but were in a request that may have taken effect."""
    return set(
        read(
            path,
            """SELECT party.name, account FROM account JOIN party ON party.id = account.party
            WHERE state = 6 OR state = 0 AND EXISTS (SELECT 1 FROM request WHERE request.lane = account.lane
            AND seq BETWEEN first AND last AND (outcome = 0 OR todo = 1 AND (outcome = 4 OR resent = 1)))""",
        )
    )


LIVES = {
    "rows": ROWS,
    "faults": FAULTS,
    "unlucky": st.sets(ACCOUNTS, max_size=4),
    "chunk": st.integers(1, 7),
    "concurrency": st.sampled_from([1, 2, 5, 100]),
    "isolate": st.sampled_from([0, 3, 30]),
    "fuse": st.sampled_from([None, None, 0, 2, 0.5]),
    "confirm": st.booleans(),
    "already_fails": st.booleans(),
}
REFUSED_AFTER_LOSS = [(ResetAfter(), {"times": 1}), (Code("999123"), {"nth": [2]})]


@SHORT
@given(stop_at=st.none() | st.integers(0, 6), **LIVES)
@example(
    stop_at=None,
    rows=[("first", "a0")],
    faults=REFUSED_AFTER_LOSS,
    unlucky=set(),
    chunk=5,
    concurrency=1,
    isolate=0,
    fuse=None,
    confirm=False,
    already_fails=False,
)
async def test_each_account_ends_in_the_state_that_the_platform_has_it_in(**life):
    await live_through(**life)


@pytest.mark.slow
@LONG
@given(stop_at=st.none() | st.integers(0, 6), **LIVES)
async def test_each_account_ends_in_the_state_that_the_platform_has_it_in_long(**life):
    await live_through(**life)


async def test_a_refusal_of_what_may_have_had_its_effect_before_leaves_it_unknown(journal):
    """The lost request added them; the one that repeats it is refused, which says nothing about the first."""
    async with world() as it:
        for effect, how in REFUSED_AFTER_LOSS:
            it.plan(effect, **how)
        report = await InviteJob(it.client, journal=journal, retry=NO_PAUSES).run([(it.groups[0], "a"), (it.groups[0], "b")])
        assert it.members(it.groups[0]) == {"a", "b"}
        assert set(states(journal).values()) == {UNKNOWN}
        assert whole(report).unknown == 2
        assert "999123" in reasons(journal)["a"]


# --------------------------------------------------------------------------------------- fairness


def turns(rows, chunk):
    """Return the groups in the order in which they are served: all in turn, a chunk each."""
    queues = {}
    for group, account in rows:
        queues.setdefault(group, deque()).append(account)
    order = []
    while any(queues.values()):
        for group, queue in queues.items():
            if queue:
                order.append((group, tuple(queue.popleft() for _ in range(min(chunk, len(queue))))))
    return order


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_groups_are_served_in_turn(journal, concurrency):
    rows = [("huge", f"a{n}") for n in range(70)]
    rows[5:5] = [(f"small{n % 40}", f"b{n}") for n in range(60)]
    sending = Sending()
    async with sending.job(journal, chunk=2, concurrency=concurrency).run(rows) as progress:
        await checkpoint()
    assert progress.why == "done"
    assert [(group, accounts) for group, _, accounts, _ in begun(journal)] == turns(rows, 2)
    assert Counter(sending.members) == Counter(accounts for _, accounts in turns(rows, 2))


async def test_no_more_is_planned_than_a_few_chunks_for_each_request_in_flight(journal):
    ready = []
    sending = Sending(lambda _: ready.append(len(run._running._ready)))
    async with sending.job(journal, chunk=1, concurrency=5).run(rows_of(3, 100)) as run:
        pass
    assert len(ready) == 300
    assert 1 <= max(ready) <= 20


@pytest.mark.slow
async def test_ten_thousand_groups_are_served_in_turn(journal):
    rows = rows_of(10_000, 3)
    sending = Sending()
    await sending.job(journal, chunk=2, concurrency=50).run(rows)
    assert [(group, accounts) for group, _, accounts, _ in begun(journal)] == turns(rows, 2)


async def test_the_planner_does_not_end_because_its_window_is_full(journal):
    """Its reading is slow and requests are quick: what is ready runs out, again and again, while it reads."""
    sending = Sending()
    run = sending.job(journal, chunk=1, concurrency=2).run(rows_of(2, 100))
    async with run:
        await checkpoint()
        while run._running is None:
            await checkpoint()
        commits = run._running._commits
        at_once = commits.read

        async def slowly(reads):
            for _ in range(40):
                run._running._nudge()
                await checkpoint()
            return await at_once(reads)

        commits.read = slowly
    assert len(sending.operations) == 200
    assert count(journal) == {DONE: 200}


async def test_an_endless_input_is_read_as_it_is_loaded(journal):
    read_so_far = 0

    async def endless():
        nonlocal read_so_far
        while True:
            read_so_far += 1
            yield ("g", f"a{read_so_far}")

    sending = Sending()
    async with sending.job(journal).run(endless()) as run:
        while run.snapshot.total < 2 * BATCH:
            assert read_so_far <= run.snapshot.total + BATCH
            await checkpoint()
        assert run.snapshot.phase == "loading"
        run.interrupt()
    assert run.why == "interrupted"
    assert sending.operations == []
    assert read_so_far <= 4 * BATCH


# ----------------------------------------------------------------------------------------- limits


async def test_rates_hold(journal):
    async with world(3) as it:
        rows = [(group, f"a{n}") for n in range(20) for group in it.groups]
        rates = [Rate(10), Rate(120, 60.0, burst=5)]
        await InviteJob(it.client, journal=journal, chunk=2, rates=rates, adaptive=False).run(rows)
        times = [record.at for record in it.sent()]
        assert len(times) == 30
        assert min(later - earlier for earlier, later in pairwise(times)) >= 0.1 - 1e-6
        for n in range(5, 30):  # 2 a second, after five at once
            assert times[n] - times[0] >= (n - 4) / 2 - 1e-6
        assert times[-1] - times[0] <= 12.6


async def test_a_group_of_its_own_rate_holds_up_nobody_else(journal):
    async with world(21) as it:
        slow, *others = it.groups
        rows = [(slow, f"a{n}") for n in range(10)] + [(group, f"a{n}") for n in range(2) for group in others]
        rates = [Rate(1, 2.0, each_group=True), Rate(20)]
        await InviteJob(it.client, journal=journal, chunk=1, rates=rates, concurrency=10, adaptive=False).run(rows)
        at = {}
        for record in it.sent():
            at.setdefault(record.operation.group_id, []).append(record.at)
        begin = min(at[slow])
        for times in at.values():
            assert all(later - earlier >= 2 - 1e-6 for earlier, later in pairwise(times))
        assert all(max(at[group]) - begin <= 4.2 for group in others)
        assert at[slow] == pytest.approx([begin + 2 * n for n in range(10)], abs=0.25)


@SHORT
@given(
    rows=st.lists(st.tuples(st.sampled_from(["g0", "g1", "g2"]), ACCOUNTS), max_size=40),
    each_group=st.sampled_from([0.3, 0.7, 3.0]),
    ends=st.lists(st.integers(1, 6), max_size=4),
    hard=st.booleans(),
)
async def test_wherever_a_run_is_ended_nobody_is_forgotten(rows, each_group, ends, hard):
    """A group's own rate puts requests off: what comes first in the journal is sent first all the same."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        sending = Sending(seconds=0.1)
        settings = {"chunk": 2, "concurrency": 3, "rates": [Rate(10), Rate(each_group, each_group=True)]}
        for end in [*ends, None]:
            run = sending.job(path, **settings).run(rows)
            left = iter(range(end or 10**6, 0, -1))
            sending.act = lambda _, run=run, left=left: (
                None if next(left, 2) > 1 else run.interrupt() if hard else run.stop()
            )
            await run
        assert states(path) == dict.fromkeys(rows, DONE)
        firsts = read(path, "SELECT lane, first FROM request WHERE repeats IS NULL ORDER BY id")
        assert sorted(firsts) == sorted(firsts, key=lambda row: row[0])
        if not hard:
            assert Counter((op.group_id, each) for op in sending.operations for each in op.members) == Counter(set(rows))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("concurrency", [1, 7])
async def test_no_more_requests_are_in_flight_than_allowed(journal, concurrency, adaptive):
    sending = Sending(seconds=1.0)
    await sending.job(journal, chunk=1, concurrency=concurrency, adaptive=adaptive).run(rows_of(3, 20))
    assert sending.most == concurrency
    assert len(sending.operations) == 60


# ------------------------------------------------------------------------------- what ends a job


async def test_the_fuse_counts(journal):
    async with world() as it:
        rows = [("missing", f"a{n}") for n in range(50)]
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=1, max_failures=7)
        async with job.run(rows) as progress:
            pass
        assert progress.why == "fuse"
        assert len(it.sent()) == 8  # more than 7
        assert count(journal) == {FAILED: 8, WAITING: 42}
        assert (whole(await job.report()).skipped, read(journal, "SELECT why FROM run")) == (42, [("fuse",)])


@pytest.mark.parametrize(("share", "expected"), [(0.5, 20), (0.75, 21), (1.0, 100), (None, 100)])
async def test_the_fuse_measures_shares(journal, share, expected):
    """Every other one of ten fails, and then all."""
    done = iter(range(10**6))
    sending = Sending(lambda _: ApiError("no", code="999123") if (n := next(done)) >= 10 or n % 2 else None)
    job = sending.job(journal, chunk=1, concurrency=1, max_failures=share)
    async with job.run(rows_of(1, 100)) as progress:
        pass
    assert progress.why == ("done" if expected == 100 else "fuse")
    failed = [n >= 10 or n % 2 == 1 for n in range(100)]
    first = next((n for n in range(20, 100) if share is not None and sum(failed[:n]) / n > share), 100)
    assert first == expected
    assert len(sending.operations) in {first, first + 1}  # the next one leaves while the outcome is being recorded
    assert count(journal)[FAILED] == sum(failed[: len(sending.operations)])


async def test_sending_again_does_not_hide_failures_from_the_fuse(journal):
    """Each fails for good after three sendings: that all of them fail is a share of 1, not of a third."""
    sending = Sending(lambda _: Unanswered("no whole answer"))
    job = sending.job(journal, chunk=1, concurrency=1, max_failures=0.5, patience=1e9)
    async with job.run(rows_of(1, 100)) as progress:
        pass
    assert progress.why == "fuse"
    assert 3 * 20 <= len(sending.operations) <= 3 * 20 + 3
    assert 20 <= count(journal)[UNKNOWN] <= 21


async def test_throttling_spends_neither_fuse_nor_attempts(journal):
    async with world() as it:
        it.plan(Throttle(0), times=30)
        it.plan(Throttle(0, code="160016", retry_after=1), times=30)
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=3, max_failures=0, retry=Retry(attempts=1))
        async with job.run([(it.groups[0], f"a{n}") for n in range(5)]) as progress:
            pass
        assert progress.why == "done"
        assert count(journal) == {DONE: 5}
        assert progress.snapshot.throttled == len(it.sent()) - 5 >= 30


async def test_what_was_not_sent_spends_no_attempts(journal):
    sending = Sending(script(*[NotSent("connection refused") for _ in range(30)]))
    async with sending.job(journal, chunk=1, concurrency=1, max_failures=0, retry=Retry(attempts=1)).run(
        rows_of(1, 3)
    ) as progress:
        pass
    assert progress.why == "done"
    assert count(journal) == {DONE: 3}
    assert len(sending.operations) == 33


@pytest.mark.parametrize("adaptive", [False, True])
async def test_patience_ends(journal, adaptive):
    sending = Sending(lambda _: NotSent("connection refused"))
    job = sending.job(journal, adaptive=adaptive, patience=20.0, max_failures=None)
    async with job.run(rows_of(3, 200)) as progress:
        pass
    assert progress.why == "no answer"
    assert 20 < sending.clock.elapsed < 30
    assert count(journal) == {WAITING: 600}
    assert whole(await job.report()).skipped == 600


async def test_patience_begins_anew_with_every_answer(journal):
    asked = iter(range(1000))
    sending = Sending(lambda _: None if next(asked) % 10 == 9 else NotSent("connection refused"), seconds=1.0)
    async with sending.job(journal, chunk=1, concurrency=1, patience=25.0).run(rows_of(1, 6)) as progress:
        pass
    assert progress.why == "done"
    assert sending.clock.elapsed > 60


async def test_refused_credentials_end_it_at_once_and_it_goes_on_when_they_are_right(journal):
    async with world(2) as it:
        rows = [(group, f"a{n}") for n in range(20) for group in it.groups]
        it.plan(Code("111109"), nth=[7])
        job = InviteJob(it.client, journal=journal, chunk=1, concurrency=1)
        with pytest.raises(AuthenticationError) as caught:
            async with job.run(rows) as progress:
                await anyio.sleep_forever()
        assert caught.value.code == "111109"
        assert progress.why == "authentication"
        assert len(it.sent()) == 7
        assert count(journal) == {DONE: 6, WAITING: 34}
        assert read(journal, "SELECT why FROM run") == [("authentication",)]
        await job.resume()
        assert count(journal) == {DONE: 40}
        assert len(it.sent()) == 7 + 34


async def test_an_old_timestamp_is_made_anew_once(journal):
    old = TimestampExpired("old", code="161106")
    again = set()

    def act(op):
        """Refuse the first account once, the fourth twice."""
        (member,) = op.members
        if member == "a3" and member in again:
            return TimestampExpired("old again", code="161106")
        return again.add(member) or old if member in {"a0", "a3"} - again else None

    sending = Sending(act)
    job = sending.job(journal, chunk=1, concurrency=1, max_failures=0, retry=Retry(attempts=1))
    with pytest.raises(TimestampExpired, match="old again"):
        await job.run(rows_of(1, 8))
    asked = Counter(member for (member,) in sending.members)
    assert len(asked) < 8
    assert sum(asked.values()) == len(asked) + 2
    assert max(asked.values()) == 2
    assert count(journal) == {DONE: len(asked) - 1, WAITING: 9 - len(asked)}


async def test_a_client_that_is_closed_ends_it(journal):
    it = World()
    job = InviteJob(it.client, journal=journal)
    with pytest.raises(ClientClosed):
        await job.run([("g", "a")])
    assert count(journal) == {WAITING: 1}
    assert read(journal, "SELECT why FROM run") == [("error",)]


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), ExceptionGroup("two", [ValueError("a"), ValueError("b")])])
async def test_an_error_that_is_not_ours_is_raised_as_it_is_and_the_request_stays_open(journal, error):
    sending = Sending(script(None, error))
    job = sending.job(journal, chunk=1, concurrency=1)
    with pytest.raises(type(error)) as caught:
        await job.run(rows_of(1, 4))
    assert caught.value is error
    assert read(journal, "SELECT outcome, todo FROM request ORDER BY id") == [(1, 0), (0, 0)]
    counts = whole(await job.report())
    assert (counts.done, counts.unknown, counts.skipped) == (1, 1, 2)
    await job.resume("report")
    assert count(journal) == {DONE: 3, UNKNOWN: 1}


async def test_what_the_block_raises_interrupts_the_job(journal):
    sending = Sending(seconds=5.0)
    progress = sending.job(journal, chunk=1, concurrency=4).run(rows_of(1, 10))

    async def fail():
        async with progress:
            await sending.clock.sleep(7.0)
            raise KeyError("mine")  # noqa: EM101

    with pytest.raises(KeyError, match="mine"):
        await fail()
    assert progress.why == "interrupted"
    assert sending.in_flight == 0
    assert read(journal, "SELECT outcome, count(*) FROM request GROUP BY outcome") == [(0, 4), (1, 4)]


async def test_too_many_accounts_for_the_sender_is_the_senders_word(journal):
    """A check of the sender's own refuses before anything is sent; halves are tried where there is a budget."""
    sending = Sending(lambda op: InvalidRequest("too many", field="members") if len(op.members) > 2 else None)
    await sending.job(journal, chunk=8, isolate=100).run(rows_of(1, 8))
    assert count(journal) == {DONE: 8}


# -------------------------------------------------------------------------------------- isolation


def poisoned(*poison, code="999123"):
    return lambda op: ApiError("poison", code=code) if set(op.members) & set(poison) else None


@pytest.mark.parametrize("poison", [["a0"], ["a31"], ["a13"], ["a3", "a17"]])
async def test_exactly_the_poisonous_accounts_fail(journal, poison):
    sending = Sending(poisoned(*poison))
    job = sending.job(journal, chunk=32, isolate=40, max_failures=None)
    await job.run(rows_of(1, 32))
    assert {account for (_, account), state in states(journal).items() if state == FAILED} == set(poison)
    assert count(journal)[DONE] == 32 - len(poison)
    assert len(sending.operations) - 1 <= 2 * 5 * len(poison)  # two halves a level
    assert max(Counter(sending.members).values()) == 1


@pytest.mark.parametrize("budget", [0, 1, 2, 5, 6])
async def test_the_budget_for_isolation_holds(journal, budget):
    sending = Sending(poisoned("a13"))
    job = sending.job(journal, chunk=32, isolate=budget, max_failures=None)
    await job.run(rows_of(1, 32))
    levels = budget // 2
    assert len(sending.operations) == 1 + 2 * levels
    assert count(journal)[FAILED] == 32 // 2**levels


async def test_halves_are_sent_by_whoever_goes_on(journal):
    """The run ends after each sending, from first to last."""
    sending = Sending(poisoned("a5"))
    run = sending.job(journal, chunk=16, concurrency=1, isolate=100, max_failures=None).run(rows_of(1, 16))
    sending.act = lambda op: run.stop() or poisoned("a5")(op)
    await run
    ends = 1
    while count(journal)[WAITING]:
        run = open_job(sending, journal, clock=sending.clock).resume()
        await run
        assert run.why == "stopped" or not count(journal)[WAITING]
        ends += 1
    assert ends == len(sending.operations) == 9
    assert {account for (_, account), state in states(journal).items() if state == FAILED} == {"a5"}
    assert sending.members[0] == tuple(f"a{n}" for n in range(16))
    assert max(Counter(sending.members).values()) == 1


# ----------------------------------------------------------------------- ended early, and resumed


async def test_stop_lets_what_is_in_flight_end(journal):
    sending = Sending(seconds=5.0)
    job = sending.job(journal, chunk=1, concurrency=4)
    phases = []
    async with job.run(rows_of(1, 10)) as progress:
        async for snapshot in progress:
            phases.append(snapshot.phase)
            if snapshot.done == 4:
                progress.stop()
    assert (progress.why, phases[-1]) == ("stopped", "ended")
    assert "draining" in phases
    assert count(journal) == {DONE: 8, WAITING: 2}
    assert read(journal, "SELECT count(*) FROM request WHERE outcome <> 1") == [(0,)]
    await job.resume()
    assert count(journal) == {DONE: 10}
    assert [why for (why,) in read(journal, "SELECT why FROM run ORDER BY id")] == ["stopped", "done"]


async def test_stop_before_anything_was_sent(journal):
    sending = Sending()
    async with sending.job(journal).run(rows_of(1, 3)) as progress:
        progress.stop()
    assert progress.why == "stopped"
    assert sending.operations == []
    await sending.job(journal).run(rows_of(1, 3))
    assert count(journal) == {DONE: 3}


async def interrupt(progress, _):
    progress.interrupt()
    await checkpoint()


async def cancel(_, scope):
    scope.cancel()
    await checkpoint()


@pytest.mark.parametrize("ending", [interrupt, cancel])
@pytest.mark.parametrize("after", [2.0, 7.0])
async def test_interrupted_requests_stay_open_and_are_sent_again(journal, ending, after):
    sending = Sending(seconds=5.0)
    job = sending.job(journal, chunk=1, concurrency=4)
    with anyio.CancelScope() as scope:
        async with job.run(rows_of(1, 10)) as progress:
            await sending.clock.sleep(after)
            await ending(progress, scope)
    done = 4 if after > 5 else 0
    cut = len(sending.operations) - done
    assert progress.why == "interrupted"
    assert sending.in_flight == 0
    assert count(journal) == Counter({DONE: done, WAITING: 10 - done})
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0") == [(cut,)]
    await job.run(rows_of(1, 10))
    assert count(journal) == {DONE: 10}
    assert len(sending.operations) == 10 + cut
    assert read(journal, "SELECT count(*) FROM request WHERE resent = 1") == [(cut,)]


@pytest.mark.parametrize("how", [interrupt, cancel])
async def test_whenever_it_is_interrupted_it_goes_on_afterwards(tmp_path, how):
    for turns in range(0, 45, 3):
        path = tmp_path / f"journal{turns}"
        sending = Sending()
        with anyio.CancelScope() as scope:
            async with sending.job(path, chunk=1, concurrency=2).run(rows_of(2, 4)) as progress:
                for _ in range(turns):
                    await checkpoint()
                await how(progress, scope)
        assert progress.why in {"interrupted", "done"}
        assert sending.in_flight == 0
        sending.operations.clear()
        await sending.job(path, chunk=1).run(rows_of(2, 4))
        assert count(path) == {DONE: 8}
        assert read(path, "SELECT count(*) FROM run WHERE ended IS NULL") == [(0,)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_of_asyncio_is_cancelled(journal):
    sending = Sending(seconds=5.0)
    job = sending.job(journal, chunk=1, concurrency=4)

    async def run():
        async with job.run(rows_of(1, 10)):
            await asyncio.sleep(1e6)

    others = asyncio.all_tasks()
    task = asyncio.get_running_loop().create_task(run())
    while len(sending.operations) < 4:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sending.in_flight == 0
    assert asyncio.all_tasks() == others
    assert read(journal, "SELECT outcome, count(*) FROM request GROUP BY outcome") == [(0, 4)]
    assert read(journal, "SELECT why FROM run") == [("interrupted",)]
    await job.resume()
    assert count(journal) == {DONE: 10}


async def copied(journal, at):
    """Copy the journal as somebody would find it whose process was killed now."""
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("VACUUM INTO ?", (str(at),))
    await checkpoint()


@pytest.mark.parametrize("before", [True, False], ids=["before it arrives", "after it took effect"])
@pytest.mark.parametrize("point", [1, 4, 9])
async def test_a_killed_run_is_resumed_from_the_journal_alone(tmp_path, point, before):
    async with world(3) as it:
        it.plan(Code("999123"), match=lambda op: "a7" in op.members)
        it.plan(Latency(0.2))
        rows = [(group, f"a{n}") for n in range(12) for group in it.groups]
        sent = 0
        left = {}

        async def send(op):
            nonlocal sent
            sent += 1
            mine = sent == point
            if mine and before:
                await copied(tmp_path / "journal", tmp_path / "copy")
                left["state"] = it.emulator.snapshot()
            try:
                return await it.client.tuned(retry=Retry(attempts=1)).send(op)
            finally:
                if mine and not before:
                    await copied(tmp_path / "journal", tmp_path / "copy")
                    left["state"] = it.emulator.snapshot()

        sending = Sending(send, clock=it.clock)
        settings = {"chunk": 5, "isolate": 50, "concurrency": 3, "max_failures": None}
        await sending.job(tmp_path / "journal", **settings).run(rows)
        expected = states(tmp_path / "journal")
        assert Counter(expected.values()) == {DONE: 33, FAILED: 3}

        it.emulator.restore(left["state"])
        it.emulator.requests.clear()
        assert read(tmp_path / "copy", "SELECT count(*) > 0 FROM request WHERE outcome = 0") == [(1,)]
        job = open_job(it.client, tmp_path / "copy")
        assert job.settings.isolate == 50
        await job.resume()
        assert states(tmp_path / "copy") == {
            key: UNKNOWN if state == FAILED and was_open(tmp_path / "copy", key) else state
            for key, state in expected.items()
        }
        assert all(it.members(group) == {f"a{n}" for n in range(12)} - {"a7"} for group in it.groups)
        settled = Counter(
            (record.operation.group_id, account)
            for record in it.sent()
            if record.code == "000000"
            for account in record.operation.members
        )
        assert max(settled.values()) == 1
        whole(await job.report())


def was_open(path, key):
    """Tell whether an account was in a request that was open when the run was killed: then nobody knows."""
    return read(
        path,
        """SELECT 1 FROM account JOIN party ON party.id = account.party JOIN request
        ON request.lane = account.lane AND seq BETWEEN first AND last AND resent = 1 WHERE name = ? AND account = ?""",
        key,
    )


async def lose_three(journal, kind=InviteJob, *, age=0.0, act=None, **options):
    """Interrupt a run of which three requests of two accounts are in flight, two have not been sent; return the sender."""
    sending = Sending(seconds=5.0)
    job = kind(sending, journal=journal, clock=sending.clock, adaptive=False, chunk=2, concurrency=3, **options)
    async with job.run(rows_of(1, 10)) as run:
        await sending.clock.sleep(1.0)
        run.interrupt()
    assert len(sending.operations) == 3
    sending.clock.start += timedelta(seconds=age)
    sending.operations.clear()
    sending.seconds = 0.0
    sending.act = act or sending.act
    return sending


NO = 0
ALL = 3


@pytest.mark.parametrize(
    ("kind", "options", "age", "on_unknown", "resent"),
    [
        (InviteJob, {}, 10.0, "auto", ALL),
        (InviteJob, {}, 3500.0, "auto", ALL),
        (InviteJob, {}, 3610.0, "auto", NO),
        (InviteJob, {}, 36100.0, "resend", ALL),
        (InviteJob, {}, 0.0, "report", NO),
        (InviteJob, {}, -7200.0, "auto", NO),
        (InviteJob, {"needs_confirmation": True}, 0.0, "auto", NO),
        (InviteJob, {"needs_confirmation": True}, -60.0, "auto", NO),
        (InviteJob, {"needs_confirmation": True}, 0.0, "resend", ALL),
        (InviteJob, {"resend_within": 60.0}, 50.0, "auto", ALL),
        (InviteJob, {"resend_within": 60.0}, 70.0, "auto", NO),
        (RemoveJob, {}, 0.0, "auto", NO),
        (RemoveJob, {}, -5.0, "auto", NO),
        (RemoveJob, {}, 0.0, "resend", ALL),
    ],
)
async def test_what_an_ended_run_left_open(journal, kind, options, age, on_unknown, resent):
    """The age is that of the request by the clock on the wall, which may have been set back meanwhile."""
    sending = await lose_three(journal, kind, age=age, **options)
    job = open_job(sending, journal, clock=sending.clock)
    await job.resume(on_unknown)
    assert len(sending.operations) == 2 + resent
    assert count(journal) == Counter({DONE: 4 + 2 * resent, UNKNOWN: 6 - 2 * resent})
    assert read(journal, "SELECT count(*) FROM request WHERE resent = 1") == [(resent,)]
    assert read(journal, "SELECT count(*) FROM request WHERE outcome = 0 OR todo = 1") == [(0,)]
    if not resent:
        assert {reason for reason in reasons(journal).values() if reason} == {"the run ended before an answer came"}


async def test_a_repetition_that_was_stopped_in_between_is_unknown_when_it_is_old(journal):
    """Lost, sent again and throttled, and then stopped: what the first one did is as unknown as ever."""
    sending = Sending(seconds=1.0)
    job = RemoveJob(sending, journal=journal, clock=sending.clock, adaptive=False, chunk=5, concurrency=1, retry=NO_PAUSES)
    run = job.run(rows_of(1, 5))
    steps = script(lambda: Unanswered("lost"), lambda: run.stop() or Throttled("slower", code="160016"))
    sending.act = lambda op: step() if (step := steps(op)) is not None else None
    await run
    assert len(sending.operations) == 2
    assert whole(await job.report()).unknown == 5
    sending.clock.elapsed += 86400.0
    await job.resume()
    assert len(sending.operations) == 2
    assert count(journal) == {UNKNOWN: 5}
    assert read(journal, "SELECT outcome, todo FROM request") == [(4, 0), (2, 0)]


async def test_those_whom_the_lost_request_has_added_are_done_when_it_comes_again(journal):
    """They are listed as members already; who was one before the job is refused."""
    async with world(dialect=Dialect(invited_member_fails=True)) as it:
        (group,) = it.groups
        await it.client.groups.invite(group_id=group, members=["before"])
        it.emulator.requests.clear()
        it.emulator.never_logged_in("ghost")
        it.plan(ResetAfter(), nth=[1])
        rows = [(group, "a"), (group, "b"), (group, "ghost")]
        await InviteJob(it.client, journal=journal, retry=NO_PAUSES).run(rows)
        assert states(journal) == {(group, "a"): DONE, (group, "b"): DONE, (group, "ghost"): REFUSED}
        assert read(journal, "SELECT resent, attempt, outcome FROM request ORDER BY id") == [(0, 1, 4), (1, 2, 1)]

        other = journal.with_name("other")
        await InviteJob(it.client, journal=other).run([(group, "before"), (group, "c")])
        assert states(other) == {(group, "before"): REFUSED, (group, "c"): DONE}


async def test_only_what_is_asked_for_is_retried(journal):
    async with world(2) as it:
        first, second = it.groups
        it.emulator.never_logged_in("ghost")
        it.plan(ResetAfter(), match={"group_id": first})
        rows = [(first, "lost"), ("missing", "failed"), (second, "fine"), (second, "ghost")]
        job = InviteJob(it.client, journal=journal, chunk=1, max_failures=None, retry=Retry(attempts=1))
        await job.run(rows)
        found = {account: state for (_, account), state in states(journal).items()}
        assert found == {"lost": UNKNOWN, "failed": FAILED, "fine": DONE, "ghost": REFUSED}
        it.emulator.faults.clear()
        asked = []
        for options in ({"unknown": False}, {"failed": False}, {}):
            it.emulator.requests.clear()
            await job.retry(**options)
            asked.append({account for record in it.sent() for account in record.operation.members})
        assert asked == [{"failed"}, {"lost"}, {"failed"}]
        found = {account: state for (_, account), state in states(journal).items()}
        assert found == {"lost": DONE, "failed": FAILED, "fine": DONE, "ghost": REFUSED}
        assert read(
            journal, "SELECT DISTINCT account FROM accounts JOIN requests ON requests.id = request WHERE resent = 1"
        ) == [("lost",)]


async def test_retrying_nothing_is_refused(journal):
    with pytest.raises(InvalidRequest, match="not neither"):
        Sending().job(journal).retry(failed=False, unknown=False)


async def test_a_retry_is_refused_while_others_wait(journal):
    sending = Sending(script(ApiError("no", code="999123")))
    job = sending.job(journal, chunk=1, concurrency=1, max_failures=0)
    async with job.run(rows_of(1, 5)) as progress:
        pass
    assert (progress.why, count(journal)[FAILED]) == ("fuse", 1)
    assert 3 <= count(journal)[WAITING] <= 4
    with pytest.raises(InvalidRequest, match=r"[34] accounts have not been sent yet: resume the job first"):
        await job.retry()
    await job.resume()
    await job.retry()
    assert count(journal) == {DONE: 5}


@SHORT
@given(
    accounts=st.integers(1, 30),
    chunk=st.integers(1, 6),
    failed=st.sets(st.integers(0, 29)),
    lost=st.sets(st.integers(0, 29)),
    which=st.sampled_from([{"failed": False}, {"unknown": False}, {}]),
)
async def test_a_retry_sends_exactly_those_once(accounts, chunk, failed, lost, which):
    """Some fail and some get lost, one by one; the retry takes them in as few requests as they need."""
    failed, lost = ({f"a{n}" for n in numbers if n < accounts} for numbers in (failed, lost - failed))
    bad = {account: ApiError("no", code="999123") for account in failed} | {account: Unanswered("lost") for account in lost}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        sending = Sending(lambda op: next((bad[each] for each in op.members if each in bad), None))
        settings = {"max_failures": None, "retry": Retry(attempts=1), "chunk": chunk, "isolate": 10**6}
        await sending.job(path, **settings).run(rows_of(1, accounts))
        wanted = {
            account
            for (_, account), state in states(path).items()
            if (state == FAILED and which.get("failed", True)) or (state == UNKNOWN and which.get("unknown", True))
        }
        sending.operations.clear()
        sending.act = lambda _: None
        await open_job(sending, path, clock=sending.clock).retry(**which)
        again = [account for members in sending.members for account in members]
        assert sorted(again) == sorted(wanted)
        assert len(sending.operations) == -(-len(wanted) // chunk)
        assert all(state == DONE for (_, account), state in states(path).items() if account in wanted)


# ------------------------------------------------------------------------------------ one journal


async def test_the_same_job_again_goes_on(journal):
    sending = Sending()
    for _ in range(3):
        await sending.job(journal).run(rows_of(2, 60))
    assert len(sending.operations) == 4
    assert read(journal, "SELECT why FROM run") == [("done",)] * 3


@pytest.mark.parametrize(
    ("change", "rows", "message"),
    [
        ({"chunk": 10}, None, "chunk is 50 there and 10 here"),
        ({"declared": "why not"}, None, "declared is 'why' there and 'why not' here"),
        ({"needs_confirmation": True}, None, "needs_confirmation is False there and True here"),
        ({"user_name": "boss"}, None, "user_name is None there and 'boss' here"),
        ({}, rows_of(2, 4), "its input had 6 rows, this one has 8"),
        ({}, [*rows_of(2, 3)[:-1], ("g1", "other")], "its input had other rows than this one"),
    ],
)
async def test_another_job_is_refused_with_the_difference(journal, change, rows, message):
    sending = Sending()
    await sending.job(journal, declared="why").run(rows_of(2, 3))
    before = journal.read_bytes()
    with pytest.raises(InvalidRequest) as caught:
        await sending.job(journal, **{"declared": "why"} | change).run(rows or rows_of(2, 3))
    assert str(caught.value) == f"{journal} holds another job: {message}"
    assert caught.value.field == "journal"
    assert journal.read_bytes() == before
    assert len(sending.operations) == 2


async def test_another_operation_is_refused(journal):
    sending = Sending()
    await sending.job(journal).run(rows_of(1, 1))
    other = RemoveJob(sending, journal=journal, clock=sending.clock)
    for run in (other.run(rows_of(1, 1)), other.resume(), other.retry()):
        with pytest.raises(InvalidRequest, match="operation is 'InviteJoinGroup' there and 'DeleteGroupMember' here"):
            await run


async def test_two_at_a_time_are_refused(journal):
    sending = Sending(seconds=1.0)
    job = sending.job(journal)
    async with job.run(rows_of(1, 3)):
        await sending.clock.sleep(0.5)
        for run in (job.run(rows_of(1, 3)), job.resume()):
            with pytest.raises(InvalidRequest, match="another process runs this job"):
                await run
    assert count(journal) == {DONE: 3}


async def test_a_run_is_entered_once(journal):
    run = Sending().job(journal).run(rows_of(1, 3))
    await run
    with pytest.raises(RuntimeError, match="entered once"):
        await run


async def test_an_input_that_was_not_read_to_its_end_is_read_anew(journal):
    sending = Sending()

    def rows(broken):
        yield from rows_of(2, BATCH)
        if broken:
            reason = "the file ends here"
            raise OSError(reason)

    with pytest.raises(OSError, match="the file ends here"):
        await sending.job(journal).run(rows(broken=True))
    assert sending.operations == []
    report = await sending.job(journal).report()
    assert report.state == "loading"
    for run in (sending.job(journal).resume(), open_job(sending, journal, clock=sending.clock).retry()):
        with pytest.raises(InvalidRequest, match="its input was not read to its end, and nothing was sent"):
            await run
    await sending.job(journal, chunk=2).run(rows_of(2, 2))
    assert states(journal) == dict.fromkeys(rows_of(2, 2), DONE)


async def test_files_that_hold_no_job(tmp_path):
    sending = Sending()
    text, inbox, empty = tmp_path / "text", tmp_path / "inbox", tmp_path / "empty"
    text.write_text("group,account\n" * 100)
    empty.touch()
    with closing(sqlite3.connect(inbox)) as connection:
        connection.execute(f"PRAGMA application_id = {int.from_bytes(b'rbim', 'big')}")
    newer = tmp_path / "newer"
    await sending.job(newer).run(rows_of(1, 1))
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version = 7")
    for path, why in [(text, "file is not a database"), (inbox, "it is an inbox"), (newer, "its schema has version 7")]:
        before = path.read_bytes()
        for run in (sending.job(path).run(rows_of(1, 1)), sending.job(path).resume()):
            with pytest.raises(InvalidRequest, match=f"{path} cannot be a job's journal: {why}"):
                await run
        with pytest.raises(InvalidRequest, match=why):
            open_job(sending, path)
        assert path.read_bytes() == before
    with pytest.raises(InvalidRequest, match="no job was begun in it"):
        open_job(sending, empty)
    for missing in (tmp_path / "nowhere", tmp_path / "no" / "folder"):
        with pytest.raises(InvalidRequest, match="no such journal"):
            open_job(sending, missing)
        with pytest.raises(InvalidRequest, match="no such journal"):
            await sending.job(missing).resume()
    with pytest.raises(InvalidRequest, match="there is no directory"):
        await sending.job(tmp_path / "no" / "folder").run(rows_of(1, 1))
    assert not (tmp_path / "nowhere").exists()


async def test_nobody_else_may_read_it(journal):
    await Sending().job(journal).run(rows_of(1, 1))
    assert journal.stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_ends_the_run_and_it_goes_on_when_there_is_room(journal):
    sending = Sending()

    def fill(op):
        if len(sending.operations) == 10:
            database = run._running._journal.database
            ((pages,),) = database.execute("PRAGMA page_count")
            database.execute(f"PRAGMA max_page_count = {pages}")
        return Invited(fails=tuple(Fail(member=member, reason=f"{member} {'x' * 400}") for member in op.members))

    sending.act = fill
    job = sending.job(journal, chunk=1, concurrency=2)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        async with job.run(rows_of(1, 300)) as run:
            await anyio.sleep_forever()
    sent = len(sending.operations)
    assert 10 <= sent < 300
    assert sending.in_flight == 0
    counted = whole(await job.report())
    assert counted.unknown <= 2
    sending.act = lambda _: None
    await job.resume()
    assert Counter(states(journal).values()).keys() <= {DONE, REFUSED}
    assert len(sending.operations) == 300 + counted.unknown


# ---------------------------------------------------------------------- answers that are odd


async def test_entries_for_somebody_who_was_not_invited_are_noted(journal):
    odd = [("a1", "no"), ("a1", "again no"), ("", "who?"), ("stranger", "not asked for"), ("\ud800", "half \udfff a pair")]
    sending = Sending(lambda _: Invited(fails=tuple(Fail(member=member, reason=reason) for member, reason in odd)))
    job = sending.job(journal)
    await job.run(rows_of(1, 3))
    assert states(journal) == {("g0", "a0"): DONE, ("g0", "a1"): REFUSED, ("g0", "a2"): DONE}
    assert reasons(journal) == {"a0": None, "a1": "no", "a2": None}
    noted = read(journal, "SELECT account, text FROM anomaly JOIN reason ON reason.id = reason ORDER BY anomaly.rowid")
    assert noted[:2] == [("", "who?"), ("stranger", "not asked for")]
    assert len(noted) == 3
    assert (await job.report()).anomalies == 3


async def test_reasons_are_kept_in_one_line_of_some_length(journal):
    sending = Sending(lambda _: Invited(fails=(Fail(member="a0", reason="line\n" * 1000),)))
    await sending.job(journal).run(rows_of(1, 1))
    reason = reasons(journal)["a0"]
    assert reason.startswith("line line")
    assert len(reason) <= 503


# ------------------------------------------------------------------------------ other operations


@operation("Nudge", repeat=Repeat.CONVERGES)
@frozen(kw_only=True)
class Nudge(GroupOperation[Success]):
    group_id: str = field()
    member: str = field()
    day: date | None = None
    tags: tuple[str, ...] = ()


@operation("Beep")
@frozen(kw_only=True)
class Beep(GroupOperation[Success]):
    member: str = field()


async def test_members_are_removed(journal):
    async with world() as it:
        (group,) = it.groups
        await it.client.groups.invite(group_id=group, members=[f"a{n}" for n in range(6)])
        await RemoveJob(it.client, journal=journal, user_name="admin", chunk=2).run([(group, f"a{n}") for n in range(4)])
        assert it.members(group) == {"a4", "a5"}
        assert [op.user_name for op in it.emulator.requests.of(DeleteGroupMember)] == ["admin", "admin"]
        assert read(journal, "SELECT DISTINCT state FROM accounts") == [("removed",)]


async def test_accounts_join_and_leave_by_themselves(tmp_path):
    async with world(2) as it:
        rows = [(group, f"a{n}") for n in range(3) for group in it.groups]
        await Job(it.client, JoinGroup, journal=tmp_path / "join", options={"declared": "hello"}).run(rows)
        assert all(it.members(group) == {"a0", "a1", "a2"} for group in it.groups)
        assert {(op.user_name, op.declared) for op in it.emulator.requests.of(JoinGroup)} == {
            (f"a{n}", "hello") for n in range(3)
        }
        await Job(it.client, LogoutGroup, journal=tmp_path / "leave").run(rows[:4])
        assert all(it.members(group) == {"a2"} for group in it.groups)
        assert set(read(tmp_path / "leave", "SELECT state FROM accounts")) == {("left",)}


async def test_a_job_that_sets_roles_is_resumed_from_its_journal_alone(journal):
    async with world() as it:
        (group,) = it.groups
        await it.client.groups.invite(group_id=group, members=[f"a{n}" for n in range(6)])
        job = Job(it.client, SetMemberRole, journal=journal, options={"role": Role.ADMINISTRATOR}, concurrency=1)
        it.plan(Code("111109"), operation=SetMemberRole, nth=[4])
        with pytest.raises(AuthenticationError):
            await job.run([(group, f"a{n}") for n in range(6)])
        again = open_job(it.client, journal)
        assert (again.work.operation, again.work.options) == (SetMemberRole, {"role": Role.ADMINISTRATOR})
        assert again.settings.concurrency == 1
        await again.resume()
        roles = it.emulator.state.groups[group].members
        assert {roles[f"a{n}"] for n in range(6)} == {Role.ADMINISTRATOR}


@pytest.fixture
def nudges():
    """A namespace, without which the catalogue does not know an operation; the catalogue lets go of it."""
    yield [type("Nudges", (Namespace,), {"nudge": Method(Nudge)})]
    gc.collect()


@pytest.mark.usefixtures("nudges")
async def test_an_operation_of_ones_own_with_options_that_json_has_not(journal):
    sending = Sending(lambda _: Success())
    options = {"day": date(2026, 1, 2), "tags": ("a", "b")}
    for _ in range(2):
        await Job(sending, Nudge, journal=journal, options=options, clock=sending.clock).run(rows_of(1, 2))
    again = open_job(sending, journal, clock=sending.clock)
    assert again.work.options == options
    await again.resume()
    assert sending.operations == [Nudge(group_id="g0", member=f"a{n}", **options) for n in range(2)]


@pytest.mark.parametrize(
    ("kind", "options", "field_name"),
    [
        (Beep, {}, "operation"),
        (CreateGroup, {"type": GroupType.VIP}, "operation"),
        (InviteJoinGroup, {"declred": "x"}, "options"),
        (InviteJoinGroup, {"members": ["a"]}, "options"),
        (InviteJoinGroup, {"group_id": "g"}, "options"),
        (JoinGroup, {"user_name": "a"}, "options"),
        (SetMemberRole, {}, "options"),
        (SetMemberRole, {"role": "1"}, "role"),
        (InviteJoinGroup, {"declared": "x" * 51}, "declared"),
    ],
)
def test_what_cannot_be_a_job_is_refused(journal, kind, options, field_name):
    with pytest.raises(InvalidRequest) as caught:
        Job(Sending(), kind, journal=journal, options=options)
    assert caught.value.field == field_name


@pytest.mark.parametrize(
    ("settings", "field_name"),
    [
        ({"chunk": 0}, "chunk"),
        ({"chunk": 51}, "chunk"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_failures": -1}, "max_failures"),
        ({"max_failures": 1.5}, "max_failures"),
        ({"patience": 0}, "patience"),
        ({"isolate": -1}, "isolate"),
        ({"isolate": True}, "isolate"),
        ({"resend_within": -1.0}, "resend_within"),
        ({"resend_within": "1h"}, "resend_within"),
    ],
)
def test_settings_that_cannot_be_are_refused(journal, settings, field_name):
    with pytest.raises(InvalidRequest) as caught:
        InviteJob(Sending(), journal=journal, **settings)
    assert caught.value.field == field_name


async def test_a_journal_of_an_operation_that_nobody_has_declared(journal):
    sending = Sending()
    await sending.job(journal).run(rows_of(1, 1))
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE job SET operation = 'Unheard'")
        connection.commit()
    with pytest.raises(InvalidRequest, match="nobody has declared the operation Unheard"):
        open_job(sending, journal)


async def test_a_job_is_run_again_as_it_was_but_for_what_is_told(journal):
    sending = Sending()
    rates = [Rate(5, 2.0, burst=3), Rate(2, each_group=True)]
    job = sending.job(
        journal, rates=rates, concurrency=7, patience=9.0, max_failures=None, isolate=4, retry=Retry(attempts=2)
    )
    await job.run(rows_of(1, 1))
    again = open_job(sending, journal, clock=sending.clock, concurrency=3).settings
    assert (again.rates, again.concurrency, again.adaptive) == (tuple(rates), 3, False)
    assert (again.patience, again.fuse.most, again.isolate, again.retry.attempts) == (9.0, None, 4, 2)
    assert again.resend_within == 3600.0


async def test_a_rate_of_other_operations_stays_one(journal):
    sending = Sending()
    rates = [Rate(1, 3600.0, operations=(JoinGroup,)), Rate(100, operations=(InviteJoinGroup,))]
    await sending.job(journal, rates=rates).run(rows_of(1, 1))
    assert open_job(sending, journal, clock=sending.clock).settings.rates == tuple(rates)


# ------------------------------------------------------------------------------------- estimates


async def test_an_estimate_counts_what_the_job_would_be(tmp_path, journal):
    sending = Sending()
    rows = [*rows_of(3, 7), ("g0", "a0"), ("", "a1"), ("g0", "a9", "boss")]
    job = sending.job(journal, chunk=3, rates=[Rate(2), Rate(1, each_group=True)])
    estimate = await job.estimate(rows)
    assert (estimate.rows, estimate.bad, estimate.duplicates, estimate.groups) == (24, 1, 1, 3)
    assert estimate.requests == 3 * 3 + 1
    assert estimate.seconds == pytest.approx(4.5)
    assert list(tmp_path.iterdir()) == []
    await job.run(rows)
    assert len(sending.operations) == estimate.requests
    assert (await sending.job(journal).estimate([])).seconds is None


# ------------------------------------------------------------------------------------- real time


async def test_on_real_time_a_job_leaves_nothing_running(journal):
    async with AsyncClient(
        base_url="http://e", credentials=(emulator := Emulator()).credentials, transport=emulator
    ) as client:
        group = (await client.groups.create(name="g", type=GroupType.VIP)).group_id
        rows = [(group, f"a{n}") for n in range(1000)]
        job = InviteJob(client, journal=journal, chunk=10)
        begin = time.monotonic()
        async with job.run(rows) as progress:
            snapshots = [snapshot async for snapshot in progress]
        assert snapshots[-1].phase == "ended"
        assert (snapshots[-1].done, snapshots[-1].waiting, snapshots[-1].eta) == (1000, 0, 0.0)
        assert time.monotonic() - begin < 20
        assert len(emulator.state.groups[group].members) == 1001
        assert whole(await job.report()).done == 1000
        began = read(journal, "SELECT began, ended FROM run")[0]
        assert time.time() - 60 < began[0] <= began[1] <= time.time()


async def test_snapshots_come_twice_a_second_and_say_what_happens(journal):
    sending = Sending(seconds=1.0)
    job = sending.job(journal, chunk=1, concurrency=2)
    async with job.run(rows_of(1, 10)) as progress:
        seen = [snapshot async for snapshot in progress]
    steps = [later.elapsed - earlier.elapsed for earlier, later in pairwise(seen)]
    assert all(step <= 0.51 for step in steps)
    middle = next(each for each in seen if each.done == 4)
    assert (middle.phase, middle.waiting, middle.in_flight, middle.concurrency) == ("running", 6, 2, 2)
    assert middle.rate == pytest.approx(2.0, rel=0.5)
    assert middle.eta == pytest.approx(6 / middle.rate)
    samples = read(journal, "SELECT sum(requests), sum(accounts), sum(throttled), sum(failed) FROM sample")
    assert samples == [(10, 10, 0, 0)]
    assert sum(seconds for (seconds,) in read(journal, "SELECT seconds FROM sample")) == pytest.approx(5.0, abs=0.1)


# --------------------------------------------------------------------------- questions to the file


async def test_the_journal_answers_questions_in_sql(journal):
    async with world(2) as it:
        first, second = it.groups
        it.emulator.never_logged_in("a1", "a2")
        it.plan(ResetAfter(), nth=[1])
        it.plan(ResetBefore(), match={"group_id": second})
        rows = [(first, f"a{n}") for n in range(6)] + [(second, "a0")]
        await InviteJob(it.client, journal=journal, retry=NO_PAUSES, concurrency=1).run(rows)
        by_state = read(journal, ACCOUNTS_BY_STATE, (first,))
        assert by_state == [("invited", None, 4), ("refused", "the account has never logged in", 2)]
        assert [row[1:4] for row in read(journal, DOUBTFUL)] == [
            (first, "unknown", 0),
            (first, "answered", 1),
            *[(second, "unknown", int(n > 0)) for n in range(3)],
        ]
        ((minute, requests, accounts),) = read(journal, PER_MINUTE)
        assert (minute, requests, accounts) == ("2026-01-02 03:04", 5, 6)


ACCOUNTS_BY_STATE = """SELECT state, reason, count(*) AS accounts FROM accounts WHERE "group" = ?
GROUP BY state, reason ORDER BY accounts DESC"""

DOUBTFUL = """SELECT id, "group", outcome, resent, attempt, members, begun, reason FROM requests
WHERE resent = 1 OR outcome = 'unknown' ORDER BY "group", id"""

PER_MINUTE = """SELECT strftime('%Y-%m-%d %H:%M', ended) AS minute, count(*) AS requests,
sum(CASE WHEN outcome = 'answered' THEN members ELSE 0 END) AS accounts
FROM requests WHERE ended IS NOT NULL GROUP BY minute ORDER BY minute"""


def test_settings_survive_json(journal):
    job = InviteJob(Sending(), journal=journal, patience=float("inf"), rates=[Rate(5)])
    assert json.loads(json.dumps(job.settings.as_json())) == job.settings.as_json()
