"""A job of invitations is killed at random moments and started again until it is done: nothing is lost, nothing unreported.

Real processes, real sockets, ``kill -9``, also while the input is read. The platform is an emulator behind a socket that
resets connections before and after the effect, cuts answers short, says 503 now and then, and 429 to more than so many
requests in a second. What happened is taken from the emulator's own journal and state, and what was recorded from the file,
with the standard library's sqlite3; the expectation comes from the input.

What must be equal and what need not be. A *row* is a sending in the job's journal, an *arrival* one in the emulator's. Rows
with the same accounts follow each other: the next begins when the one before is over, or its process is. So every arrival
falls into the time between the beginning of one row and that of the next with the same accounts, and then:

- no arrival is without a row of its own: the intent is on the disk before a byte leaves. A row has one arrival at most;
- a row with an end has exactly one arrival, and says what that one says: answered where the answer came whole, refused where
  the platform refused it, unknown where the answer was cut, reset or a 503;
- a row without an end was left open by a kill. It has one arrival or none: the kill came after the bytes had left or before.
  Only here may the job's journal hold more than the emulator's. They are at most the kills times what may be in flight;
- what arrived twice therefore has two rows, and what has two rows arrived twice unless one of them has no end;
- a row is marked ``resent`` exactly if an earlier one with the same accounts is of unknown outcome. So of two arrivals that
  both took effect, the later one's row is marked. The reverse need not be: what was unknown may never have arrived;
- an account is a member exactly if it is recorded as invited. Killed between an effect and its record, the job sends that
  again, and hears that the accounts are there already, which is then no refusal.

The job sends again what is younger than an hour, and up to five times what has no answer: of the groups that exist nothing
stays unknown, unless five sendings in a row went wrong by chance; those accounts may be members or not. An account that is
listed as refused by the answer to a resend is unknown as well. One group does not exist: what is refused whole has failed,
but is unknown where an earlier sending of it may have had its effect.
"""

import csv
import io
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections import Counter, defaultdict
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import pairwise

import pytest

from helpers import jobs as tables
from helpers.credentials import CREDENTIALS
from helpers.paths import TESTS
from helpers.processes import CLEAN, wait_until
from helpers.serving import emulator_served, variables_of
from rbim.emulator import Emulator, Rules

JOB = TESTS / "ci" / "helpers_ci" / "bulkjob.py"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PATIENCE = 120
CHUNK = 10
PIECES, PIECE = 10, 0.02  # the input through a pipe comes in so many, one in so many seconds
AT_MOST = {"pipe": PIECES * PIECE, "file": 0.06, "sending": 0.3}  # seconds until a kill
GROUP = 1000  # rows for each
PER_SECOND = 250
IN_FLIGHT, ATTEMPTS = 100, 5  # at most, the job's defaults
MISSING = "g80000000000404"
OWNER = "admin"
FAULTS = [
    {"effect": {"kind": "latency", "seconds": 0.02, "sigma": 0.5}},
    {"effect": {"kind": "reset_before"}, "probability": 0.03},
    {"effect": {"kind": "reset_after"}, "probability": 0.03},
    {"effect": {"kind": "cut_short"}, "probability": 0.02},
    {"effect": {"kind": "status", "status": 503}, "probability": 0.01},
    {"effect": {"kind": "throttle", "per_second": PER_SECOND}},
]
DONE, REFUSED, FAILED, UNKNOWN = 1, 2, 3, 4  # states of accounts
ANSWERED_ROW, REFUSED_ROW, UNKNOWN_ROW = 1, 2, 4  # outcomes of requests


class Input:
    """Rows as CSV, and what they are to become: accounts by group in order, those who cannot be invited, and counts."""

    def __init__(self, groups, chance):
        self.groups = [f"g8{number:013d}" for number in range(groups)]
        pairs = [(group, f"{group[-3:]}u{number:04d}") for group in self.groups for number in range(GROUP)]
        pairs += [(MISSING, f"lost{number}") for number in range(3 * CHUNK)]
        self.never = {account for _, account in chance.sample(pairs, len(pairs) // 50)}
        rows = [[group, account, chance.choice(["", "", "clerk"])] for group, account in pairs]
        chance.shuffle(rows)
        again = [[*pair, chance.choice(["", "clerk"])] for *pair, _ in chance.sample(rows, len(rows) // 100)]
        wrong = [[chance.choice(self.groups), "", ""] for _ in range(len(rows) // 200)]
        for row in again + wrong:
            rows.insert(chance.randrange(len(rows) + 1), row)
        self.total, self.duplicate, self.skipped = len(rows), len(again), len(wrong)
        self.accounts = defaultdict(set)
        for group, account in pairs:
            self.accounts[group].add(account)
        text = io.StringIO()
        csv.writer(text).writerows([["group", "account", "user_name"], *rows])
        self.content = text.getvalue().encode()

    @property
    def pairs(self):
        return {(group, account) for group, accounts in self.accounts.items() for account in accounts}

    def state(self):
        created = "2026-01-02T03:04:05+00:00"
        told = {"name": "n", "type": "4", "permission": "0", "target": "1", "declared": "", "group_domain": None}
        groups = [{"group_id": group, "created": created, "members": {OWNER: "0"}, **told} for group in self.groups]
        return {"version": 1, "groups": groups, "never_logged_in": sorted(self.never)}


@contextmanager
def emulating(seed):
    """Serve an emulator that names those who are in the group already; give its URL, and it."""
    emulator = Emulator(credentials=CREDENTIALS, rules=Rules(invited_member_fails=True), seed=seed)
    with emulator_served(emulator) as server:
        yield server.url, emulator


def control(url, method, path, document=None):
    body = None if document is None else json.dumps(document).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/_emulator/{path}", data=body, headers=headers, method=method)
    with OPENER.open(request, timeout=PATIENCE) as answer:
        return json.load(answer)


class Jobs:
    """Processes of one job, one after the other; the input comes from a file or through a pipe, in pieces."""

    def __init__(self, folder, given, variables, *, pipe, backend):
        self.journal = folder / "job.journal"
        self.given = given
        self.copies = folder / "killed"
        self.copies.mkdir()
        self.pipe = pipe
        self.backend = backend
        self.input = "-" if pipe else str(folder / "input.csv")
        (folder / "input.csv").write_bytes(given.content)
        self.environment = CLEAN | variables | {"no_proxy": "*"}
        self.loaded = False
        self.while_loading = 0
        self.kills = 0
        self._feeder = None
        self.process = None

    def start(self):
        told = ["resume", self.journal] if self.loaded else ["begin", self.journal, self.input, "--chunk", str(CHUNK)]
        feeds = self.pipe and not self.loaded
        self.process = process = subprocess.Popen(
            [sys.executable, JOB, "--backend", self.backend, *told],
            stdin=subprocess.PIPE if feeds else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self.environment,
        )
        assert process.stdout.readline() == b"begins\n"
        if feeds:
            self._feeder = threading.Thread(target=self.feed, args=(process.stdin,))
            self._feeder.start()

    def feed(self, stream):
        step = len(self.given.content) // PIECES + 1
        try:
            for begins in range(0, len(self.given.content), step):
                stream.write(self.given.content[begins : begins + step])
                stream.flush()
                threading.Event().wait(PIECE)
        except BrokenPipeError:
            pass  # killed while it read
        finally:
            with suppress(BrokenPipeError):
                stream.close()

    def kill(self):
        """Kill it, and look at what it leaves behind: at a copy, so that it is the next process who finds it so."""
        self.process.kill()
        code = self.process.wait()
        assert code == -9, f"it was not there to be killed: {code}"
        self.kills += 1
        self.end()
        for suffix in ("", "-wal"):
            if self.journal.with_name(self.journal.name + suffix).exists():
                shutil.copy(self.journal.with_name(self.journal.name + suffix), self.copies)
        with closing(sqlite3.connect(self.copies / self.journal.name)) as file:
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            made = file.execute("SELECT 1 FROM sqlite_master WHERE name = 'job'").fetchall()
            loaded = bool(made) and file.execute("SELECT 1 FROM job WHERE loaded IS NOT NULL").fetchall() != []
            assert loaded or not made or file.execute("SELECT count(*) FROM request").fetchall() == [(0,)]
        for copy in self.copies.iterdir():
            copy.unlink()
        assert loaded or not self.loaded, "what was loaded is gone"
        self.loaded = loaded
        self.while_loading += not loaded

    def finish(self):
        said = self.process.stdout.read()
        assert self.process.wait(PATIENCE) == 0
        return json.loads(said)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        if self._feeder is not None:
            self._feeder.join(PATIENCE)
            self._feeder = None


class Row:
    """One sending by the job's journal, with what the emulator says arrived of it."""

    def __init__(self, number, outcome, resent, begun, ended):
        self.number = number
        self.outcome = outcome
        self.resent = bool(resent)
        self.begun = begun
        self.ended = ended
        self.arrivals = []


class Recorded:
    """What is in the job's journal."""

    def __init__(self, path):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            self.ok = file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            self.states = defaultdict(list)
            for each in tables.accounts(path):
                self.states[each.group, each.account].append((each.state, each.reason))
            self.rows = defaultdict(list)
            inside = tables.accounts_of_requests(path)
            statement = "SELECT members, id, outcome, resent, begun, ended FROM request WHERE begun IS NOT NULL ORDER BY id"
            for members, number, *facts in file.execute(statement):
                named = inside[number]
                assert len(named) == members
                self.rows[named[0].group, tuple(each.account for each in named)].append(Row(number, *facts))
            ((self.todo,),) = file.execute("SELECT count(*) FROM request WHERE retry = 1 OR outcome = 0")
            self.runs = Counter(why for (why,) in file.execute("SELECT why FROM run"))
            ((self.bad,),) = file.execute("SELECT count(*) FROM bad_row")
            ((self.duplicate,),) = file.execute("SELECT count(*) FROM duplicate")

    @property
    def all(self):
        return [row for rows in self.rows.values() for row in rows]


def assign(recorded, arrivals, offset):
    """Give each arrival to the row in whose time it falls; ``offset`` leads from the emulator's clock to the time of day."""
    for arrival in arrivals:
        values = arrival["values"]
        rows = recorded.rows[values["group_id"], tuple(values["members"])]
        at = arrival["at"] + offset
        began = [row for row in rows if row.begun <= at]
        assert began, "it arrived before anybody wrote down that it is to be sent"
        began[-1].arrivals.append(arrival)
    for rows in recorded.rows.values():
        assert all(earlier.ended is None or earlier.ended <= later.begun for earlier, later in pairwise(rows))


def said_by(arrival):
    """Return the outcomes that may be recorded of what arrived, where an answer came to be waited for."""
    trouble = set(arrival["trouble"])
    if trouble & {"reset_before", "reset_after", "keep"}:
        return {UNKNOWN_ROW}
    if "status" in trouble:
        return {REFUSED_ROW, UNKNOWN_ROW}  # 429 or 503, which the emulator's journal does not tell apart
    return {ANSWERED_ROW if arrival["code"] == "000000" else REFUSED_ROW}


def check_rows(recorded, kills):
    for rows in recorded.rows.values():
        for place, row in enumerate(rows):
            assert len(row.arrivals) <= 1
            assert row.resent == any(earlier.outcome == UNKNOWN_ROW for earlier in rows[:place])
            if row.ended is None:
                assert row.outcome == UNKNOWN_ROW
                continue
            (arrival,) = row.arrivals
            assert row.outcome in said_by(arrival), arrival
        effects = [row for row in rows if row.arrivals and row.arrivals[0]["effect"]]
        assert all(row.resent for row in effects[1:]), "done twice, and the second one does not say so"
        if sum(len(row.arrivals) for row in rows) > 1:
            assert len(rows) > 1
    left_open = [row for row in recorded.all if row.ended is None]
    assert len(left_open) <= 2 * kills * IN_FLIGHT  # those, and as many answers that were not committed yet
    return left_open


def check_accounts(recorded, given, state, arrivals):
    """See that every account has one state, and that it is what the platform has made of it; return how many are unknown."""
    assert set(recorded.states) == given.pairs
    assert all(len(states) == 1 for states in recorded.states.values())
    reached = {
        (each["values"]["group_id"], account)
        for each in arrivals
        if each["effect"]
        for account in each["values"]["members"]
        if account not in given.never
    }
    members = {(group["group_id"], member) for group in state["groups"] for member in group["members"] if member != OWNER}
    assert members == reached
    unknown = {pair for pair, [(state, _)] in recorded.states.items() if state == UNKNOWN}
    for (group, accounts), rows in recorded.rows.items():
        lost = sum(row.outcome == UNKNOWN_ROW for row in rows)
        for account in accounts:
            ((found, reason),) = recorded.states[group, account]
            assert ((group, account) in members) == (found == DONE) or found == UNKNOWN
            assert found != REFUSED or reason == "the account has never logged in"
            if group == MISSING:
                assert found == (UNKNOWN if lost else FAILED)
            elif found == UNKNOWN:
                assert lost >= ATTEMPTS or (lost and account in given.never), "given up too soon"
            else:
                assert found == (REFUSED if account in given.never else DONE)
    possible = {(group, account) for group, account in given.pairs if group != MISSING and account not in given.never}
    assert possible - unknown <= members <= possible
    return len(unknown)


def kill_again_and_again(folder, *, pipe, backend, groups, rounds):
    chance = random.Random(f"{rounds}{pipe}")
    given = Input(groups, chance)
    with emulating(rounds) as (url, emulator):
        control(url, "PUT", "state", given.state())
        control(url, "PUT", "faults", FAULTS)
        jobs = Jobs(folder, given, variables_of(emulator, url), pipe=pipe, backend=backend)
        try:
            for number in range(rounds):
                moment = ("pipe" if pipe else "file") if number < rounds // 3 and not jobs.loaded else "sending"
                before = len(emulator.requests)
                jobs.start()
                waits = moment == "sending" and chance.random() < 0.8
                if waits or number == rounds - 1:  # at least one kill must meet a run, however slowly processes start
                    wait_until(lambda before=before: len(emulator.requests) > before, PATIENCE, 0.005)
                threading.Event().wait(chance.random() * AT_MOST[moment])
                jobs.kill()
            jobs.start()
            told = jobs.finish()
        finally:
            jobs.end()
        arrivals = control(url, "GET", "requests")
        state = control(url, "GET", "state")
        clock = control(url, "GET", "clock")
    recorded = Recorded(jobs.journal)
    assert recorded.ok
    assert recorded.todo == 0
    assert jobs.while_loading > 0 or not pipe  # a file may be read too soon
    assert recorded.runs["done"] == 1
    assert 0 < recorded.runs[None] <= jobs.kills - jobs.while_loading
    assign(recorded, arrivals, datetime.fromisoformat(clock["now"]).timestamp() - clock["monotonic"])
    left_open = check_rows(recorded, jobs.kills)
    unknown = check_accounts(recorded, given, state, arrivals)
    counts = Counter(state for [(state, _)] in recorded.states.values())
    assert (recorded.bad, recorded.duplicate) == (given.skipped, given.duplicate)
    assert sum(counts.values()) + recorded.bad + recorded.duplicate == given.total
    expected = {"done": counts[DONE], "refused": counts[REFUSED], "failed": counts[FAILED], "unknown": counts[UNKNOWN]}
    expected |= {"why": "done", "total": given.total, "skipped": given.skipped, "duplicate": given.duplicate}
    assert told == expected
    several = [rows for rows in recorded.rows.values() if sum(len(row.arrivals) for row in rows) > 1]
    twice = [rows for rows in several if sum(row.arrivals[0]["effect"] for row in rows if row.arrivals) > 1]
    return (
        f"{jobs.kills} kills ({jobs.while_loading} while loading), input by {'pipe' if pipe else 'file'}, {backend}: "
        f"{given.total} rows, {len(recorded.all)} requests recorded, {len(arrivals)} arrived; {len(left_open)} left open by "
        f"kills, {sum(bool(row.arrivals) for row in left_open)} of them arrived; {sum(row.resent for row in recorded.all)} "
        f"marked resent, {len(several)} seen more than once, {len(twice)} done more than once; {unknown} accounts unknown"
    )


FORMS = pytest.mark.parametrize(("pipe", "backend"), [(False, "asyncio"), (True, "trio")], ids=["file", "pipe"])


@FORMS
def test_a_killed_job_goes_on_and_its_journal_tells_what_the_platform_saw(pipe, backend, tmp_path, capsys):
    said = kill_again_and_again(tmp_path, pipe=pipe, backend=backend, groups=5, rounds=4)
    with capsys.disabled():
        sys.stdout.write(f"\n{said}\n")
