"""The journal of a job, used by itself: loading, planning, and what an ended run has left."""

import contextlib
import io
import os
import tracemalloc
from collections import Counter, deque
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st

from helpers.jobs import accounts
from helpers.tables import each_row
from rbim import Dialect, InviteJoinGroup
from rbim.bulk.input.file import RowFile
from rbim.bulk.input.rows import BadRow, Columns, Row
from rbim.bulk.journal import loading
from rbim.bulk.journal.journal import Ended, Journal, RetryFilter
from rbim.bulk.journal.loading import InputDigest, Loader, row_of
from rbim.bulk.work import AccountState, FailureReason, RequestState, Settlement, Work
from rbim.clock import SystemClock
from rbim.emulator import EmulatedClock
from rbim.storage.group_commit import CommandFailure

SHORT = settings(max_examples=25, deadline=None)
DONE = Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE)


class Book:
    """A journal with a job in it, each command in a transaction of its own; nothing here waits for the disk."""

    def __init__(self, path, rows=(), *, chunk=50, clock=None):
        self.clock = clock or EmulatedClock()
        self.journal = Journal(path, clock=self.clock)
        self.journal.open()
        self.journal.database.execute("PRAGMA synchronous = OFF")
        self.work = Work(operation=InviteJoinGroup, dialect=Dialect(), chunk=chunk)
        loader = self.do(Loader, self.journal.database, self.work, {}, InputDigest())
        for start in range(0, len(rows), 7):  # batches of another size than any chunk
            part = rows[start : start + 7]
            places = range(start + 1, start + 1 + len(part))
            self.do(loader.add, Columns.of(map(row_of, places, part), places))
        self.do(loader.end, {"name": "rows"})
        try:
            self.begin()
        except BaseException:
            self.journal.database.close()
            raise

    def begin(self):
        """Begin a run, after the end of the one before."""
        self.do(self.journal.recover, "report", 0.0)
        _, self.counts = self.do(self.journal.begin_run, {})

    def plan(self, limit):
        return self.journal.next_chunks(limit)

    def leave(self, chunk):
        chunk.begun, chunk.left = self.clock.now().timestamp(), self.clock.monotonic()
        self.do(self.journal.record, (), [chunk], ())

    def do(self, command, *values, **options):
        (result,) = self.journal.commit([partial(command, *values, **options)])
        assert not isinstance(result, CommandFailure)
        return result

    def send(self, chunk, settlement=DONE):
        self.leave(chunk)
        self.do(self.journal.record, [Ended(chunk, settlement, 0.5)], (), ())
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


def drain(made, window):
    """Read the plan and send until nothing is left."""
    sent = []
    while chunks := made.plan(window):
        assert len(chunks) <= window
        for chunk in chunks:
            made.send(chunk)
            sent.append((chunk.group, chunk.user_name, chunk.accounts))
    return sent


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
        assert made.counts == dict.fromkeys(AccountState, 0) | {AccountState.WAITING: len(first)}


@each_row("given", ["iterable", "async iterable"])
async def test_an_invalid_row_is_told_with_its_place_in_the_whole_input(monkeypatch, given):
    monkeypatch.setattr(loading, "BATCH", 3)
    rows = [("g", f"a{number}") for number in range(8)]
    rows[1] = rows[6] = ("g",)

    async def later():
        for row in rows:
            yield row

    turns = []

    async def turn():
        turns.append(True)

    monkeypatch.setattr(loading, "checkpoint", turn)
    found = [columns async for columns in loading.batches(rows if given == "iterable" else later())]
    assert len(turns) == (3 if given == "iterable" else 0)  # what is not awaited lets other tasks run
    assert [len(columns.accounts) for columns in found] == [3, 3, 2]
    assert [each.line for columns in found for each in columns.accounts if isinstance(each, BadRow)] == [2, 7]


@each_row("threads", [True, False])
async def test_rows_of_a_file_keep_their_lines(threads):
    rows = RowFile(io.BytesIO(b"group,account\n\ng,a\n"))
    assert [list(columns.lines) async for columns in loading.batches(rows, threads=threads)] == [[3]]


async def test_an_async_generator_of_rows_is_closed_with_its_reader():
    closed = []

    async def rows():
        try:
            while True:
                yield ("g", "a")
        finally:
            closed.append(True)

    given = rows()  # kept, so that not its end as garbage closes it
    async with contextlib.aclosing(loading.batches(given)) as found:
        await anext(found)
    assert closed == [True]


def test_more_groups_than_are_kept_in_memory(monkeypatch):
    monkeypatch.setattr(loading, "MAX_SENDER_GROUPS", 3)
    rows = [(f"g{n % 10}", f"a{n // 2}", f"u{n % 4}") for n in range(200)]
    with book(rows, chunk=4) as made:
        assert made.read("SELECT count(*) FROM target_group") == [(10,)]
        assert made.read("SELECT count(*) FROM sender_group") == [(20,)]
        assert Counter(each[:2] for each in made.accounts) == Counter({row[:2] for row in rows})
        by_sender_group = Counter((each.group, each.user) for each in made.accounts)
        sizes, requests = made.journal.planned()
        assert (len(sizes), requests) == (10, sum(-(-number // 4) for number in by_sender_group.values()))


@each_row(
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


# ---------------------------------------------------------------------------------------- planning


def in_turn(rows, chunk):
    """Return what is to be sent: the groups in the order in which they appear, a chunk of each, and again.

    In a group, the accounts that act follow one another, each when the one before has no rows left.
    """
    groups, seen = {}, set()
    for group, account, *user in rows:
        queue = groups.setdefault(group, {}).setdefault(user[0] if user else None, [])
        if (group, account) not in seen:
            queue.append(account)
        seen.add((group, account))
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
@given(LANES, st.integers(1, 6), st.integers(1, 12))
def test_groups_have_their_turns_whatever_the_window(rows, chunk, window):
    with book(rows, chunk=chunk) as made:
        assert drain(made, window) == in_turn(rows, chunk)
        assert set(made.states().values()) <= {AccountState.DONE}
        assert made.plan(5) == []


@SHORT
@given(LANES, st.integers(1, 6), st.integers(1, 12), st.integers(0, 20))
def test_planning_begins_where_the_last_run_ended(rows, chunk, window, ends):
    """What was planned and not sent is planned again."""
    with book(rows, chunk=chunk) as made:
        planned = made.plan(1) + made.plan(ends + window)
        assert len({(each.sender_group, each.id) for each in planned}) == len(planned)
        for each in planned[:ends]:
            made.send(each)
        sent = [(each.group, each.user_name, each.accounts) for each in planned[:ends]]
        made.begin()
        rest = drain(made, window)
        assert Counter([*sent, *rest]) == Counter(in_turn(rows, chunk))


def test_planning_reads_no_more_than_it_is_asked_for():
    """A huge group and ten thousand small ones: time and memory are those of the window."""
    with book(chunk=5) as made:
        loader = made.do(Loader, made.journal.database, made.work, {}, InputDigest())
        made.do(loader.add, Columns.of((Row("huge", f"a{n}") for n in range(20_000)), range(1, 20_001)))
        made.do(loader.add, Columns.of((Row(f"g{n}", "a") for n in range(10_000)), range(20_001, 30_001)))
        made.do(loader.end, {})
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


# --------------------------------------------------------------------------------- outcomes, again


def test_a_closed_group_is_given_up_and_says_so():
    lost = Settlement(outcome=RequestState.UNKNOWN, reason=FailureReason("reset"), again=True)
    with book([("g", f"a{n}") for n in range(10)] + [("h", "b")], chunk=2) as made:
        chunks = made.plan(10)
        by_group = {group: [each for each in chunks if each.group == group] for group in "gh"}
        one, two, three, *_ = by_group["g"]
        made.send(one)
        made.send(two, lost)
        assert made.read("SELECT DISTINCT round(ended - begun, 3), split FROM request") == [(0.5, False)]
        made.leave(three)
        reason = FailureReason("not sent: no such group", "112222")
        assert made.do(made.journal.record, (), (), [("g", reason)]) == {AccountState.FAILED: 4, AccountState.UNKNOWN: 2}
        states = [each.state for each in made.accounts]
        done, waiting, failed, unknown = 1, 0, 3, 4
        assert states == [done] * 2 + [unknown] * 2 + [waiting] * 2 + [failed] * 4 + [waiting]
        assert {each.reason for each in made.accounts if each.state == failed} == {reason.text}
        assert made.read("SELECT count(*) FROM request WHERE outcome = 0 OR retry = 1") == [(1,)]
        made.begin()
        assert [each.accounts for each in made.plan(10)] == [("b",)]


# --------------------------------------------------------------------------------------------- log


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


@each_row("state", [AccountState.REFUSED, AccountState.UNKNOWN])
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
        assert made.do(made.journal.retry, RetryFilter((state,))) == 2
        made.begin()
        (chunk,) = made.plan(5)
        assert chunk.accounts == ("a1", "a3")
        assert chunk.resent == (state is AccountState.UNKNOWN)
