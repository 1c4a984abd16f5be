"""The journal of a job, used by itself: loading, planning, what an ended run has left, and the lock."""

import io
import os
import sqlite3
import subprocess
import sys
import tracemalloc
from array import array
from collections import Counter, deque
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings, strategies as st

from helpers.jobs import accounts
from rbim import InvalidRequest
from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import BadRow, Columns, Row
from rbim.bulk.journal import duplicates, facts, loading, marks, packing
from rbim.bulk.journal.facts import JobFacts
from rbim.bulk.journal.journal import OPEN_CHUNKS, Ended, Journal, Sample
from rbim.bulk.journal.loading import BATCH, Loaded, Loader, batches, row_of
from rbim.bulk.journal.lock import JobLock, is_locked
from rbim.bulk.journal.parts import Selection
from rbim.bulk.work import AccountState, FailureReason, RequestState, Settlement
from rbim.clock import SystemClock
from rbim.emulator import EmulatedClock
from rbim.storage.sqlite import CommandFailure

SHORT = settings(max_examples=40, deadline=None)
DONE = Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE)


class Book:
    """A journal with a job in it, each command in a transaction of its own; nothing here waits for the disk."""

    def __init__(self, path, rows=(), *, chunk=50, clock=None):
        self.clock = clock or EmulatedClock()
        self.journal = Journal(path, clock=self.clock)
        self.journal.open()
        self.journal.database.execute("PRAGMA synchronous = OFF")
        facts = JobFacts(
            operation="InviteJoinGroup",
            options={},
            chunk=chunk,
            settings={},
            source={},
            created=0.0,
            loaded=None,
            input=Loaded(rows=0, bad=0, duplicates=0, digest=""),
        )
        self.loader = self.do(self.journal.create, facts, "invited")
        for start in range(0, len(rows), 7):  # batches of another size than any chunk
            self.do(self.loader.add, Columns.of(row_of(start + n, row) for n, row in enumerate(rows[start : start + 7], 1)))
        self.do(self.journal.loaded, self.loader, {"name": "rows"})
        try:
            self.begin()
        except BaseException:
            self.journal.database.close()
            raise

    def begin(self):
        """Begin a run, after the end of the one before."""
        if self.journal._marks is not None:
            self.do(self.journal.end_run, "stopped")
            self.journal._marks.close(remove=True)
            self.do(self.journal.recover, "report", 0.0)
        self.do(self.journal.begin_run, {})

    def plan(self, limit, accounts=None):
        return self.do(self.journal.plan, limit, accounts)

    def leave(self, chunk):
        chunk.begun = self.clock.now().timestamp()
        self.journal.mark(chunk, chunk.begun)

    def die(self):
        """Leave what a killed process leaves, and begin another one."""
        self.journal._marks._file.close()
        self.journal._marks = None
        self.journal.database.close()
        self.journal = Journal(self.journal.path, clock=self.clock)
        self.journal.open()

    def do(self, command, *values, **options):
        (result,) = self.journal.commit([partial(command, *values, **options)])
        assert not isinstance(result, CommandFailure)
        return result

    def send(self, chunk, settlement=DONE):
        self.leave(chunk)
        self.do(self.journal.settle, [Ended(chunk, settlement, chunk.begun, 0.5)])
        self.journal.forget_mark(chunk)
        return chunk.number

    def read(self, statement, values=()):
        return self.journal.database.execute(statement, values).fetchall()

    @property
    def accounts(self):
        return accounts(self.journal.path)

    def states(self):
        return {each[:2]: AccountState(each.state) for each in self.accounts}


@contextmanager
def book(*args, path=None, **options):
    with TemporaryDirectory() as folder:
        made = Book(path or Path(folder) / "journal", *args, **options)
        try:
            yield made
        finally:
            made.journal.close()


def drain(made, window, *, lag=0):
    """Plan and send until nothing is left, as a run does: so many planned ahead, so many of them not sent yet."""
    ready, sent = deque(), []
    while True:
        chunks = made.plan(window - len(ready))
        assert len(chunks) <= window - len(ready)
        ready.extend(chunks)
        if not ready:
            return sent
        while len(ready) > (lag if chunks else 0):
            chunk = ready.popleft()
            made.send(chunk)
            sent.append((chunk.group, chunk.user_name, chunk.accounts))


# ----------------------------------------------------------------------------------------- loading

NAMES = st.sampled_from(["g1", "g2", "研发部", "g 4"])
PEOPLE = st.integers(0, 9).map(lambda n: f"a{n}")
ROWS = st.lists(
    st.tuples(NAMES, PEOPLE) | st.tuples(NAMES, PEOPLE, st.sampled_from([None, "x", "y"])) | st.just(()), max_size=60
)


@SHORT
@given(ROWS)
def test_rows_are_numbered_and_the_first_of_each_counts(rows):
    first = {}
    duplicates = []
    for seq, row in enumerate(rows, 1):
        if row and first.setdefault(row[:2], seq) != seq:
            duplicates.append((seq, *row[:2], first[row[:2]]))
    with book(rows) as made:
        assert {each[:2]: each.seq for each in made.accounts} == first
        assert {each.seq: each.user for each in made.accounts} == {
            seq: (rows[seq - 1] + (None,))[2] for seq in first.values()
        }
        view = made.read('SELECT "group", account, seq, user_name, state FROM accounts ORDER BY seq')
        assert view == [(*each[:2], each.seq, each.user or "", "waiting") for each in made.accounts]
        twice = made.read(
            """SELECT seq, name, account, first FROM duplicate
            JOIN target_group ON target_group.id = target_group ORDER BY seq"""
        )
        assert twice == duplicates
        assert made.read("SELECT line FROM bad_row") == [(seq,) for seq, row in enumerate(rows, 1) if not row]
        facts = made.journal.facts()
        assert (facts.input.rows, facts.input.bad, facts.input.duplicates) == (len(rows), rows.count(()), len(duplicates))
        assert made.journal.counts() == dict.fromkeys(AccountState, 0) | {AccountState.WAITING: len(first)}


@pytest.mark.parametrize("few", [0, 3, 4, 100])
def test_many_hashes_are_a_set_like_few(monkeypatch, few):
    monkeypatch.setattr(duplicates, "FEW", few)
    kept = duplicates.Candidates(array("q", [-7, 0, 5, 9]))
    assert len(kept) == 4
    assert [value for value in range(-10, 12) if value in kept] == [-7, 0, 5, 9]
    assert kept.isdisjoint([-8, 1, 6, 10])
    assert not any(kept.isdisjoint([-8, value]) for value in (-7, 0, 5, 9))


@pytest.mark.parametrize("given", ["iterable", "async iterable"])
async def test_an_invalid_row_is_told_with_its_place_in_the_whole_input(monkeypatch, given):
    monkeypatch.setattr(loading, "BATCH", 3)
    rows = [("g", f"a{number}") for number in range(8)]
    rows[1] = rows[6] = ("g",)

    async def later():
        for row in rows:
            yield row

    found = [columns async for columns in loading.batches(rows if given == "iterable" else later())]
    assert [len(columns.accounts) for columns in found] == [3, 3, 2]
    assert [each.line for columns in found for each in columns.accounts if isinstance(each, BadRow)] == [2, 7]


@pytest.mark.parametrize("threads", [True, False])
async def test_a_file_is_read_in_batches_in_a_thread_or_without_one(monkeypatch, threads):
    monkeypatch.setattr(loading, "BATCH", 3)
    accounts = [f"a{number}" for number in range(8)]
    file = RowFile(io.BytesIO("".join(["group,account\n", *(f"g,{each}\n" for each in accounts)]).encode()))
    found = [columns.accounts async for columns in loading.batches(file, threads=threads)]
    assert [list(each) for each in found] == [accounts[:3], accounts[3:6], accounts[6:]]


@pytest.mark.parametrize("limit", ["MAX_SENDER_GROUPS", "MAX_HELD"])
def test_more_groups_and_rows_than_are_kept_in_memory(monkeypatch, limit):
    """What was written too early is put together: no request more than needed."""
    monkeypatch.setattr(loading, limit, 3)
    rows = [(f"g{n % 10}", f"a{n // 2}", f"u{n % 4}") for n in range(200)]
    with book(rows, chunk=4) as made:
        assert made.read("SELECT count(*) FROM target_group") == [(10,)]
        assert made.read("SELECT count(*) FROM sender_group") == [(20,)]
        assert Counter(each[:2] for each in made.accounts) == Counter({row[:2] for row in rows})
        by_sender_group = Counter((each.group, each.user) for each in made.accounts)
        assert made.read("SELECT count(*) FROM chunk") == [(sum(-(-number // 4) for number in by_sender_group.values()),)]


@pytest.mark.parametrize("run", [5, 10**6])
def test_duplicates_are_those_of_a_dictionary_whatever_their_hashes(monkeypatch, run):
    """Hashes meet (there are only 64 of them) and are sorted in many runs: only equal accounts are duplicates."""
    monkeypatch.setattr(duplicates, "RUN", run)
    for module in (loading, packing):
        monkeypatch.setattr(
            module,
            "hashes_of",
            lambda groups, names: [
                ((hash((group, each)) % 64) - 32) << 58 for group, each in zip(groups, names, strict=False)
            ],
        )
    dice = Random(run)
    rows = [(f"g{dice.randrange(3)}", f"a{dice.randrange(300)}", dice.choice([None, "x"])) for _ in range(700)]
    first, repeated = {}, []
    for seq, row in enumerate(rows, 1):
        if first.setdefault(row[:2], seq) != seq:
            repeated.append((seq, row[1], first[row[:2]]))
    with book(rows, chunk=7) as made:
        assert {each[:2]: each.seq for each in made.accounts} == first
        assert made.read("SELECT seq, account, first FROM duplicate ORDER BY seq") == repeated
        assert made.loader.loaded.duplicates == len(repeated)


def test_a_digest_tells_inputs_apart():
    rows = [("g", "a"), ("g", "b", "u"), ("", "x"), ("h", "a")]

    def digest(rows):
        loader = Loader(None)
        loader.add(Columns.of(row_of(n, row) for n, row in enumerate(rows, 1)))
        return loader.loaded.digest

    others = [rows[:-1], rows[::-1], [*rows, rows[0]], [("ga", ""), *rows[1:]], [("g", "a", "u"), *rows[1:]], []]
    assert len({digest(each) for each in [rows, *others]}) == len(others) + 1
    assert digest(rows) == digest(list(rows))


@pytest.mark.parametrize(
    ("given", "row"),
    [
        (("g", "a"), Row("g", "a")),
        (["g", "a", "u"], Row("g", "a", "u")),
        (Row("g", "a"), Row("g", "a")),
        (("g", "a", None), Row("g", "a", None)),
        (BadRow(9, "why", "raw"), BadRow(9, "why", "raw")),
    ],
)
def test_rows_of_an_iterable(given, row):
    assert row_of(1, given) == row


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("g",),
        ("g", "a", "u", "x"),
        "ga",
        b"ga",
        5,
        None,
        {"group": "g", "account": "a"},
        {"g", "a"},
        ("g", ""),
        ("", "a"),
        (None, "a"),
        ("g", None),
        ("g", ["a"]),
        ("g", {}),
        ("g", "a\nb"),
        ("g", "\ud800"),
        ("g", object()),
    ],
)
def test_rows_that_cannot_be_used(given):
    bad = row_of(3, given)
    assert isinstance(bad, BadRow)
    assert bad.line == 3
    assert bad.reason
    assert len(bad.raw) <= 250
    bad.raw.encode()


async def test_batches_are_the_rows():
    rows = [("g", f"a{n}") for n in range(2 * BATCH + 3)]

    async def slowly():
        for row in rows:
            yield row

    for source in (rows, iter(rows), slowly()):
        found = [batch async for batch in batches(source)]
        assert [len(batch.accounts) for batch in found] == [BATCH, BATCH, 3]
        assert [row[:2] for batch in found for row in batch.rows()] == rows
    assert [batch async for batch in batches([])] == []


def test_loading_takes_little_memory(tmp_path):
    with book(path=tmp_path / "journal") as made:
        loader = made.do(made.journal.create, made.journal.facts(), "invited")
        dice = Random(1)
        tracemalloc.start()
        for start in range(0, 100_000, BATCH):
            made.do(
                loader.add, Columns.of(Row(f"g{dice.randrange(50)}", f"account{n}") for n in range(start, start + BATCH))
            )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 12e6
        made.do(made.journal.loaded, loader, {})
        assert made.read("SELECT sum(size) FROM chunk") == [(100_000,)]


# ---------------------------------------------------------------------------------------- planning


def in_turn(rows, chunk):
    """Return what is to be sent: the groups in the order in which they appear, a chunk of each, and again.

    In a group, the accounts that act follow one another, each when the one before has no rows left. Chunks are made of the
    rows as they come; those that lose accounts which came before are put together.
    """
    groups, seen = {}, set()
    for seq, (group, account, *user) in enumerate(rows):
        queue = groups.setdefault(group, {}).setdefault(user[0] if user else None, [])
        queue.append((seq, account) if (group, account) not in seen else None)
        seen.add((group, account))
    turns = {
        group: deque(
            (group, user, tuple(account for _, account in part))
            for user, queue in queues.items()
            for part in sorted(put_together(queue, chunk))
        )
        for group, queues in groups.items()
    }
    order = []
    while any(turns.values()):
        order += [queue.popleft() for queue in turns.values() if queue]
    return order


def put_together(queue, chunk):
    parts = [[each for each in queue[at : at + chunk] if each] for at in range(0, len(queue), chunk)]
    rest = [each for part in parts if len(part) < chunk for each in part]
    return [part for part in parts if len(part) == chunk] + [rest[at : at + chunk] for at in range(0, len(rest), chunk)]


LANES = st.lists(st.tuples(NAMES, PEOPLE) | st.tuples(NAMES, PEOPLE, st.sampled_from(["x", "y"])), max_size=80)


@SHORT
@given(LANES, st.integers(1, 6), st.integers(1, 12), st.integers(0, 3))
def test_groups_have_their_turns_whatever_the_window(rows, chunk, window, lag):
    with book(rows, chunk=chunk) as made:
        assert drain(made, window, lag=min(lag, window - 1)) == in_turn(rows, chunk)
        assert set(made.states().values()) <= {AccountState.DONE}
        assert made.plan(5) == []


@SHORT
@given(LANES, st.integers(1, 6), st.integers(1, 12), st.integers(0, 20))
def test_planning_begins_where_the_last_run_ended(rows, chunk, window, ends):
    """What was planned and not sent is planned again."""
    with book(rows, chunk=chunk) as made:
        planned = made.plan(ends + window)
        for each in planned[:ends]:
            made.send(each)
        sent = [(each.group, each.user_name, each.accounts) for each in planned[:ends]]
        made.begin()
        assert made.read("SELECT count(*) FROM request") == [(len(sent),)]
        rest = drain(made, window)
        assert Counter([*sent, *rest]) == Counter(in_turn(rows, chunk))


def test_planning_reads_no_more_than_it_is_asked_for():
    """A huge group and ten thousand small ones: time and memory are those of the window."""
    with book(chunk=5) as made:
        loader = made.do(made.journal.create, made.journal.facts(), "invited")
        made.do(loader.add, Columns.of(Row("huge", f"a{n}") for n in range(20_000)))
        made.do(loader.add, Columns.of(Row(f"g{n}", "a") for n in range(10_000)))
        made.do(made.journal.loaded, loader, {})
        made.begin()
        steps = 0

        def count():
            nonlocal steps
            steps += 1

        tracemalloc.start()
        made.journal.database._connection.set_progress_handler(count, 1000)
        order = []
        for _ in range(20):
            chunks = made.plan(50)
            order += [chunk.group for chunk in chunks]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert order == ["huge", *(f"g{n}" for n in range(999))]
        assert peak < 1e6
        assert steps < 1000  # a million steps of SQLite's machine for 1000 chunks


def test_a_sender_group_of_duplicates_is_done_without_a_request():
    rows = [("g", "a"), ("g", "a", "x"), ("g", "a", "y"), ("h", "b")]
    with book(rows) as made:
        assert drain(made, 10) == [("g", None, ("a",)), ("h", None, ("b",))]
        assert made.read("SELECT count(*) FROM request") == [(2,)]


# --------------------------------------------------------------------------------- outcomes, again


def test_an_outcome_is_that_of_those_who_waited():
    rows = [("g", f"a{n}") for n in range(6)]
    with book(rows, chunk=3) as made:
        one, two = made.plan(10)
        made.send(
            one,
            Settlement(
                outcome=RequestState.REFUSED, state=AccountState.FAILED, reason=FailureReason("no", "999123", "ApiError")
            ),
        )
        individual = ((1, AccountState.REFUSED, FailureReason("never logged in")),)
        anomalies = (("stranger", FailureReason("who?")),)
        number = made.send(
            two,
            Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE, individual=individual, anomalies=anomalies),
        )
        states = [state.name for _, state in sorted(made.states().items())]
        assert states == ["FAILED"] * 3 + ["DONE", "REFUSED", "DONE"]
        assert made.read(
            "SELECT account, reason, code, error, state FROM accounts WHERE reason IS NOT NULL ORDER BY seq"
        ) == [
            *[(f"a{n}", "no", "999123", "ApiError", "failed") for n in range(3)],
            ("a4", "never logged in", "", "", "refused"),
        ]
        assert made.read("SELECT request, account FROM anomaly") == [(number, "stranger")]
        assert made.read("SELECT count(*) FROM reason") == [(3,)]


def test_halves_belong_to_the_request_they_were():
    with book([("g", f"a{n}") for n in range(5)], chunk=5) as made:
        (chunk,) = made.plan(10)
        made.leave(chunk)
        number = chunk.number
        refused = Settlement(outcome=RequestState.REFUSED, reason=FailureReason("no"))
        one, two = made.do(made.journal.split, Ended(chunk, refused, chunk.begun, 0.1))
        assert (one.accounts, two.accounts) == (("a0", "a1", "a2"), ("a3", "a4"))
        made.send(one)
        assert made.read("SELECT id, members, repeats, outcome, todo, split FROM request ORDER BY id") == [
            (number, 5, None, 2, 0, 1),
            (one.number, 3, number, 1, 0, 0),
            (two.number, 2, number, 5, 0, 0),
        ]
        made.die()
        made.do(made.journal.recover, "report", 0.0)  # another run
        made.begin()
        (again,) = made.plan(10)
        assert (again.accounts, again.repeats, again.attempt, again.resent) == (two.accounts, number, 1, False)
        made.send(again)
        assert set(made.states().values()) == {AccountState.DONE}
        assert made.plan(10) == []
        assert [each.seq for each in made.accounts] == [1, 2, 3, 4, 5]


def test_a_limit_of_accounts_divides_the_chunk_in_which_it_lies():
    with book([("g", f"a{n}") for n in range(10)] + [("h", "b")], chunk=4) as made:
        sent = made.plan(10, 6)
        assert [each.accounts for each in sent] == [("a0", "a1", "a2", "a3"), ("b",), ("a4",)]
        for each in sent:
            made.send(each)
        assert made.plan(10, 0) == []
        made.begin()
        assert [each.accounts for each in made.plan(10)] == [("a8", "a9"), ("a5", "a6", "a7")]
        assert [each.seq for each in made.accounts] == list(range(1, 12))


def test_what_is_sent_again_comes_first_and_says_so():
    lost = Settlement(outcome=RequestState.UNKNOWN, reason=FailureReason("reset"), again=True)
    with book([(f"g{n}", "a") for n in range(4)], chunk=1) as made:
        chunks = made.plan(2)
        made.send(chunks[0], lost)
        made.send(chunks[1], Settlement(outcome=RequestState.REFUSED, reason=FailureReason("busy"), again=True))
        made.do(made.journal.end_run, "stopped")
        made.journal._marks.close(remove=True)
        made.journal._marks = None
        made.do(made.journal.recover, "resend", 0.0)
        made.begin()
        found = made.plan(10)
        assert [(each.group, each.attempt, each.resent) for each in found] == [
            ("g0", 2, True),
            ("g1", 2, False),
            ("g2", 1, False),
            ("g3", 1, False),
        ]
        for each in found:
            made.send(each)
        assert made.read("SELECT repeats, resent FROM request ORDER BY id") == [
            (None, 0),
            (None, 0),
            (1, 1),
            (2, 0),
            (None, 0),
            (None, 0),
        ]
        assert made.read("SELECT count(*) FROM request WHERE todo = 1") == [(0,)]


def test_what_a_limit_of_accounts_keeps_from_being_sent_again_is_sent_again_by_the_next_run():
    busy = Settlement(outcome=RequestState.REFUSED, reason=FailureReason("busy"), again=True)
    with book([(f"g{n}", "a") for n in range(3)], chunk=1) as made:
        for chunk in made.plan(2):
            made.send(chunk, busy)
        made.begin()
        (first,) = made.plan(10, 1)
        assert (first.group, first.attempt) == ("g0", 2)
        made.send(first)
        made.begin()
        assert [(each.group, each.attempt) for each in made.plan(10)] == [("g1", 2), ("g2", 1)]


def test_who_was_unknown_and_waits_again_is_sent_again():
    unknown = Settlement(outcome=RequestState.UNKNOWN, state=AccountState.UNKNOWN, reason=FailureReason("reset"))
    with book([("g", f"a{n}") for n in range(6)], chunk=2) as made:
        one, two, three = made.plan(10)
        made.send(one, unknown)
        made.send(two)
        made.send(three, Settlement(outcome=RequestState.REFUSED, state=AccountState.FAILED, reason=FailureReason("no")))
        assert made.do(made.journal.retry, Selection((AccountState.UNKNOWN,))) == 2
        assert made.journal.counts()[AccountState.AGAIN] == 2
        made.begin()
        (again,) = made.plan(10)
        assert (again.accounts, again.resent) == (("a0", "a1"), True)
        made.send(again)
        assert made.do(made.journal.retry, Selection((AccountState.FAILED, AccountState.UNKNOWN))) == 2
        made.begin()
        (last,) = made.plan(10)
        assert (last.accounts, last.resent) == (("a4", "a5"), False)


@SHORT
@given(
    st.lists(
        st.sampled_from(["open", "answered", "planned", "lost", "busy", "done", "failed", "unknown", "waits"]),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["auto", "resend", "report"]),
    st.floats(0, 200),
)
def test_after_recovery_everybody_waits_once_or_is_settled(fates, on_unknown, age):
    settlements = {
        "lost": Settlement(outcome=RequestState.UNKNOWN, reason=FailureReason("reset"), again=True),
        "busy": Settlement(outcome=RequestState.REFUSED, reason=FailureReason("busy"), again=True),
        "done": DONE,
        "failed": Settlement(outcome=RequestState.REFUSED, state=AccountState.FAILED, reason=FailureReason("no")),
        "unknown": Settlement(outcome=RequestState.UNKNOWN, state=AccountState.UNKNOWN, reason=FailureReason("reset")),
    }
    with book([("g", f"a{n}") for n in range(2 * len(fates))], chunk=2) as made:
        fate_of = {}
        for fate in sorted(fates, key="waits".__eq__):
            (chunk,) = made.plan(1)
            fate_of |= dict.fromkeys(chunk.accounts, fate)
            if fate == "open":
                made.leave(chunk)
            elif fate == "answered":
                made.leave(chunk)
                made.journal.mark_done(chunk, 0.5)
            elif fate not in {"waits", "planned"}:
                made.send(chunk, settlements[fate])
        made.die()
        made.clock.elapsed += age
        made.do(made.journal.recover, on_unknown, 100.0)
        made.begin()
        resend = on_unknown == "resend" or (on_unknown == "auto" and age < 100)
        waiting = {"busy", "waits", "planned"} | ({"open", "lost"} if resend else set())
        planned = [account for chunk in made.plan(100) for account in chunk.accounts]
        assert Counter(planned) == Counter(account for account, fate in fate_of.items() if fate in waiting)
        after = {"done": AccountState.DONE, "failed": AccountState.FAILED, "unknown": AccountState.UNKNOWN}
        after |= dict.fromkeys(["busy", "waits", "planned"], AccountState.WAITING) | {"answered": AccountState.DONE}
        after |= dict.fromkeys(["open", "lost"], AccountState.WAITING if resend else AccountState.UNKNOWN)
        assert {account: state for (_, account), state in made.states().items()} == {
            account: after[fate] for account, fate in fate_of.items()
        }


def test_runs_and_samples_are_noted():
    with book([("g", "a")]) as made:
        made.do(made.journal.sample, Sample(5.0, 1.0, 2, 3, 4, 5, 6.5, 7, None))
        made.clock.elapsed += 10
        made.do(made.journal.end_run, "done")
        ((began, ended, reason),) = made.read("SELECT began, ended, why FROM run")
        assert (ended - began, reason) == (10, "done")
        assert made.read("SELECT * FROM sample") == [(1, 5.0, 1.0, 2, 3, 4, 5, 6.5, 7, None)]


def test_after_a_command_that_failed_nothing_is_recorded():
    with book([("g", "a")]) as made:
        with pytest.raises(sqlite3.Error):
            made.journal.commit([partial(made.journal.database.execute, "INSERT INTO nowhere VALUES (1)")])
        with pytest.raises(sqlite3.Error):
            made.do(made.journal.end_run, "done")
        assert made.read("SELECT why FROM run") == [(None,)]


def test_requests_that_would_be_needed():
    rows = [("g", f"a{n}") for n in range(7)] + [("g", "b", "x"), ("h", "a")]
    for chunk in (1, 2, 3, 7, 50):
        with book(rows, chunk=chunk) as made:
            assert made.journal.planned() == (2, -(-7 // chunk) + 2)


@pytest.mark.parametrize("lost", ["marks", "boot"])
def test_after_another_boot_every_intent_may_have_left(monkeypatch, lost):
    with book([("g", f"a{n}") for n in range(6)], chunk=2) as made:
        (chunk, *_) = made.plan(2)
        made.leave(chunk)
        made.journal.mark_done(chunk, 0.5)
        made.die()
        if lost == "marks":
            marks.marks_path(made.journal.path).unlink()
        else:
            monkeypatch.setattr(marks, "BOOT", made.journal.path)
        made.do(made.journal.recover, "report", 0.0)
        assert [each.state for each in made.accounts] == [AccountState.UNKNOWN] * 4 + [AccountState.WAITING] * 2


def test_marks_are_private_and_go_with_the_run(tmp_path):
    path = tmp_path / "journal"
    with book([("g", "a")], path=path) as made:
        found = marks.marks_path(path)
        assert found.stat().st_mode & 0o777 == 0o600 or os.name == "nt"
        (chunk,) = made.plan(1)
        made.send(chunk)
        assert len(found.read_bytes()) == marks.HEADER.size + marks.MARK.size
        made.do(made.journal.end_run, "done")
    assert not found.exists()


def test_a_closed_group_is_given_up_and_says_so():
    lost = Settlement(outcome=RequestState.UNKNOWN, reason=FailureReason("reset"), again=True)
    with book([("g", f"a{n}") for n in range(10)] + [("h", "b")], chunk=2) as made:
        chunks = made.plan(10)
        by_group = {group: [each for each in chunks if each.group == group] for group in "gh"}
        one, two, three, *_ = by_group["g"]
        made.send(one)
        made.send(two, lost)
        made.leave(three)
        reason = FailureReason("not sent: no such group", "112222")
        assert made.do(made.journal.close_group, "g", reason, [three.id]) == {
            AccountState.FAILED: 4,
            AccountState.UNKNOWN: 2,
        }
        states = [each.state for each in made.accounts]
        done, waiting, failed, unknown = 1, 0, 3, 4
        assert states == [done] * 2 + [unknown] * 2 + [waiting] * 2 + [failed] * 4 + [waiting]
        assert {each.reason for each in made.accounts if each.state == failed} == {reason.text}
        assert made.read("SELECT count(*) FROM request WHERE outcome = 5") == [(2,)]
        made.begin()
        assert [each.accounts for each in made.plan(10)] == [("b",)]


# -------------------------------------------------------------------------------------------- lock

HOLD = """
import sys
from pathlib import Path
from rbim.bulk.journal.lock import JobLock
lock = JobLock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_against_other_processes_until_its_holder_is_gone(tmp_path):
    journal = tmp_path / "journal"
    assert not is_locked(journal)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(journal)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        assert is_locked(journal)
        with pytest.raises(InvalidRequest, match="another process runs this job"):
            JobLock(journal).acquire()
        holder.kill()
    assert not is_locked(journal)
    lock = JobLock(journal)
    lock.acquire()
    assert is_locked(journal)
    with pytest.raises(InvalidRequest, match="another process runs this job"):
        JobLock(journal).acquire()
    lock.release()
    lock.release()
    assert not is_locked(journal)
    assert [each.name for each in tmp_path.iterdir()] == ["journal"]
    assert journal.read_bytes() == b""


async def test_any_thread_may_give_it_back(tmp_path):
    lock = JobLock(tmp_path / "journal")
    await anyio.to_thread.run_sync(lock.acquire)
    lock.release()
    assert not is_locked(tmp_path / "journal")


def test_a_lock_needs_a_place(tmp_path):
    with pytest.raises(InvalidRequest, match="there is no directory"):
        JobLock(tmp_path / "no" / "journal").acquire()
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidRequest, match="directory"):
        JobLock(tmp_path / "folder").acquire()


def test_who_looks_with_a_plain_connection_sees_names(tmp_path):
    """The views are for people with the sqlite3 command."""
    path = tmp_path / "journal"
    with book([("g", "a", "x"), ("h", "b")], path=path, clock=SystemClock()) as made:
        drain(made, 5)
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            assert connection.execute('SELECT "group", user_name, account, state FROM accounts ORDER BY seq').fetchall() == [
                ("g", "x", "a", "invited"),
                ("h", "", "b", "invited"),
            ]
            assert connection.execute("SELECT outcome, members FROM requests").fetchall() == [("answered", 1)] * 2
            ((begun,),) = connection.execute("SELECT abs(julianday('now') - julianday(min(begun))) * 86400 FROM requests")
            assert begun < 60
    assert path.stat().st_mode & 0o777 == 0o600 or os.name == "nt"


@pytest.mark.parametrize("harm", ["deleted", "replaced", "cut"])
@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted")
def test_a_journal_that_is_not_in_its_place_any_more_ends_the_run(tmp_path, harm):
    path = tmp_path / "journal"
    with book([("g", f"a{number}") for number in range(500)], path=path, clock=SystemClock()) as made:
        with closing(sqlite3.connect(path)) as plain:
            plain.execute("PRAGMA wal_checkpoint")
        made.journal.commit([])
        if harm == "cut":
            os.truncate(path, 4096)
        else:
            path.rename(tmp_path / "elsewhere")
        if harm == "replaced":
            path.write_bytes((tmp_path / "elsewhere").read_bytes())
        ran = []
        for _ in range(2):  # and it stays so
            with pytest.raises(FileNotFoundError, match="deleted, replaced or cut during the run"):
                made.journal.commit([lambda: ran.append(1)])
        assert not ran


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be deleted")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_log_that_was_deleted_ends_the_run(tmp_path, replaced):
    """What the run writes would be lost with its process."""
    path = tmp_path / "journal"
    with book([("g", "a")], path=path, clock=SystemClock()) as made:
        made.journal.commit([])
        made.journal.commit([])
        log = tmp_path / "journal-wal"
        log.rename(tmp_path / "elsewhere")
        if replaced:
            log.write_bytes((tmp_path / "elsewhere").read_bytes())
        with pytest.raises(FileNotFoundError, match="was deleted or replaced during the run"):
            made.journal.commit([])


@pytest.mark.parametrize("kind", ["journal", "text", "link"])
def test_another_file_with_the_name_of_the_marks_is_left_alone(tmp_path, kind):
    taken, other = tmp_path / "journal-sent", tmp_path / "other"
    other.write_text("mine", encoding="utf-8")
    if kind == "link":
        taken.symlink_to(other)
    elif kind == "text":
        taken.write_text("mine", encoding="utf-8")
    else:
        with book([("g", "a")], path=taken):
            pass
    before = taken.read_bytes()
    with pytest.raises(InvalidRequest, match="journal-sent"), book([("g", "a")], path=tmp_path / "journal"):
        pass
    assert (taken.read_bytes(), other.read_text(encoding="utf-8")) == (before, "mine")


@pytest.mark.parametrize("content", [b"", bytes(3), bytes(200)])
def test_what_a_loss_of_power_leaves_of_the_marks_is_written_anew(tmp_path, content):
    (tmp_path / "journal-sent").write_bytes(content)
    with book([("g", "a")], path=tmp_path / "journal") as made:
        (chunk,) = made.plan(1)
        made.leave(chunk)
        assert list(marks.read_marks(made.journal.path, marks.RunKey(*made.read("SELECT id, began FROM run")[0]))) == [1]


def test_both_halves_of_a_resend_may_be_in_already():
    lost = Settlement(outcome=RequestState.UNKNOWN, reason=FailureReason("reset"), again=True)
    with book([("g", f"a{n}") for n in range(4)], chunk=4) as made:
        (chunk,) = made.plan(1)
        made.send(chunk, lost)
        made.do(made.journal.end_run, "stopped")
        made.journal._marks.close(remove=True)
        made.do(made.journal.recover, "resend", 0.0)
        made.do(made.journal.begin_run, {})
        (chunk,) = made.plan(1)
        assert chunk.resent
        made.leave(chunk)
        refused = Settlement(outcome=RequestState.REFUSED, reason=FailureReason("no"))
        made.do(made.journal.split, Ended(chunk, refused, chunk.begun, 0.1))
        assert set(made.states().values()) == {AccountState.AGAIN}
        made.die()
        made.do(made.journal.recover, "report", 0.0)
        made.do(made.journal.begin_run, {})
        assert [each.resent for each in made.plan(5)] == [True, True]


def test_a_resend_that_never_left_can_be_recovered():
    unknown = Settlement(outcome=RequestState.UNKNOWN, state=AccountState.UNKNOWN, reason=FailureReason("reset"))
    with book([("g", "a")]) as made:
        (chunk,) = made.plan(1)
        made.send(chunk, unknown)
        made.do(made.journal.retry, Selection((AccountState.UNKNOWN,)))
        made.begin()
        (chunk,) = made.plan(1)
        stopped = Settlement(outcome=RequestState.NOT_SENT, reason=FailureReason("closed"), again=True)
        made.do(made.journal.settle, [Ended(chunk, stopped, None, 0.0)])
        for on_unknown in ("auto", "report"):
            made.do(made.journal.recover, on_unknown, 100.0)
        assert set(made.states().values()) == {AccountState.UNKNOWN}


def test_what_was_noted_as_done_is_done_though_its_process_was_killed():
    with book([("g", f"a{n}") for n in range(4)], chunk=2) as made:
        done, left = made.plan(2)
        for chunk in (done, left):
            made.leave(chunk)
        made.journal.mark_done(done, 0.5)
        made.die()
        made.do(made.journal.recover, "report", 0.0)
        assert [each.state for each in made.accounts] == [AccountState.DONE] * 2 + [AccountState.UNKNOWN] * 2


@pytest.mark.parametrize("state", [AccountState.REFUSED, AccountState.UNKNOWN])
def test_single_accounts_of_a_request_wait_again_and_are_a_resend_only_if_they_were_unknown(state):
    reason = FailureReason("the group is full")
    some = Settlement(
        outcome=RequestState.ANSWERED,
        state=AccountState.DONE,
        individual=((1, state, reason), (3, state, reason), (4, AccountState.FAILED, reason)),
    )
    with book([("g", f"a{n}") for n in range(6)], chunk=6) as made:
        (chunk,) = made.plan(1)
        made.send(chunk, some)
        assert made.do(made.journal.retry, Selection((state,))) == 2
        made.begin()
        (chunk,) = made.plan(5)
        assert chunk.accounts == ("a1", "a3")
        assert chunk.resent == (state is AccountState.UNKNOWN)


def test_a_journal_that_is_read_cannot_be_written(tmp_path):
    path = tmp_path / "journal"
    with book([("g", "a")], path=path):
        pass
    with closing(facts._reader(path)) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("UPDATE chunk SET state = 1")


def test_a_mark_that_is_not_written_whole_is_an_error(tmp_path, monkeypatch):
    made = marks.Marks(tmp_path / "journal", marks.RunKey(1, 2.0))
    monkeypatch.setattr(os, "pwrite", lambda *_: marks.MARK.size - 8)
    with pytest.raises(OSError, match="space"):
        made.set(1, 3.0)
    made.close(remove=True)
    assert 4096 % marks.MARK.size == 0 == marks.HEADER.size % marks.MARK.size  # none lies in two blocks


def test_equal_accounts_take_little_memory():
    hashes = duplicates.Hashes(None)
    tracemalloc.start()
    for _ in range(20):
        hashes.add([7] * 100_000)
    found = hashes.repeated()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    hashes.close()
    assert (len(found), 7 in found) == (1, True)
    assert peak < 12e6


def test_a_group_is_closed_without_a_look_at_all_others():
    with book([(f"g{n}", "a") for n in range(50)]) as made:
        plan = made.read(f"EXPLAIN QUERY PLAN {OPEN_CHUNKS}", ("g7", "[]"))
        assert not any("SCAN chunk" in step for *_, step in plan)
