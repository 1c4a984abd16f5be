"""The SQLite file of an inbox, read beside the store by a plain connection."""

import re
from functools import partial
from math import inf

import pytest

from helpers.deliveries import delivery, unreadable
from rbim.callbacks.inbox import statements as sql, store
from rbim.callbacks.inbox.sqlite import INBOX
from rbim.callbacks.inbox.store import EventFilter, InboxStore
from rbim.storage.group_commit import CommandFailure
from rbim.storage.sqlite import Database

WEEK = 7 * 24 * 3600.0
ALL = EventFilter()


class Run:
    """Carries out one command in a transaction of its own, and raises what it raised. Events are taken one by one."""

    def __init__(self, path, clock):
        self.file = Database(path, INBOX, clock=lambda: clock.now().timestamp())
        self.store = InboxStore(self.file, retention=WEEK, lease=30.0, dead_retention=None)

    def __getattr__(self, name):
        def run(*args, **options):
            (result,) = self.file.commit([partial(getattr(self.store, name), *args, **options)])
            if isinstance(result, CommandFailure):
                raise result.error
            return result

        return run

    def claim(self, limit):
        """Claim conversations, and take the oldest event of each."""
        oldest = {}
        for claim in self.__getattr__("claim")(limit):
            oldest.setdefault(claim.conversation, claim)
        return list(oldest.values())

    def done(self, claim, *, more):
        return next(iter(self.__getattr__("done")([claim], more=int(more))), None)

    def dead_letter(self, claim, *, error, more):
        return next(iter(self.__getattr__("dead_letter")(claim, error=error, more=int(more))), None)


@pytest.fixture
def run(path, clock):
    run = Run(path, clock)
    run.file.open()
    yield run
    run.file.close()


@pytest.fixture
def kept(run):
    return run.store


# ---------------------------------------------------------------------------------------- claiming


def test_a_conversation_in_which_nothing_waits_is_closed(run, rows):
    """The file of somebody who deleted events by hand."""
    run.accept(delivery(1))
    rows("DELETE FROM event")
    assert run.claim(1) == []
    assert rows("SELECT * FROM conversation") == []


def test_looking_tells_what_is_due_but_for_ones_own_leases(run, clock):
    assert run.due() == inf
    run.accept(delivery(1, "a"))
    assert run.due() == 0
    (claim,) = run.claim(1)
    assert run.due([claim.fence]) == inf
    assert run.due() == 30.0
    run.accept(delivery(2, "b"))
    (other,) = run.claim(1)
    run.retry(other, error="", pause=99.0)
    assert run.due() == 30.0
    run.accept(delivery(3, "c"))
    assert run.due() == 0
    run.done(run.claim(1)[0], more=False)
    assert run.due([claim.fence]) == pytest.approx(99.0)
    clock.elapsed += 30.0
    assert run.due([claim.fence]) == pytest.approx(69.0)
    assert run.due() == 0


def test_nothing_waits_longer_because_the_clock_was_set_back(run, path, clock):
    for number, team in enumerate("abc"):
        run.accept(delivery(number, team))
    leased, failed = run.claim(2)
    run.retry(failed, error="", pause=99.0)
    clock.elapsed -= 8 * 3600
    other = Run(path, clock)  # and none is known of a process that has ended
    other.file.open()
    assert other.claim(9) == []  # looks at the clock at its end
    (waiting,) = other.claim(9)
    assert waiting.conversation.endswith("c")
    for claim in (leased, waiting):
        assert other.due() == pytest.approx(30.0)
        other.done(claim, more=False)
    assert run.due() == other.due() == pytest.approx(99.0)
    other.file.close()


# --------------------------------------------------------------------------- retention and replays


def handled(run, *given):
    for each in given:
        run.accept(each)
        (claim,) = run.claim(1)
        run.done(claim, more=False)


def test_a_key_is_known_for_the_retention_and_a_margin_after_its_event_was_handled(run, rows, clock):
    event = delivery(1)
    handled(run, event)
    run.accept(delivery(2, "dead"))
    run.dead_letter(run.claim(1)[0], error="", more=False)
    run.accept(delivery(3, "waiting"))
    run.accept(unreadable())
    clock.elapsed += WEEK + 3600
    assert not run.accept(event)
    clock.elapsed += 61
    assert not run.accept(event)  # purged at the end of this very transaction
    assert rows("SELECT number, state FROM event ORDER BY number") == [(2, 2), (3, 0), (4, 3)]
    assert run.accept(event)
    assert rows("SELECT count(*) FROM event WHERE number > 4") == [(1,)]


def test_purging_goes_in_steps_and_looks_once_a_minute(run, rows, clock, monkeypatch):
    monkeypatch.setattr(store, "STEP", 4)
    handled(run, *(delivery(number) for number in range(10)))
    clock.elapsed += WEEK + 3601
    left = []
    for number in range(10, 14):
        run.accept(delivery(number))
        left += rows("SELECT count(*) FROM event WHERE state = 1")[0]
    assert left == [6, 2, 0, 0]
    rows("UPDATE event SET state = 1, finished = 0")
    clock.elapsed += 59
    run.accept(delivery(14))
    assert rows("SELECT count(*) FROM event WHERE state = 1") == [(4,)]
    clock.elapsed += 1
    run.accept(delivery(15))
    assert rows("SELECT count(*) FROM event WHERE state = 1") == [(0,)]
    rows("UPDATE event SET state = 1, finished = 0")
    clock.elapsed -= 3600  # a clock that was put back does not stop it
    run.accept(delivery(16))
    assert rows("SELECT count(*) FROM event WHERE state = 1") == [(0,)]


def test_a_replay_goes_in_steps_and_of_events_that_are_gone_by_now_is_over(run, monkeypatch):
    monkeypatch.setattr(store, "REPLAY_STEP", 2)
    assert run.replay(ALL, after=3, last=9) == (9, 0)
    for number in range(3):
        run.accept(delivery(number))
    assert run.replay(ALL, after=3, last=9) == (9, 0)
    assert [run.replay(ALL, after=after, last=9) for after in (0, 2)] == [(2, 0), (3, 0)]


def test_a_page_of_the_newest_begins_below_a_number(run):
    for number in range(3):
        run.accept(delivery(number))
    assert [row[0] for row in run.file.query(sql.NEWEST[None], (3, 9))] == [2, 1]


# ----------------------------------------------------------------------------------- many and fast


def test_every_statement_that_is_executed_often_finds_its_rows_by_an_index(kept, run):
    run.file.commit([partial(kept.accept, delivery(number, str(number % 1000))) for number in range(2000)])
    assert kept.database.query(sql.COUNTS)[0][0] == 2000
    letters = store.values_of(ALL, 0, 9, limit=1)
    statements = [
        (sql.READY, (0.0, 1), "INDEX conversation_ready (ready<?)"),
        (sql.RETRIED_ALONE, (0.0, 1), "INDEX conversation_begun (ready<?)"),
        (sql.NEXT_READY, (1,), "INDEX conversation_ready"),
        (sql.NEXT_RETRIED_ALONE, (1,), "INDEX conversation_begun"),
        (sql.OLDEST, ("x", 1), "INDEX event_waiting (conversation=?)"),
        (sql.LEASE, (0.0, 0, 1, "x"), "PRIMARY KEY (name=?)"),
        (sql.RENEW, (0.0, "x", 0), "PRIMARY KEY (name=?)"),
        (sql.END_LEASE, (0.0, 0, "x", 0, 1), "PRIMARY KEY (name=?)"),
        (sql.SETTLE, (1, 0.0, None, 1), "INTEGER PRIMARY KEY (rowid=?)"),
        (sql.PURGE[1], (0.0, 1), "INDEX event_done (finished<?)"),
        (sql.PURGE[2], (0.0, 1), "COVERING INDEX event_dead"),
        (sql.LETTERS[2], letters, "INDEX event_dead (number>? AND number<?)"),
        (sql.LETTERS[3], letters, "INDEX event_quarantined (number>? AND number<?)"),
        (sql.OLDEST_RECEIVED, (), "COVERING INDEX event_waiting"),
    ]
    for analysed in (False, True):
        for statement, values, expected in statements:
            plan = kept.database.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            steps = [step for *_, step in plan]
            found = [step for step in steps if re.search("INDEX|PRIMARY KEY|SUBQUERY", step)]
            assert found == steps, statement  # no bare scan, no sorting
            assert any(expected in step for step in steps), steps
        if not analysed:
            kept.database.execute("ANALYZE")
    assert [claim.number for claim in run.claim(3)] == [1, 2, 11]  # as long ready as all others
