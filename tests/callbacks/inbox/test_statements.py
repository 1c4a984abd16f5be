"""The SQLite file of an inbox, read beside the store by a plain connection, and against a model of what it promises."""

import re
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from helpers.deliveries import delivery, unreadable
from rbim.callbacks.inbox import statements as sql, store
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.sqlite import INBOX
from rbim.callbacks.inbox.store import EventFilter, InboxStore
from rbim.emulator.clock import EmulatedClock
from rbim.storage.commands import CommandFailure
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


@pytest.fixture
def rows(path):
    """Executes a statement over a connection that has nothing to do with the store."""

    def execute(statement, *values):
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            return plain.execute(statement, values).fetchall()

    return execute


# --------------------------------------------------------------------------------------- accepting


def test_the_file_is_durable_and_names_its_application(kept, rows):
    assert rows("PRAGMA journal_mode") == [("wal",)]
    assert rows("PRAGMA application_id") == [(0x7262696D,)]
    assert rows("PRAGMA user_version") == [(3,)]
    assert kept.database._connection.execute("PRAGMA synchronous").fetchone() == (2,)


# ---------------------------------------------------------------------------------------- claiming


def test_a_conversation_in_which_nothing_waits_is_closed(run, rows):
    """The file of somebody who deleted events by hand."""
    run.accept(delivery(1))
    rows("DELETE FROM event")
    assert run.claim(1) == []
    assert rows("SELECT * FROM conversation") == []


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


def test_a_replay_of_events_that_are_gone_by_now_is_over(run):
    assert run.replay(ALL, after=3, last=9) == (9, 0)
    for number in range(3):
        run.accept(delivery(number))
    assert run.replay(ALL, after=3, last=9) == (9, 0)


# ----------------------------------------------------------------------------------- many and fast


def test_every_statement_that_is_executed_often_finds_its_rows_by_an_index(kept, run):
    run.file.commit([partial(kept.accept, delivery(number, str(number % 1000))) for number in range(2000)])
    assert kept.counts().waiting == 2000
    letters = store._values(ALL, 0, 9, limit=1)
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


# --------------------------------------------------------------------------------- against a model


class Inboxes(RuleBasedStateMachine):
    """Two connections to one file do what workers do, lawfully or late; the model keeps lists."""

    claims = Bundle("claims")

    @initialize()
    def start(self):
        self.folder = TemporaryDirectory()
        self.clock = EmulatedClock()
        path = Path(self.folder.name) / "inbox.db"
        self.runs = [Run(path, self.clock) for _ in range(2)]
        for each in self.runs:
            each.file.open()
        self.accepted = 0
        self.waiting = {}  # conversation: numbers, in order
        self.rests_until = {}
        self.holder = {}  # conversation: fence
        self.begun = Counter()  # conversation: how often its oldest event has begun without an end
        self.attempts = {}
        self.settled = {}
        self.fences = 0

    def teardown(self):
        if hasattr(self, "folder"):
            for each in self.runs:
                each.file.close()
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

    def granted(self, claim):
        conversation = claim.conversation
        assert claim.number == self.waiting[conversation][0]
        assert claim.attempt == self.attempts[claim.number] + 1
        self.holder[conversation] = claim.fence
        self.rests_until[conversation] = self.clock.elapsed + 30.0

    @rule(target=claims, which=which, limit=st.integers(3, 5))
    def claim(self, which, limit):
        """All three conversations can be claimed at once."""
        claims = self.runs[which].claim(limit)
        ready = self.claimable()
        alone = {conversation for conversation in ready if self.begun[conversation]}
        if alone:
            (claim,) = claims
            assert claim.conversation in alone
            assert claim.crashes == self.begun[claim.conversation]
        else:
            assert {claim.conversation for claim in claims} == ready
            assert not any(claim.crashes for claim in claims)
            self.begun.update(ready)
        for claim in claims:
            assert claim.fence > self.fences
            self.granted(claim)
        self.fences = max((claim.fence for claim in claims), default=self.fences)
        return multiple(*claims)

    @rule(which=which, claim=claims)
    def begin(self, which, claim):
        conversation = claim.conversation
        if self.holder.get(conversation) == claim.fence:
            self.runs[which].begin(claim)
            self.begun[conversation] = claim.crashes + 1
            self.rests_until[conversation] = self.clock.elapsed + 30.0
        else:
            with pytest.raises(LeaseLost):
                self.runs[which].begin(claim)

    @rule(which=which, claim=claims, cleared=st.booleans())
    def discount(self, which, claim, cleared):
        claim = evolve(claim, crashes=0) if cleared else claim
        self.runs[which].discount([claim])
        if self.holder.get(claim.conversation) == claim.fence:
            self.begun[claim.conversation] = claim.crashes

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
        following = act()
        self.settled[claim.number] = 2 if dies else 1
        self.attempts[claim.number] += 1
        self.waiting[claim.conversation].remove(claim.number)
        if following is not None:
            assert more
            assert not claim.crashes
            assert following.fence == claim.fence
            self.granted(following)
            return following
        assert claim.crashes or not (more and self.waiting[claim.conversation])
        self.leaves(claim, self.clock.elapsed)
        return multiple()

    def leaves(self, claim, until, begun=0):
        del self.holder[claim.conversation]
        self.begun[claim.conversation] = begun
        self.rests_until[claim.conversation] = until

    @rule(which=which, claim=consumes(claims), pause=st.sampled_from([0.0, 7.0, 50.0]))
    def retry(self, which, claim, pause):
        act = partial(self.runs[which].retry, claim, error="x", pause=pause)
        if self.valid(claim):
            act()
            self.attempts[claim.number] += 1
            self.leaves(claim, self.clock.elapsed + pause)
        else:
            with pytest.raises(LeaseLost):
                act()

    @rule(which=which, claim=consumes(claims), died=st.booleans())
    def release(self, which, claim, died):
        if self.valid(claim):
            self.leaves(claim, self.clock.elapsed, claim.crashes + died)
        self.runs[which].release(claim, died=died)

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
        if not hasattr(self, "runs"):
            return
        with closing(sqlite3.connect(self.runs[0].file.path)) as plain:
            states = plain.execute("SELECT number, state, attempts FROM event ORDER BY number").fetchall()
            conversations = plain.execute("SELECT name, begun FROM conversation").fetchall()
        expected = [(number, self.settled.get(number, 0), self.attempts[number]) for number in range(1, self.accepted + 1)]
        assert states == expected
        assert dict(conversations) == {each: self.begun[each] for each, numbers in self.waiting.items() if numbers}
        assert (self.runs[1].due() == 0) == bool(self.claimable())


TestInboxes = Inboxes.TestCase
TestInboxes.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
