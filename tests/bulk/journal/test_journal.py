"""The journal of a job, used by itself: loading, planning, what an ended run has left, and the lock."""

import os
import sqlite3
import subprocess
import sys
import tracemalloc
from collections import Counter, deque
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings, strategies as st

from rbim import InvalidRequest
from rbim.bulk.input.rows import BadRow, Row
from rbim.bulk.journal import loading
from rbim.bulk.journal.facts import JobFacts
from rbim.bulk.journal.journal import Journal, Sample
from rbim.bulk.journal.loading import BATCH, Loaded, Loader, batches, row_of
from rbim.bulk.journal.lock import JobLock, is_locked
from rbim.bulk.states import AccountState, RequestState
from rbim.bulk.work import FailureReason, Settlement
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
            self.do(self.loader.add, [row_of(start + n, row) for n, row in enumerate(rows[start : start + 7], 1)])
        self.do(self.journal.loaded, self.loader, {"name": "rows"})
        self.begin()

    def begin(self):
        self.do(self.journal.begin_run, {})

    def do(self, command, *values, **options):
        (result,) = self.journal.commit([partial(command, *values, **options)])
        assert not isinstance(result, CommandFailure)
        return result

    def send(self, chunk, settlement=DONE):
        self.do(self.journal.begin, chunk)
        self.do(self.journal.settle, chunk, settlement, 0.5)
        return chunk.number

    def read(self, statement, values=()):
        return self.journal.database.execute(statement, values).fetchall()

    def states(self):
        rows = self.read("SELECT party.name, account, state FROM account JOIN party ON party.id = party")
        return {row[:2]: AccountState(row[2]) for row in rows}


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
        chunks = made.journal.plan(window - len(ready))
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
        found = made.read(
            """SELECT party.name, account, seq, user_name FROM account
            JOIN lane ON lane.id = lane JOIN party ON party.id = lane.party"""
        )
        assert {row[:2]: row[2] for row in found} == first
        assert {row[2]: row[3] for row in found} == {seq: (rows[seq - 1] + (None,))[2] or "" for seq in first.values()}
        twice = made.read("SELECT seq, name, account, first FROM duplicate JOIN party ON party.id = party ORDER BY seq")
        assert twice == duplicates
        assert made.read("SELECT line FROM bad_row") == [(seq,) for seq, row in enumerate(rows, 1) if not row]
        facts = made.journal.facts()
        assert (facts.input.rows, facts.input.bad, facts.input.duplicates) == (len(rows), rows.count(()), len(duplicates))
        assert made.journal.counts() == dict.fromkeys(AccountState, 0) | {AccountState.WAITING: len(first)}


def test_more_groups_than_are_kept_at_hand(monkeypatch):
    monkeypatch.setattr(loading, "CACHED_GROUPS", 3)
    rows = [(f"g{n % 10}", f"a{n}", f"u{n % 4}") for n in range(200)]
    with book(rows) as made:
        assert made.read("SELECT count(*) FROM party") == [(10,)]
        assert made.read("SELECT count(*) FROM lane") == [(20,)]
        assert made.read("SELECT count(*) FROM account") == [(200,)]


def test_a_digest_tells_inputs_apart():
    rows = [("g", "a"), ("g", "b", "u"), ("", "x"), ("h", "a")]

    def digest(rows):
        loader = Loader(None)
        loader.add([row_of(n, row) for n, row in enumerate(rows, 1)])
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
        assert [len(batch) for batch in found] == [BATCH, BATCH, 3]
        assert [row[:2] for batch in found for row in batch] == rows
    assert [batch async for batch in batches([])] == []


def test_loading_takes_little_memory(tmp_path):
    with book(path=tmp_path / "journal") as made:
        loader = made.do(made.journal.create, made.journal.facts(), "invited")
        dice = Random(1)
        tracemalloc.start()
        for start in range(0, 100_000, BATCH):
            made.do(loader.add, [Row(f"g{dice.randrange(50)}", f"account{n}") for n in range(start, start + BATCH)])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8e6
        assert made.read("SELECT count(*) FROM account") == [(100_000,)]


# ---------------------------------------------------------------------------------------- planning


def in_turn(rows, chunk):
    """Return what is to be sent: the groups in the order in which they appear, a chunk of each, and again.

    In a group, the accounts that act follow one another, each when the one before has no rows left.
    """
    groups, seen = {}, set()
    for group, account, *user in rows:
        queue = groups.setdefault(group, {}).setdefault(user[0] if user else None, [])
        if (group, account) not in seen:
            seen.add((group, account))
            queue.append(account)
    turns = {
        group: deque(
            (group, user, tuple(queue[at : at + chunk]))
            for user, queue in queues.items()
            for at in range(0, len(queue), chunk)
        )
        for group, queues in groups.items()
    }
    order = []
    while any(turns.values()):
        order += [queue.popleft() for queue in turns.values() if queue]
    return order


LANES = st.lists(st.tuples(NAMES, PEOPLE) | st.tuples(NAMES, PEOPLE, st.sampled_from(["x", "y"])), max_size=80)


@SHORT
@given(LANES, st.integers(1, 6), st.integers(1, 12), st.integers(0, 3))
def test_groups_have_their_turns_whatever_the_window(rows, chunk, window, lag):
    with book(rows, chunk=chunk) as made:
        assert drain(made, window, lag=min(lag, window - 1)) == in_turn(rows, chunk)
        assert set(made.states().values()) <= {AccountState.DONE}
        assert made.journal.plan(5) == []


@SHORT
@given(LANES, st.integers(1, 6), st.integers(1, 12), st.integers(0, 20))
def test_planning_begins_where_the_last_run_ended(rows, chunk, window, ends):
    """What was planned and not sent is planned again."""
    with book(rows, chunk=chunk) as made:
        planned = made.journal.plan(ends + window)
        for each in planned[:ends]:
            made.send(each)
        sent = [(each.group, each.user_name, each.accounts) for each in planned[:ends]]
        made.begin()
        rest = drain(made, window)
        assert Counter([*sent, *rest]) == Counter(in_turn(rows, chunk))


def test_planning_reads_no_more_than_it_is_asked_for():
    """A huge group and ten thousand small ones: time and memory are those of the window."""
    with book(chunk=5) as made:
        loader = made.do(made.journal.create, made.journal.facts(), "invited")
        made.do(loader.add, [Row("huge", f"a{n}") for n in range(20_000)])
        made.do(loader.add, [Row(f"g{n}", "a") for n in range(10_000)])
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
            chunks = made.journal.plan(50)
            made.journal.commit([partial(made.journal.begin, chunk) for chunk in chunks])
            order += [chunk.group for chunk in chunks]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert order == ["huge", *(f"g{n}" for n in range(999))]
        assert peak < 1e6
        assert steps < 1000  # a million steps of SQLite's machine for 1000 chunks


def test_a_lane_of_duplicates_is_done_without_a_request():
    rows = [("g", "a"), ("g", "a", "x"), ("g", "a", "y"), ("h", "b")]
    with book(rows) as made:
        assert drain(made, 10) == [("g", None, ("a",)), ("h", None, ("b",))]
        assert made.read("SELECT count(*) FROM request") == [(2,)]


# --------------------------------------------------------------------------------- outcomes, again


def test_an_outcome_is_that_of_those_who_waited():
    rows = [("g", f"a{n}") for n in range(6)]
    with book(rows, chunk=3) as made:
        one, two = made.journal.plan(10)
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
        (chunk,) = made.journal.plan(10)
        made.do(made.journal.begin, chunk)
        number = chunk.number
        refused = Settlement(outcome=RequestState.REFUSED, reason=FailureReason("no"))
        one, two = made.do(made.journal.split, chunk, refused, 0.1)
        assert (one.accounts, two.accounts) == (("a0", "a1", "a2"), ("a3", "a4"))
        made.send(one)
        assert made.read("SELECT id, members, repeats, outcome, todo FROM request ORDER BY id") == [
            (number, 5, None, 2, 0),
            (one.planned, 3, number, 1, 0),
            (two.planned, 2, number, 5, 1),
        ]
        made.begin()  # another run
        made.do(made.journal.recover, "report", 0.0)
        (again,) = made.journal.plan(10)
        assert (again.accounts, again.planned, again.resent) == (two.accounts, two.planned, False)
        made.send(again)
        assert set(made.states().values()) == {AccountState.DONE}
        assert made.journal.plan(10) == []


def test_what_is_sent_again_comes_first_and_says_so():
    lost = Settlement(outcome=RequestState.UNKNOWN, reason=FailureReason("reset"), again=True)
    with book([(f"g{n}", "a") for n in range(4)], chunk=1) as made:
        chunks = made.journal.plan(2)
        made.send(chunks[0], lost)
        made.send(chunks[1], Settlement(outcome=RequestState.REFUSED, reason=FailureReason("busy"), again=True))
        made.begin()
        found = made.journal.plan(10)
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


def test_who_was_unknown_and_waits_again_is_sent_again():
    unknown = Settlement(outcome=RequestState.UNKNOWN, state=AccountState.UNKNOWN, reason=FailureReason("reset"))
    with book([("g", f"a{n}") for n in range(6)], chunk=2) as made:
        one, two, three = made.journal.plan(10)
        made.send(one, unknown)
        made.send(two)
        made.send(three, Settlement(outcome=RequestState.REFUSED, state=AccountState.FAILED, reason=FailureReason("no")))
        assert made.do(made.journal.retry, [AccountState.UNKNOWN]) == 2
        assert made.journal.counts()[AccountState.AGAIN] == 2
        made.begin()
        (again,) = made.journal.plan(10)
        assert (again.accounts, again.resent) == (("a0", "a1"), True)
        made.send(again)
        assert made.do(made.journal.retry, [AccountState.FAILED, AccountState.UNKNOWN]) == 2
        made.begin()
        (last,) = made.journal.plan(10)
        assert (last.accounts, last.resent) == (("a4", "a5"), False)


@SHORT
@given(
    st.lists(st.sampled_from(["open", "lost", "busy", "done", "failed", "unknown", "waits"]), min_size=1, max_size=12),
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
            (chunk,) = made.journal.plan(1)
            fate_of |= dict.fromkeys(chunk.accounts, fate)
            if fate == "open":
                made.do(made.journal.begin, chunk)
            elif fate != "waits":
                made.send(chunk, settlements[fate])
        made.clock.elapsed += age
        made.do(made.journal.recover, on_unknown, 100.0)
        made.begin()
        resend = on_unknown == "resend" or (on_unknown == "auto" and age < 100)
        waiting = {"busy", "waits"} | ({"open", "lost"} if resend else set())
        planned = [account for chunk in made.journal.plan(100) for account in chunk.accounts]
        assert Counter(planned) == Counter(account for account, fate in fate_of.items() if fate in waiting)
        after = {"done": AccountState.DONE, "failed": AccountState.FAILED, "unknown": AccountState.UNKNOWN}
        after |= dict.fromkeys(["busy", "waits"], AccountState.WAITING)
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
    with book(rows) as made:
        for chunk in (1, 2, 3, 7, 50):
            assert made.journal.planned(chunk) == (2, -(-7 // chunk) + 2)


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
def test_a_journal_that_is_not_in_its_place_any_more_ends_the_run(tmp_path, monkeypatch, harm):
    monkeypatch.setattr("rbim.bulk.journal.journal.LOOK_EVERY", 0.0)
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
def test_a_log_that_was_deleted_ends_the_run(tmp_path, monkeypatch, replaced):
    """What the run writes would be lost with its process."""
    monkeypatch.setattr("rbim.bulk.journal.journal.LOOK_EVERY", 0.0)
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
