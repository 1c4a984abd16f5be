"""Jobs against the emulator: what the journal says is what the platform did, whatever went wrong on the way."""

import gc
import json
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import date
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import field, frozen
from hypothesis import example, given, strategies as st

from helpers.fixed_clock import FixedClock
from helpers.jobs import (
    ACCOUNTS,
    AGAIN,
    DONE,
    FAILED,
    NO_PAUSES,
    REFUSED,
    SHORT,
    UNKNOWN,
    WAITING,
    Sending,
    accounts_of_requests,
    begun,
    read,
    reasons,
    rows_of,
    states,
    whole,
    world,
)
from helpers.tables import each_row
from rbim import (
    CreateGroup,
    DeleteGroupMember,
    Dialect,
    GroupType,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    Rate,
    Repeat,
    Response,
    Retry,
    SetMemberRole,
)
from rbim.bulk.job import InviteJob, Job, RemoveJob, open_job
from rbim.emulator import Rules
from rbim.emulator.faults import Code, CutShort, InvalidJson, Latency, Refuse, ResetAfter, ResetBefore, Status, Throttle
from rbim.operations.base import operation
from rbim.operations.fails import Fail
from rbim.operations.groups import GroupOperation, Invited, Success
from rbim.operations.namespace import Method, Namespace
from rbim.wire.codec import Codec

# -------------------------------------------------------------------------- whatever goes wrong

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


async def live_through(  # noqa: PLR0915  # one life, looked at from all sides
    rows, faults, unlucky, *, chunk, concurrency, isolate, fuse, confirm, already_fails, stop_at=None
):
    async with world(2, rules=Rules(invited_member_fails=already_fails)) as it:
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
            noted = Counter(sending[:3] for sending in sendings if sending)
            assert (arrived - noted).total() <= sendings.count(None)
            left_over = noted - arrived
            not_sent = Counter(sending[:3] for sending in sendings if sending and sending[3] == 3)
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
    lost = {
        number
        for (number,) in read(path, "SELECT id FROM request WHERE outcome = 0 OR retry = 1 AND (outcome = 4 OR resent)")
    }
    inside = accounts_of_requests(path)
    return {each[:2] for number in lost for each in inside[number] if each.state in {WAITING, AGAIN}}


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


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.ci)])
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
@example(
    stop_at=None,
    rows=[("first", "a0"), ("second", "a0"), ("second", "a1")],
    faults=[(Code("999123"), {"probability": 0.5, "times": 1}), (Refuse(), {"probability": 1.0, "times": 2})],
    unlucky=set(),
    chunk=2,
    concurrency=1,
    isolate=3,
    fuse=None,
    confirm=False,
    already_fails=False,
)
@example(  # ended while a repetition waits for the commit of its intent
    stop_at=None,
    rows=[("first", "a0"), ("first", "a1")],
    faults=[(ResetBefore(), {"probability": 1.0, "times": 5})],
    unlucky=set(),
    chunk=1,
    concurrency=2,
    isolate=0,
    fuse=0,
    confirm=False,
    already_fails=False,
)
async def test_each_account_ends_in_the_state_that_the_platform_has_it_in(**life):
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


# ---------------------------------------------------------------------- answers that are odd


async def test_entries_for_somebody_who_was_not_invited_are_noted_and_leave_the_others_unknown(journal):
    odd = [("a1", "no"), ("a1", "again no"), ("", "who?"), ("stranger", "not asked for"), ("\ud800", "half \udfff a pair")]
    sending = Sending(lambda _: Invited(fails=tuple(Fail(member=member, reason=reason) for member, reason in odd)))
    job = sending.job(journal)
    await job.run(rows_of(1, 3))
    assert states(journal) == {("g0", "a0"): UNKNOWN, ("g0", "a1"): REFUSED, ("g0", "a2"): UNKNOWN}
    doubt = "the answer lists a failure that names no account of the request"
    assert reasons(journal) == {"a0": doubt, "a1": "no", "a2": doubt}
    noted = read(journal, "SELECT account, text FROM anomaly JOIN reason ON reason.id = reason ORDER BY anomaly.rowid")
    assert noted[:2] == [("", "who?"), ("stranger", "not asked for")]
    assert len(noted) == 3
    assert (await job.report()).anomalies == 3


TEN = [f"a{number}" for number in range(10)]


@each_row(
    "fails, state",
    [
        ([{"reason": "r"}], UNKNOWN),
        ({"fail": {"member": TEN, "reason": "r"}}, REFUSED),
        (",".join(TEN), REFUSED),
        ([f"app#{account}" for account in TEN], REFUSED),
        ([f"other#{account}" for account in TEN], UNKNOWN),
        ([{"member": f" {account.upper()} "} for account in TEN], REFUSED),
        ([{"userName": account, "msg": "m"} for account in TEN], REFUSED),
        ([{"Member": account} for account in TEN], REFUSED),
        (dict.fromkeys(TEN, "why"), REFUSED),
        ([{account: "why"} for account in TEN], REFUSED),
        ([{"who": account} for account in TEN], UNKNOWN),
        ("all of them", UNKNOWN),
        (10, UNKNOWN),
    ],
)
async def test_accounts_that_are_refused_in_any_words_are_never_done(tmp_path, fails, state):
    journal = tmp_path / str(hash(str(fails)))
    codec = Codec(app_id="app", base_url="https://host", dialect=Dialect(), clock=FixedClock())
    body = json.dumps({"statusCode": "000000", "fails": fails}).encode()
    job = Sending(lambda op: codec.decode(op, Response(200, {}, body))).job(journal)
    await job.run(rows_of(1, 10))
    assert states(journal) == {("g0", account): state for account in TEN}


@each_row(
    "kind, body, state",
    [
        (InviteJob, {"failList": [{"member": "a1"}]}, UNKNOWN),
        (InviteJob, {"data": {"fails": ["a1"]}}, UNKNOWN),
        (InviteJob, {"failCount": 0, "data": {"failList": []}}, DONE),
        (RemoveJob, {"fails": ["a1"]}, UNKNOWN),
        (RemoveJob, {"data": {"failCount": "1"}}, UNKNOWN),
        (RemoveJob, {"fails": [], "failCount": "0"}, DONE),
    ],
)
async def test_accounts_are_not_done_while_a_field_under_another_name_tells_of_failures(tmp_path, kind, body, state):
    journal = tmp_path / str(hash(str((kind, body))))
    codec = Codec(app_id="app", base_url="https://host", dialect=Dialect(), clock=FixedClock())
    text = json.dumps({"statusCode": "000000", **body}).encode()
    job = Sending(lambda op: codec.decode(op, Response(200, {}, text))).job(journal, kind)
    await job.run(rows_of(1, 10))
    assert states(journal) == {("g0", account): state for account in TEN}
    assert (await job.report()).anomalies == (state is UNKNOWN)


# ------------------------------------------------------------------------------ other operations


@operation("Nudge", repeat=Repeat.IDEMPOTENT)
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


@pytest.fixture
def nudges():
    """A namespace, without which the catalogue does not know an operation; the catalogue lets go of it."""
    declared = [type("Nudges", (Namespace,), {"nudge": Method(Nudge)})]
    yield declared
    declared.clear()  # pytest keeps the list a while longer
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


@each_row(
    "kind, options, field_name",
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


async def test_a_journal_of_an_operation_that_nobody_has_declared(journal):
    sending = Sending()
    await sending.job(journal).run(rows_of(1, 1))
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE job SET operation = 'Unheard'")
        connection.commit()
    with pytest.raises(InvalidRequest, match="unknown operation Unheard"):
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
    assert (again.patience, again.max_failures, again.isolate, again.retry.attempts) == (9.0, None, 4, 2)
    assert again.resend_within == 3600.0


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
        assert by_state == [("invited", None, 4), ("unknown", "the account has never logged in", 2)]
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
