"""The SQLite file of an inbox, read beside the store by a plain connection, and against a model of what it promises."""

import sqlite3
import threading
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from helpers.deliveries import delivery, unreadable
from rbim import InvalidRequest
from rbim.callbacks.inbox import archive_statements as archive, statements as store
from rbim.callbacks.inbox.arguments import EventFilter
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.statements import InboxStore
from rbim.callbacks.inbox.tables import INBOX
from rbim.emulator.clock import START, EmulatedClock
from rbim.storage import sqlite as database
from rbim.storage.sqlite import CommandFailure

WEEK = 7 * 24 * 3600.0
ALL = EventFilter()


class Run:
    """Carries out one command in a transaction of its own, and raises what it raised. Events are taken one by one."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        def run(*args, **options):
            owner = self.store if hasattr(self.store, name) else self.store.archive
            (result,) = self.store.commit([partial(getattr(owner, name), *args, **options)])
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


@contextmanager
def opened(path, clock, *, lease=30.0, retention=WEEK, kind=INBOX):
    each = InboxStore(path, retention=retention, lease=lease, clock=clock, kind=kind)
    each.open()
    try:
        yield each
    finally:
        each.close()


@pytest.fixture
def kept(path, clock):
    with opened(path, clock) as each:
        yield each


@pytest.fixture
def run(kept):
    return Run(kept)


@pytest.fixture
def rows(path):
    """Executes a statement over a connection that has nothing to do with the store."""

    def execute(statement, *values):
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            return plain.execute(statement, values).fetchall()

    return execute


def dump(path):
    with closing(sqlite3.connect(path)) as plain:
        return [line for line in plain.iterdump() if "sqlite_" not in line]


# --------------------------------------------------------------------------------------- accepting


def test_what_is_accepted_is_in_the_file_at_once_and_in_the_order_of_acceptance(run, rows):
    moment = datetime(2026, 5, 6, 7, 8, 9, 123457, UTC)
    given = [delivery(1, "x", at=moment), delivery(2, "y", msg_type="PICTURE"), unreadable()]
    assert [run.accept(each) for each in given] == [True, True, True]
    assert rows("SELECT key, conversation, app_id, class, msg_type, state, attempts, body FROM event ORDER BY number") == [
        (given[0].key, "app/team/x", "app", "Text", "TEXT", 0, 0, given[0].body),
        (given[1].key, "app/team/y", "app", "Picture", "PICTURE", 0, 0, given[1].body),
        (given[2].key, given[2].key, "app", "", "", 3, 0, b"no JSON"),
    ]
    assert rows("SELECT name FROM conversation ORDER BY 1") == [("app/team/x",), ("app/team/y",)]
    (claim, _) = run.claim(2)
    assert claim.received == moment
    assert claim.received.tzinfo is UTC


def test_a_key_is_accepted_once(run, rows):
    first = delivery(1)
    assert run.accept(first)
    assert not run.accept(first._replace(body=first.body.replace(b"{", b"{ ", 1)))
    (claim,) = run.claim(1)
    assert not run.accept(first)
    run.done(claim, more=False)
    assert not run.accept(first)
    assert rows("SELECT count(*), min(body) FROM event") == [(1, first.body)]
    assert rows("SELECT * FROM conversation") == []


def test_the_file_is_durable_and_names_its_application(kept, rows):
    assert rows("PRAGMA journal_mode") == [("wal",)]
    assert rows("PRAGMA application_id") == [(0x7262696D,)]
    assert rows("PRAGMA user_version") == [(2,)]
    assert kept._database._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_last_connection_writes_the_log_back(path, clock):
    with opened(path, clock) as first, opened(path, clock) as second:
        Run(first).accept(delivery(1))
        assert Run(second).claim(1)[0].number == 1
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_command_that_fails_does_not_spoil_the_others(kept, rows):
    lone = delivery(2)._replace(conversation="\ud800")
    commands = [partial(kept.accept, each) for each in (delivery(1), lone, delivery(3), delivery(1))]
    results = kept.commit(commands)
    assert isinstance(results[1], CommandFailure)
    assert isinstance(results[1].error, UnicodeEncodeError)
    assert [results[0], *results[2:]] == [True, True, False]
    assert rows("SELECT key FROM event ORDER BY number") == [(delivery(1).key,), (delivery(3).key,)]
    (result,) = kept.commit([partial(kept.accept, lone)])
    assert isinstance(result, CommandFailure)


def test_a_full_disk_fails_the_whole_transaction_and_nothing_else(kept, run, rows):
    run.accept(delivery(1))
    pages = kept._database._connection.execute("PRAGMA page_count").fetchone()[0]
    kept._database._connection.execute(f"PRAGMA max_page_count = {pages}")
    large = [partial(kept.accept, delivery(number, body=bytes(100_000))) for number in range(2, 5)]
    with pytest.raises(sqlite3.OperationalError, match="full"):
        kept.commit(large)
    assert rows("SELECT count(*) FROM event") == [(1,)]
    kept._database._connection.execute("PRAGMA max_page_count = 100000")
    assert kept.commit(large) == [True, True, True]


def test_a_commit_that_fails_keeps_nothing_and_the_next_one_works(kept, rows, monkeypatch):
    plain, given = kept._database.execute, sqlite3.OperationalError("disk I/O error")

    def execute(statement, values=()):
        if statement == "COMMIT":
            raise given
        return plain(statement, values)

    monkeypatch.setattr(kept._database, "execute", execute)
    with pytest.raises(sqlite3.OperationalError) as caught:
        kept.commit([partial(kept.accept, delivery(1))])
    assert caught.value is given
    monkeypatch.undo()
    assert rows("SELECT count(*) FROM event") == [(0,)]
    assert Run(kept).accept(delivery(1))


def test_when_sqlite_gives_up_the_transaction_no_part_of_it_counts_as_kept(kept, rows):
    def lost():
        kept._database.execute("ROLLBACK")
        raise error

    error = sqlite3.OperationalError("I/O error")
    with pytest.raises(sqlite3.OperationalError, match="I/O error"):
        kept.commit([partial(kept.accept, delivery(1)), lost])
    assert rows("SELECT count(*) FROM event") == [(0,)]


def test_a_store_that_is_not_open_says_so(path, clock):
    closed = InboxStore(path, retention=WEEK, lease=30.0, clock=clock)
    with pytest.raises(RuntimeError, match="is not open"):
        closed.archive.counts()
    with pytest.raises(RuntimeError, match="is not open"):
        closed.commit([partial(closed.claim, 1)])


# ---------------------------------------------------------------------------------------- claiming


def test_each_conversation_gives_its_oldest_event_to_one_holder(run, rows):
    for number, conversation in enumerate("abacab"):
        run.accept(delivery(number, conversation))
    claims = run.claim(10)
    assert [(claim.number, claim.conversation[-1], claim.attempt, claim.replays) for claim in claims] == [
        (1, "a", 1, 0),
        (2, "b", 1, 0),
        (4, "c", 1, 0),
    ]
    assert run.claim(10) == []
    assert len({claim.fence for claim in claims}) == 3
    following = run.done(claims[0], more=True)
    assert (following.number, following.fence, following.attempt) == (3, claims[0].fence, 1)
    assert run.claim(10) == []
    assert run.done(claims[2], more=True) is None
    assert rows("SELECT name FROM conversation ORDER BY 1") == [("app/team/a",), ("app/team/b",)]


def test_without_more_the_conversation_is_given_up(run, rows):
    for number in range(2):
        run.accept(delivery(number))
    (first,) = run.claim(1)
    assert run.done(first, more=False) is None
    (second,) = run.claim(1)
    assert (second.number, second.fence > first.fence) == (2, True)
    assert run.done(second, more=False) is None
    assert rows("SELECT * FROM conversation") == []
    assert rows("SELECT state, finished FROM event") == [(1, START.timestamp())] * 2


def test_a_limit_takes_those_that_have_been_ready_for_longest(run, clock):
    for number, conversation in enumerate("abc"):
        clock.elapsed += 1
        run.accept(delivery(number, conversation))
    (first,) = run.claim(1)
    run.retry(first, error="later", pause=0.5)
    clock.elapsed += 1
    assert [claim.conversation[-1] for claim in run.claim(5)] == ["b", "c", "a"]


def test_an_attempt_counts_when_its_end_is_recorded_or_its_lease_expires_while_its_process_lives(run, rows, clock):
    run.accept(delivery(1))
    for attempt in range(1, 4):  # a handler that blocks its loop: the lease expires, and the same process claims it again
        (claim,) = run.claim(1)
        assert claim.attempt == attempt
        assert rows("SELECT attempts FROM event") == [(attempt - 1,)]
        clock.elapsed += 30.0
    (claim,) = run.claim(1)
    run.retry(claim, error="", pause=0.0)
    assert rows("SELECT attempts FROM event") == [(4,)]
    run.done(run.claim(1)[0], more=False)
    assert rows("SELECT attempts FROM event") == [(5,)]


def test_a_release_counts_no_attempt(run, rows):
    run.accept(delivery(1))
    (claim,) = run.claim(1)
    run.release(claim)
    assert rows("SELECT attempts FROM event") == [(0,)]
    (again,) = run.claim(1)
    assert (again.attempt, again.fence > claim.fence) == (1, True)


def claimed(store, limit):
    """Claim events in a transaction; return the conversation's last letter and the number of each."""
    (claims,) = store.commit([partial(store.claim, limit)])
    return [(claim.conversation[-1], claim.number) for claim in claims], claims


def test_a_claim_takes_the_next_events_of_conversations_too_if_these_are_few(kept, run, rows):
    for number, conversation in enumerate("aaaab"):
        run.accept(delivery(number, conversation))
    found, claims = claimed(kept, 6)
    assert found == [("a", 1), ("a", 2), ("a", 3), ("b", 5)]
    assert len({claim.fence for claim in claims[:3]}) == 1
    ((following,),) = kept.commit([partial(kept.done, claims[:2], more=1)])  # both in one command
    assert (following.number, following.attempt, following.fence) == (3, 1, claims[0].fence)
    assert rows("SELECT state, attempts FROM event ORDER BY number") == [(1, 1), (1, 1), (0, 0), (0, 0), (0, 0)]
    ((fourth,),) = kept.commit([partial(kept.done, [following], more=5)])
    assert fourth.number == 4
    assert kept.commit([partial(kept.done, [fourth], more=5)]) == [[]]
    assert rows("SELECT name FROM conversation") == [("app/team/b",)]


# ----------------------------------------------------------------------------------------- crashes


@pytest.fixture
def processes(path, clock):
    """Two stores on one file, as two processes have them, each with the adapter that takes events one by one."""
    with opened(path, clock) as first, opened(path, clock) as second:
        yield Run(first), Run(second)


def test_a_process_that_died_makes_suspects_of_the_oldest_event_of_each_of_its_leases_only(processes, rows, clock):
    died, other = processes
    for number, conversation in enumerate("aabbcd"):
        died.accept(delivery(number, conversation))
    died.claim(2)
    (kept,) = other.claim(1)
    other.retry(kept, error="", pause=25.0)
    clock.elapsed += 30.0
    (suspect,) = other.claim(9)  # by itself, though c and d are ready
    assert (suspect.number, suspect.attempt, suspect.crashes) == (1, 1, 1)
    assert [claim.number for claim in other.claim(9)] == [6, 5]  # the other suspect waits for the first
    other.begin(suspect)
    assert other.done(suspect, more=True) is None  # nothing follows under the lease of a suspect
    (second,) = other.claim(9)
    assert (second.number, second.crashes) == (3, 1)
    other.retry(second, error="", pause=0.0)  # an ordinary failure: it is suspected no more
    assert [(claim.number, claim.attempt, claim.crashes) for claim in other.claim(9)] == [(2, 1, 0), (3, 2, 0)]
    assert rows("SELECT suspect, crashes FROM conversation") == [(None, 0)] * 4


def test_a_crash_counts_only_what_had_begun_and_what_was_not_absolved(path, clock):
    """Each process claims the suspect and dies: before it began, after it began, and after it was told to stop."""
    crashes = []
    with opened(path, clock) as first:
        Run(first).accept(delivery(1))
        Run(first).claim(1)
    for dies in ("", "begun", "begun", "begun, stopped", ""):
        clock.elapsed += 30.0
        with opened(path, clock) as each:
            run = Run(each)
            (suspect,) = run.claim(1)
            crashes.append((suspect.attempt, suspect.crashes))
            if dies:
                run.begin(suspect)
            if "stopped" in dies:
                run.absolve([suspect])
    assert crashes == [(1, 1), (1, 1), (1, 2), (1, 3), (1, 3)]


def test_a_process_that_was_being_stopped_makes_no_suspects(processes, rows, clock):
    died, other = processes
    for _ in range(9):  # nine deploys
        died.accept(delivery(1))
        claims = died.claim(1)
        died.absolve(claims)
        clock.elapsed += 30.0
        (claim,) = other.claim(1)
        assert (claim.attempt, claim.crashes) == (1, 0)
        other.absolve([claim])
        clock.elapsed += 30.0
    assert rows("SELECT attempts FROM event") == [(0,)]


def test_a_suspect_that_is_given_back_stays_one_and_a_lost_one_cannot_begin(processes, clock):
    died, other = processes
    died.accept(delivery(1))
    died.claim(1)
    clock.elapsed += 30.0
    (suspect,) = other.claim(1)
    other.release(suspect)
    with pytest.raises(LeaseLost):
        other.begin(suspect)
    (suspect,) = other.claim(1)
    assert suspect.crashes == 1
    other.begin(suspect)
    assert other.dead_letter(suspect, error="it kills", more=True) is None
    assert other.claim(1) == []


def test_a_lease_of_the_dead_that_expires_while_a_suspect_is_on_trial_makes_one_that_waits(processes, clock):
    died, other = processes
    for number, conversation in enumerate("ab"):
        died.accept(delivery(number, conversation))
        died.claim(1)
        clock.elapsed += 15.0
    (suspect,) = other.claim(9)
    other.begin(suspect)
    clock.elapsed += 16.0
    assert other.claim(9) == []
    other.done(suspect, more=False)
    (second,) = other.claim(9)
    assert (second.number, second.crashes) == (2, 1)


def test_looking_tells_that_nothing_is_due_while_this_process_still_handles_a_suspect(processes, clock):
    """Its lease has expired, by a jump of the clock."""
    died, other = processes
    died.accept(delivery(1, "a"))
    died.claim(1)
    clock.elapsed += 30.0
    (suspect,) = other.claim(1)
    other.begin(suspect)
    died.accept(delivery(2, "b"))
    died.claim(1)
    clock.elapsed += 100.0
    held = [suspect.fence]
    assert other.store.commit([partial(other.store.claim, 9, held)]) == [[]]
    assert other.store.availability(held) == (False, None)


def test_a_suspect_behind_an_event_that_is_replayed_is_claimed_in_its_turn(processes, clock):
    died, other = processes
    died.accept(delivery(1))
    died.accept(delivery(2))
    (first,) = died.claim(1)
    died.done(first, more=True)
    clock.elapsed += 30.0
    assert other.claim(9)[0].crashes == 1
    clock.elapsed += 30.0
    assert replay(other.store) == 1
    assert other.claim(9) == []  # a look: it is suspected no more
    (again,) = other.claim(9)
    assert (again.number, again.crashes) == (1, 0)


def test_looking_tells_that_a_suspect_is_due(processes, clock):
    died, other = processes
    for conversation in "ab":
        died.accept(delivery(conversation, conversation))
    died.claim(2)
    clock.elapsed += 30.0
    assert other.store.availability().ready
    (suspect,) = other.claim(2)
    assert other.store.availability() == (False, 30.0)  # the other one waits for it
    assert other.store.availability([suspect.fence]) == (False, None)
    other.done(suspect, more=False)
    assert other.store.availability() == (True, 0.0)


def test_a_retry_holds_up_its_own_conversation_only(run, rows, clock):
    for number, conversation in enumerate("aab"):
        run.accept(delivery(number, conversation))
    (claim,) = run.claim(1)
    run.retry(claim, error="boom \udcff", pause=5.0)
    assert rows("SELECT error FROM event WHERE number = 1") == [(r"boom \udcff",)]
    (other,) = run.claim(5)
    assert other.conversation == "app/team/b"
    clock.elapsed += 4.9
    assert run.claim(5) == []
    clock.elapsed += 0.1
    (again,) = run.claim(5)
    assert (again.number, again.attempt) == (1, 2)


def test_a_buried_event_makes_way(run, rows, clock):
    for number in range(2):
        run.accept(delivery(number))
    (claim,) = run.claim(1)
    clock.elapsed += 1
    following = run.dead_letter(claim, error="Traceback \ud800", more=True)
    assert (following.number, following.fence) == (2, claim.fence)
    assert rows("SELECT state, finished, error FROM event WHERE number = 1") == [
        (2, START.timestamp() + 1, r"Traceback \ud800")
    ]
    (letter,) = run.store.archive.dead_letters(ALL, 10, 0)
    assert (letter.number, letter.attempts, letter.error, letter.msg_type) == (1, 1, r"Traceback \ud800", "TEXT")
    assert letter.received == START
    assert run.store.archive.dead_letters(ALL, 10, 1) == []
    assert run.dead_letter(following, error="", more=False) is None
    assert rows("SELECT * FROM conversation") == []
    assert [each.number for each in run.store.archive.dead_letters(ALL, 1, 1)] == [2]


def test_a_lease_that_ran_out_is_lost_and_what_its_holder_does_is_not_recorded(run, path, clock):
    for number in range(2):
        run.accept(delivery(number))
    (old,) = run.claim(1)
    clock.elapsed += 29.9
    assert run.claim(1) == []
    clock.elapsed += 0.1
    (new,) = run.claim(1)
    assert (new.number, new.attempt, new.fence > old.fence) == (1, 2, True)
    before = dump(path)
    for late in (
        partial(run.done, old, more=True),
        partial(run.done, old, more=False),
        partial(run.dead_letter, old, error="x", more=True),
        partial(run.retry, old, error="x", pause=1.0),
    ):
        with pytest.raises(LeaseLost):
            late()
    run.release(old)
    run.renew([old])
    assert dump(path) == before
    assert run.done(new, more=True).number == 2


def test_a_lease_that_ran_out_and_that_nobody_took_still_counts(run, clock):
    run.accept(delivery(1))
    (claim,) = run.claim(1)
    clock.elapsed += 1000
    assert run.done(claim, more=False) is None


def test_an_event_is_settled_once(run):
    for number in range(3):
        run.accept(delivery(number))
    (claim,) = run.claim(1)
    run.done(claim, more=True)
    with pytest.raises(LeaseLost):
        run.done(claim, more=True)
    with pytest.raises(LeaseLost):
        run.dead_letter(claim, error="x", more=False)
    with pytest.raises(LeaseLost):
        run.retry(claim, error="x", pause=0.0)
    run.release(claim)
    assert run.claim(1) == []


def test_renewing_makes_leases_last(run, clock):
    for conversation in "ab":
        run.accept(delivery(conversation, conversation))
    kept, left = run.claim(2)
    clock.elapsed += 20.0
    run.renew([kept])
    clock.elapsed += 20.0
    (taken,) = run.claim(5)
    assert taken.number == left.number
    run.renew([left])
    run.done(kept, more=False)
    run.done(taken, more=False)


def test_a_lane_in_which_nothing_waits_is_closed(run, rows):
    """The file of somebody who deleted events by hand."""
    run.accept(delivery(1))
    rows("DELETE FROM event")
    assert run.claim(1) == []
    assert rows("SELECT * FROM conversation") == []


def test_what_is_in_quarantine_is_never_claimed(run, rows):
    run.accept(unreadable())
    run.accept(delivery(1, problem="of another application"))
    assert run.claim(10) == []
    assert rows("SELECT * FROM conversation") == []
    first, second = run.store.archive.quarantined(ALL, 10, 0)
    assert first.error.startswith("the body cannot be read")
    assert (second.error, second.conversation) == ("of another application", "app/team/b")


def test_looking_tells_what_is_due_but_for_ones_own_leases(kept, run, clock):
    assert kept.availability() == (False, None)
    run.accept(delivery(1, "a"))
    assert kept.availability().ready
    (claim,) = run.claim(1)
    assert kept.availability([claim.fence]) == (False, None)
    assert kept.availability() == (False, 30.0)
    run.accept(delivery(2, "b"))
    (other,) = run.claim(1)
    run.retry(other, error="", pause=99.0)
    assert kept.availability([claim.fence]).due == pytest.approx(99.0)
    clock.elapsed += 30.0
    assert kept.availability([claim.fence]) == (False, pytest.approx(69.0))
    assert kept.availability().ready


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
    monkeypatch.setattr(store, "PURGE_STEP", 4)
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


def test_a_replay_of_events_that_are_gone_by_now_is_over(run):
    assert run.replay(ALL, after=3, last=9) == (9, 0)
    for number in range(3):
        run.accept(delivery(number))
    assert run.replay(ALL, after=3, last=9) == (9, 0)


def replay(kept, wish=ALL):
    at, count, last = 0, 0, kept.archive.last()
    while at < last:
        at, more = Run(kept).replay(wish, after=at, last=last)
        count += more
    return count


def test_a_replay_gives_out_again_in_the_old_order(kept, run, rows, clock, monkeypatch):
    monkeypatch.setattr(archive, "REPLAY_STEP", 2)
    for number in range(7):
        run.accept(delivery(number, "ab"[number % 2]))
    a, b = run.claim(2)  # of a: 1 3 5 7, of b: 2 4 6
    a = run.done(a, more=True)
    a = run.dead_letter(a, error="boom", more=True)  # 5 is claimed now
    b = run.done(b, more=True)
    run.retry(b, error="rest", pause=50.0)
    assert replay(kept) == 3
    assert rows("SELECT number, state, attempts, replays, finished, error FROM event ORDER BY number") == [
        (1, 0, 0, 1, None, None),
        (2, 0, 0, 1, None, None),
        (3, 0, 0, 0, None, None),
        (4, 0, 1, 0, None, "rest"),
        (5, 0, 0, 0, None, None),
        (6, 0, 0, 0, None, None),
        (7, 0, 0, 0, None, None),
    ]
    assert run.claim(5) == []
    numbers = []
    following = run.done(a, more=True)
    while following is not None:
        numbers.append((following.number, following.attempt, following.replays))
        following = run.done(following, more=True)
    assert numbers == [(1, 1, 1), (3, 1, 0), (7, 1, 0)]
    clock.elapsed += 50
    assert [claim.number for claim in run.claim(5)] == [2]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, {1, 2, 3, 4}),
        ({"dead_only": True}, {2, 4}),
        ({"since": START.timestamp() + 10}, {3, 4}),
        ({"classes": {"Text"}}, {1, 2}),
        ({"classes": {"Text", "Picture"}}, {1, 2, 3}),
        ({"classes": {"Tex", "ext", "T"}}, set()),
        ({"msg_type": "PICTURE"}, {3}),
        ({"classes": {"Picture"}, "dead_only": True}, set()),
    ],
)
def test_a_replay_takes_what_was_wished_for(kept, run, rows, wish, expected):
    later = START + timedelta(seconds=10)
    given = [
        delivery(1, "a"),
        delivery(2, "b"),
        delivery(3, "c", at=later, msg_type="PICTURE"),
        delivery(4, "d", at=later, msg_type="NEW"),
    ]
    for each in given:
        run.accept(each)
    for claim in run.claim(4):
        if claim.number % 2:
            run.done(claim, more=False)
        else:
            run.dead_letter(claim, error="", more=False)
    run.accept(delivery(5, "waiting"))
    (claim,) = run.claim(1)
    assert replay(kept, evolve(ALL, **wish)) == len(expected)
    assert {number for (number,) in rows("SELECT number FROM event WHERE state = 0")} == expected | {5}
    assert {each.number for each in run.claim(10)} == expected
    run.done(claim, more=False)


def test_a_replay_reads_again_what_was_in_quarantine(kept, run, rows, monkeypatch):
    """Two bodies that an older rbim could not read, one of them sent again since, and one that none can."""
    monkeypatch.setattr(archive, "REPLAY_STEP", 2)
    for number in (1, 2):
        run.accept(delivery(number, key=f"old{number}", conversation=f"old{number}", kind=None, problem="?"))
    run.accept(unreadable())
    run.accept(delivery(2))
    assert replay(kept, evolve(ALL, dead_only=True)) == 0
    assert replay(kept, evolve(ALL, msg_type="PICTURE")) == 0
    assert replay(kept, evolve(ALL, classes={"Picture"})) == 0
    assert replay(kept, evolve(ALL, since=START.timestamp() + 1)) == 0
    assert rows("SELECT number, state, class FROM event ORDER BY number") == [
        (1, 3, ""),
        (2, 3, ""),
        (3, 3, ""),
        (4, 0, "Text"),
    ]
    assert replay(kept) == 1
    assert rows("SELECT number, state, key, class, msg_type FROM event ORDER BY number") == [
        (1, 0, delivery(1).key, "Text", "TEXT"),
        (3, 3, unreadable().key, "", ""),
        (4, 0, delivery(2).key, "Text", "TEXT"),
    ]
    (claim,) = run.claim(5)
    assert (claim.number, claim.conversation) == (1, "app/team/b")
    assert kept.conversations(100) == {"app/team/b"}
    assert replay(kept) == 0


# ----------------------------------------------------------------------------------- many and fast


def test_every_statement_that_is_executed_often_finds_its_rows_by_an_index(kept, run):
    waiting = [partial(kept.accept, delivery(number, str(number % 10_000))) for number in range(20_000)]
    kept.commit(waiting)
    assert kept.archive.counts().waiting == 20_000
    statements = [
        (store.READY, (0.0, 1), "INDEX conversation_ready (ready<?)"),
        (store.NEXT_READY, (1,), "INDEX conversation_ready"),
        (store.OLDEST_IN_CONVERSATION, ("x", 1), "INDEX event_waiting (conversation=?)"),
        (store.SUSPECTS, (), "INDEX conversation_suspect"),
        (store.SUSPECT_READY, (0.0,), "INDEX conversation_suspect (ready<?)"),
        (store.SUSPECT_LEASED, (0.0,), "INDEX conversation_suspect (ready>?)"),
        (store.LEASE, (0.0, 0, "", "x"), "PRIMARY KEY (name=?)"),
        (store.EXTEND, (0.0, "x", 0), "PRIMARY KEY (name=?)"),
        (store.RELEASE, (0.0, "x", 0, 1), "PRIMARY KEY (name=?)"),
        (store.PAUSE, (0.0, "x", 0, 1), "PRIMARY KEY (name=?)"),
        (store.SETTLE, (1, 0.0, None, 1), "INTEGER PRIMARY KEY (rowid=?)"),
        (store.PURGE, (0.0, 1), "INDEX event_done (finished<?)"),
        (archive.DEAD, archive._values(ALL, 0, 9, 1), "INDEX event_dead (number>? AND number<?)"),
        (archive.QUARANTINED, archive._values(ALL, 0, 9, 1), "INDEX event_quarantined (number>? AND number<?)"),
    ]
    for analysed in (False, True):
        for statement, values, expected in statements:
            plan = kept._database.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            steps = [step for *_, step in plan]
            found = [step for step in steps if "INDEX" in step or "PRIMARY KEY" in step or "SUBQUERY" in step]
            assert found == steps, statement  # no bare scan, no sorting
            assert any(expected in step for step in steps), steps
        if not analysed:
            kept._database.execute("ANALYZE")
    assert [claim.number for claim in run.claim(3)] == [1, 2, 11]  # as long ready as all others


# ----------------------------------------------------------------------------- files, and refusals


def refused(path, match):
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(InvalidRequest, match=match) as caught, opened(path, EmulatedClock()):
        pass
    assert caught.value.field == "path"
    assert str(path) in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_file_that_is_no_inbox_is_refused_and_left_as_it_is(path, tmp_path, rows):
    refused(tmp_path / "nowhere" / "inbox.db", "there is no directory")
    refused(tmp_path, "it is a directory")
    noise = tmp_path / "noise"
    noise.write_bytes(b"not a database " * 1000)
    refused(noise, "not a database")
    rows("CREATE TABLE theirs (x)")
    refused(path, "another application")


@pytest.mark.parametrize("pragma", ["application_id = 7", "user_version = 1"])
def test_an_empty_database_of_another_application_is_refused(path, rows, pragma):
    rows(f"PRAGMA {pragma}")
    refused(path, "another application")


def test_a_file_of_a_newer_schema_is_refused(path, clock, rows):
    with opened(path, clock):
        pass
    rows("PRAGMA user_version = 3")
    refused(path, "version 3, and this rbim knows 2 at most: update rbim")


def test_a_file_system_without_a_log_is_refused(path, monkeypatch):
    monkeypatch.setattr(database.sqlite3, "connect", lambda _, **options: _connect(":memory:", **options))
    path.touch()
    refused(path, "write-ahead log .journal mode memory.")


_connect = sqlite3.connect


def test_other_errors_of_opening_are_sqlites_own(path):
    spoilt = evolve(INBOX, schema=(("CREATE nonsense",),))
    with pytest.raises(sqlite3.OperationalError, match="syntax error"), opened(path, EmulatedClock(), kind=spoilt):
        pass


def test_an_older_file_is_brought_up_to_date_with_what_it_holds(path, clock, rows):
    with opened(path, clock) as old:
        Run(old).accept(delivery(1))
    step = ("ALTER TABLE event ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'", "CREATE TABLE more (x)")
    with opened(path, clock, kind=evolve(INBOX, schema=(*INBOX.schema, step))) as new:
        assert Run(new).claim(1)[0].key == delivery(1).key
    assert rows("PRAGMA user_version") == [(3,)]
    assert rows("SELECT colour FROM event") == [("blue",)]


def test_a_process_whose_file_a_newer_rbim_migrates_says_so_and_writes_nothing(kept, path, clock, rows):
    step = ("ALTER TABLE event ADD COLUMN colour TEXT NOT NULL DEFAULT 'blue'",)
    Run(kept).accept(delivery(1))
    with opened(path, clock, kind=evolve(INBOX, schema=(*INBOX.schema, step))) as newer:
        for command in (partial(kept.accept, delivery(2)), partial(kept.claim, 1)):
            with pytest.raises(InvalidRequest, match="a newer rbim has migrated it to version 3 while") as caught:
                kept.commit([command])
            assert str(path) in str(caught.value)
        assert Run(newer).accept(delivery(2))
        assert Run(newer).claim(1)[0].number == 1
    assert rows("SELECT count(*) FROM event") == [(2,)]


def test_statements_of_version_1_store_nothing_in_a_file_that_was_migrated_to_version_2(path, clock, rows):
    """An old process beside a new one: it fails before it has stored anything, so it acknowledges nothing."""
    with opened(path, clock, kind=evolve(INBOX, schema=INBOX.schema[:1])), closing(sqlite3.connect(path)) as old:
        old.execute("INSERT INTO lane (conversation, ready, fence) VALUES ('c', 7, 3)")
        old.commit()
        with opened(path, clock):
            assert rows("SELECT name, ready, fence, boot, suspect, crashes FROM conversation") == [
                ("c", 7, 3, None, None, 0)
            ]
            for statement in (
                "INSERT INTO lane (conversation, ready, fence) VALUES ('d', 0, 0) ON CONFLICT (conversation) DO NOTHING",
                "SELECT conversation FROM lane WHERE ready <= 0",
                "SELECT fence FROM lane WHERE conversation = 'c'",
                "UPDATE lane SET ready = 0, fence = 0 WHERE conversation = 'c'",
                "UPDATE event SET state = 1 WHERE seq = 1",
            ):
                with pytest.raises(sqlite3.OperationalError, match=r"no such (table|column)"):
                    old.execute(statement)


def test_many_open_a_new_file_at_once(path, clock):
    begin, failures = threading.Barrier(6), []

    def enter(number):
        try:
            begin.wait()
            with opened(path, clock) as each:
                assert Run(each).accept(delivery(number))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with opened(path, clock) as each:
        assert each.archive.counts().waiting == 6


def test_opening_a_file_that_stays_locked_gives_up_in_the_end(path, rows, monkeypatch):
    rows("PRAGMA journal_mode = DELETE")
    monkeypatch.setattr(database, "PATIENCE", 0.08)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), opened(path, EmulatedClock()):
            pass


def test_who_commits_waits_for_another_process_that_writes_unless_hurried(kept, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            kept.commit([partial(kept.accept, delivery(1))], hurried=lambda: True)
        asked = []

        def hurried():
            asked.append(None)
            other.execute("ROLLBACK")
            return False

        assert kept.commit([partial(kept.accept, delivery(1))], hurried=hurried) == [True]
    assert len(asked) == 1


def test_a_read_that_meets_a_lock_is_made_again(kept, monkeypatch):
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
    answers = [busy, busy]

    def read():
        if answers:
            raise answers.pop()
        return "read"

    assert kept._database.read(read) == "read"
    monkeypatch.setattr(database, "PATIENCE", -1.0)
    answers.append(busy)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        kept._database.read(read)


def test_listeners_hear_of_news_only(kept, run):
    heard, claims = [], []

    def listener():
        heard.append(None)

    kept.listen(listener)
    expected = 0
    for news, command in [
        (1, lambda: run.accept(delivery(1))),
        (0, lambda: run.accept(delivery(1))),
        (0, lambda: run.accept(delivery(2))),  # the conversation can be claimed already
        (0, lambda: run.accept(unreadable())),
        (0, lambda: claims.extend(run.claim(1))),
        (0, lambda: run.renew(claims)),
        (1, lambda: run.done(claims[0], more=False)),  # the next one can be claimed
        (0, lambda: claims.extend(run.claim(1))),
        (0, lambda: run.done(claims[1], more=False)),
    ]:
        command()
        expected += news
        assert len(heard) == expected
    kept.unlisten(listener)
    run.accept(delivery(3, "c"))
    assert len(heard) == expected


@pytest.mark.parametrize("settled", [False, True])
def test_an_attempt_counts_once_while_suspects_go_first(tmp_path, settled):
    """The lease of a process that lives expired, and in its place a suspect of another process is claimed."""
    clock = EmulatedClock()
    stores = [InboxStore(tmp_path / "inbox.db", retention=WEEK, lease=30.0, clock=clock) for _ in range(2)]
    for each in stores:
        each.open()
    with closing(stores[0]), closing(stores[1]):
        living, dying = map(Run, stores)
        living.accept(delivery(1, "a"))
        (late,) = living.claim(1)
        dying.accept(delivery(2, "b"))
        dying.claim(1)
        clock.elapsed += 31.0
        for _ in range(3):
            (suspect,) = living.claim(3)
            assert (suspect.number, suspect.crashes) == (2, 1)
            living.release(suspect)
        (suspect,) = living.claim(3)
        living.begin(suspect)
        living.done(suspect, more=False)
        if settled:  # nobody has claimed it meanwhile
            living.done(late, more=False)
            return
        (again,) = living.claim(3)
        assert (again.number, again.attempt) == (late.number, 2)
        with pytest.raises(LeaseLost):
            living.done(late, more=False)


# --------------------------------------------------------------------------------- against a model


class Inboxes(RuleBasedStateMachine):
    """Two connections to one file do what workers do, lawfully or late; the model keeps lists."""

    claims = Bundle("claims")

    @initialize()
    def start(self):
        self.folder = TemporaryDirectory()
        self.clock = EmulatedClock()
        path = Path(self.folder.name) / "inbox.db"
        self.stores = [InboxStore(path, retention=WEEK, lease=30.0, clock=self.clock) for _ in range(2)]
        for each in self.stores:
            each.open()
        self.runs = [Run(each) for each in self.stores]
        self.accepted = 0
        self.waiting = {}  # conversation: numbers, in order
        self.rests_until = {}
        self.holder = {}  # conversation: fence
        self.boots = {}  # conversation: which store has the lease, where its death would be a crash
        self.crashes = {}  # conversation: of the suspect, its oldest event
        self.attempts = {}
        self.settled = {}
        self.fences = 0

    def teardown(self):
        if hasattr(self, "folder"):
            for each in self.stores:
                each.close()
            self.folder.cleanup()

    which = st.sampled_from([0, 1])

    @rule(which=which, conversation=st.sampled_from("abc"))
    def accept(self, which, conversation):
        self.accepted += 1
        assert self.runs[which].accept(delivery(self.accepted, conversation))
        self.waiting.setdefault(f"app/team/{conversation}", []).append(self.accepted)
        self.attempts[self.accepted] = 0

    def claimable(self):
        return {
            conversation
            for conversation, numbers in self.waiting.items()
            if numbers and self.clock.elapsed >= self.rests_until.get(conversation, 0.0)
        }

    def next_ones(self, ready):
        """Those of which one can be claimed now: suspects wait while one of them is leased."""
        suspects = set(self.crashes)
        return ready - suspects if (suspects & set(self.holder)) - ready else ready

    def granted(self, claim, which):
        conversation = claim.conversation
        assert claim.number == self.waiting[conversation][0]
        assert claim.attempt == self.attempts[claim.number] + 1
        assert claim.crashes == self.crashes.get(conversation, 0)
        self.holder[conversation] = claim.fence
        self.boots[conversation] = None if claim.crashes else which
        self.rests_until[conversation] = self.clock.elapsed + 30.0

    def expired(self, conversation, which):
        """Count what the end of a lease means."""
        boot = self.boots.get(conversation) if self.holder.pop(conversation, None) else None
        if boot == which:
            self.attempts[self.waiting[conversation][0]] += 1
        elif boot is not None:
            self.crashes[conversation] = self.crashes.get(conversation, 0) + 1

    @rule(target=claims, which=which, limit=st.integers(3, 5))
    def claim(self, which, limit):
        """All three conversations can be claimed at once."""
        claims = self.runs[which].claim(limit)
        ready = self.claimable()
        for conversation in ready - set(self.crashes):
            if self.boots.get(conversation) not in {None, which}:  # its process died
                self.expired(conversation, which)
        suspects = set(self.crashes)
        if suspects & self.next_ones(ready):  # the other leases that have expired hold on
            (claim,) = claims
            assert claim.conversation in suspects & ready
            self.expired(claim.conversation, which)
        else:
            assert {claim.conversation for claim in claims} == ready - suspects
            for conversation in ready - suspects:
                self.expired(conversation, which)
        for claim in claims:
            assert claim.fence > self.fences
            self.granted(claim, which)
        self.fences = max((claim.fence for claim in claims), default=self.fences)
        return multiple(*claims)

    @rule(which=which, claim=claims)
    def begin(self, which, claim):
        conversation = claim.conversation
        if self.holder.get(conversation) == claim.fence:
            self.runs[which].begin(claim)
            self.boots[conversation] = which
            self.rests_until[conversation] = self.clock.elapsed + 30.0
        else:
            with pytest.raises(LeaseLost):
                self.runs[which].begin(claim)

    @rule(which=which, claim=claims)
    def absolve(self, which, claim):
        self.runs[which].absolve([claim])
        if self.holder.get(claim.conversation) == claim.fence:
            self.boots[claim.conversation] = None

    @rule(which=which, claim=claims)
    def clear(self, which, claim):
        self.runs[which].clear(claim)
        if self.holder.get(claim.conversation) == claim.fence:
            self.boots[claim.conversation] = None
            self.crashes.pop(claim.conversation, None)

    def valid(self, claim):
        return self.holder.get(claim.conversation) == claim.fence and claim.number not in self.settled

    @rule(target=claims, which=which, claim=claims, more=st.booleans(), dies=st.booleans())
    def settle(self, which, claim, more, dies):
        run = self.runs[which]
        act = partial(run.dead_letter, claim, error="x", more=more) if dies else partial(run.done, claim, more=more)
        if not self.valid(claim):
            with pytest.raises(LeaseLost):
                act()
            return multiple()
        following, boot = act(), self.boots[claim.conversation]
        self.settled[claim.number] = 2 if dies else 1
        self.attempts[claim.number] += 1
        self.waiting[claim.conversation].remove(claim.number)
        suspected = self.crashes.pop(claim.conversation, 0)
        if following is not None:
            assert more
            assert not suspected
            assert following.fence == claim.fence
            self.granted(following, boot)
            return following
        assert suspected or not (more and self.waiting[claim.conversation])
        del self.holder[claim.conversation]
        self.rests_until[claim.conversation] = self.clock.elapsed
        return multiple()

    def leaves(self, claim, until):
        del self.holder[claim.conversation]
        self.rests_until[claim.conversation] = until

    @rule(which=which, claim=consumes(claims), pause=st.sampled_from([0.0, 7.0, 50.0]))
    def retry(self, which, claim, pause):
        act = partial(self.runs[which].retry, claim, error="x", pause=pause)
        if self.valid(claim):
            act()
            self.attempts[claim.number] += 1
            self.crashes.pop(claim.conversation, None)
            self.leaves(claim, self.clock.elapsed + pause)
        else:
            with pytest.raises(LeaseLost):
                act()

    @rule(which=which, claim=consumes(claims))
    def release(self, which, claim):
        if self.valid(claim):
            self.leaves(claim, self.clock.elapsed)
        self.runs[which].release(claim)

    @rule(which=which, claim=claims)
    def renew(self, which, claim):
        self.runs[which].renew([claim])
        if self.holder.get(claim.conversation) == claim.fence:
            self.rests_until[claim.conversation] = self.clock.elapsed + 30.0

    @rule(seconds=st.sampled_from([1.0, 10.0, 31.0]))
    def pass_time(self, seconds):
        self.clock.elapsed += seconds

    @invariant()
    def agrees(self):
        if not hasattr(self, "stores"):
            return
        with closing(sqlite3.connect(self.stores[0]._database.path)) as plain:
            states = plain.execute("SELECT number, state, attempts FROM event ORDER BY number").fetchall()
            conversations = plain.execute("SELECT name FROM conversation").fetchall()
        expected = [(number, self.settled.get(number, 0), self.attempts[number]) for number in range(1, self.accepted + 1)]
        assert states == expected
        assert {name for (name,) in conversations} == {each for each, numbers in self.waiting.items() if numbers}
        assert self.stores[1].availability().ready == bool(self.next_ones(self.claimable()))


TestInboxes = Inboxes.TestCase
TestInboxes.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
