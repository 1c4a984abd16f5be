"""Reports of jobs: journals are written here as a job would, and what is expected is counted in plain Python."""

import csv
import io
import itertools
import json
import math
import random
import sqlite3
import statistics
import subprocess
import sys
import unicodedata
from collections import Counter
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from rich.cells import cell_len

from rbim.bulk.input.format import Format, write_rows
from rbim.bulk.input.rows import BadRow
from rbim.bulk.journal import marks
from rbim.bulk.journal.schema import JOURNAL, STATEMENTS
from rbim.bulk.report.plot import plot_report
from rbim.bulk.report.reading import read_report
from rbim.bulk.report.rows import COLUMNS, every_bad_row, not_done, write_report_csv
from rbim.bulk.report.text import WIDTH, report_text, sparkline
from rbim.errors import InvalidRequest

BEGAN = 1_790_000_000.0
TEN_O_CLOCK = datetime.fromtimestamp(BEGAN, UTC).isoformat()
OPEN, ANSWERED, REFUSED, NOT_SENT, UNKNOWN, PLANNED = range(6)


class Book:
    """A journal that a test writes, table by table."""

    def __init__(self, path=":memory:", *, operation="InviteJoinGroup", word="invited", source="members.csv", loaded=True):
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        for statement in STATEMENTS:
            self.db.execute(statement)
        self.db.execute(f"PRAGMA application_id = {int.from_bytes(JOURNAL.mark, 'big')}")
        self.db.execute(f"PRAGMA user_version = {len(JOURNAL.schema)}")
        self.db.execute("UPDATE account_state SET name = ? WHERE id = 1", (word,))
        self.add(
            "job",
            operation=operation,
            options=json.dumps({"user_name": "admin"}),
            chunk=50,
            settings="{}",
            source=json.dumps({"name": source, "format": {"kind": "csv"}}),
            created=BEGAN - 60,
            loaded=BEGAN if loaded else None,
        )

    def __del__(self):
        self.db.close()  # Python 3.13 warns of those that nobody closes

    def add(self, table, **values):
        marks = ", ".join("?" * len(values))
        names = ", ".join(values)
        return self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values())).lastrowid

    def known(self, table, **values):
        where = " AND ".join(f"{name} = ?" for name in values)
        row = self.db.execute(f"SELECT id FROM {table} WHERE {where}", tuple(values.values())).fetchone()
        return row[0] if row else self.add(table, **values)

    def reason(self, text, code="", error=""):
        return self.known("reason", text=text, code=code, error=error)

    def account(self, seq, group="g", account=None, *, user_name="", state=0, request=None, reason=None):
        """Add an account, in a chunk of its own; return the number of the chunk."""
        target = self.known("target_group", name=group)
        sender_group = self.known("sender_group", target_group=target, user_name=user_name)
        accounts = json.dumps([account or f"u{seq}"])
        content = self.add("content", sender_group=sender_group, size=1, first=seq, step=1, accounts=accounts)
        values = {"state": state, "request": request, "reason": reason}
        self.db.execute("UPDATE job SET rows = max(rows, ?)", (seq,))
        return self.add("chunk", sender_group=sender_group, content=content, size=1, **values)

    def chunk(self, first, accounts, group="g", *, state=0, reason=None, exceptions=(), user_name=""):
        """Add a chunk of several accounts; the exceptions are (place, state, reason)."""
        sender_group = self.known("sender_group", target_group=self.known("target_group", name=group), user_name=user_name)
        size = len(accounts)
        rows = {"sender_group": sender_group, "size": size}
        content = self.add("content", **rows, first=first, step=1, accounts=json.dumps(accounts))
        chunk = self.add("chunk", **rows, content=content, state=state, reason=reason)
        for place, its, why in exceptions:
            self.add("exception", chunk=chunk, place=place, state=its, reason=why)
        self.db.execute("UPDATE job SET rows = max(rows, ?)", (first + size - 1,))
        return chunk

    def request(self, *, chunk=1, members=1, attempt=1, begun=BEGAN, elapsed=0.1, outcome=ANSWERED, **more):
        ended = None if outcome in {OPEN, PLANNED} else begun + elapsed
        elapsed = None if outcome in {OPEN, PLANNED} else elapsed
        begun = None if outcome == PLANNED else begun
        values = {"chunk": chunk, "members": members, "attempt": attempt, **more}
        return self.add("request", **values, begun=begun, ended=ended, elapsed=elapsed, outcome=outcome)

    def bad(self, line, reason="no account", raw="x"):
        self.add("bad_row", line=line, reason=reason, raw=raw)
        self.db.execute("UPDATE job SET rows = rows + 1, bad = bad + 1")

    def duplicate(self, seq, account, first, group="g"):
        self.add("duplicate", seq=seq, target_group=self.known("target_group", name=group), account=account, first=first)
        self.db.execute("UPDATE job SET rows = rows + 1, duplicates = duplicates + 1")

    def run(self, began=BEGAN, ended=None, why=None):
        return self.add("run", began=began, ended=ended, why=why, settings="{}")

    def sample(self, run, at, **more):
        values = {"seconds": 1.0, "requests": 10, "accounts": 500, "throttled": 0, "failed": 0, "in_flight": 4.0}
        self.add("sample", run=run, at=at, **{**values, "concurrency": 8, **more})

    def report(self, **more):
        return read_report(self.db, **more)

    def csv(self):
        stream = io.StringIO(newline="")
        write_report_csv(stream, self.db)
        return list(csv.reader(io.StringIO(stream.getvalue(), newline="")))


@pytest.fixture
def book():
    made = Book()
    yield made
    made.db.close()


def width(line):
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in line)


def lively(path=":memory:", *, seed=1, killed=False, source="members.csv"):
    """Return a journal of two runs in which much has happened."""
    book, dice = Book(path, source=source), random.Random(seed)
    first = book.run(BEGAN, BEGAN + 60, "stopped")
    why = [book.reason(f"群组成员已满 number {number}", f"9002{number:02}", "ApiError") for number in range(5)]
    slow = book.reason("too many requests", "900429", "Throttled")
    alike = book.reason("用户不存在\x1b[31m\n")
    lost = book.reason("the run ended before an answer came")
    seq = 0
    book.db.execute("BEGIN")
    for number in range(1, 41):
        outcome = dice.choice([ANSWERED] * 8 + [REFUSED, UNKNOWN])
        group = f"研发部{number % 4}"
        state, reason = {ANSWERED: (1, None), REFUSED: (3, dice.choice(why)), UNKNOWN: (4, lost)}[outcome]
        for _ in range(50):
            seq += 1
            listed = outcome == ANSWERED and dice.random() < 0.02
            book.account(seq, group, state=2 if listed else state, request=number, reason=alike if listed else reason)
        begun = BEGAN + number * 1.4 + (4000 if number > 25 else 0)
        elapsed = dice.lognormvariate(-2, 0.5)
        book.request(begun=begun, elapsed=elapsed, outcome=outcome, reason=reason, members=50, waited=dice.random() / 10)
    book.request(outcome=REFUSED, reason=slow, attempt=1)
    book.request(outcome=ANSWERED, attempt=2, repeats=41)
    second = book.run(BEGAN + 4030, *(() if killed else (BEGAN + 4080, "done")))
    for run, began, length in ((first, BEGAN, 60), (second, BEGAN + 4030, 50)):
        for second_ in range(length):
            rate = 40 + 30 * math.sin(second_ / 6) + dice.random() * 8
            throttled = int(second_ % 23 == 20)
            more = {
                "rate": rate * 1.1 if 20 < second_ < 45 else None,
                "throttled": throttled,
                "failed": int(second_ % 31 == 7),
            }
            allowed = 8 + second_ // 4
            book.sample(
                run,
                began + second_ + 1,
                requests=int(rate),
                accounts=int(rate * 50),
                concurrency=allowed,
                in_flight=allowed * 0.8 + dice.random(),
                **more,
            )
    for _ in range(7):
        seq += 1
        book.bad(seq, "the account is empty", '"研发部",""\x07')
    for number in range(30):
        seq += 1
        book.duplicate(seq, f"u{number + 1}", number + 1, "研发部1")
    book.db.execute("COMMIT")
    book.add("anomaly", request=3, account="stranger", reason=alike)
    return book


# ------------------------------------------------------------------------------ counts

FATES = ["invited", "refused", "failed", "unknown", "waiting", "again", "open", "open again", "resending", "half"]
STATE = {"invited": 1, "refused": 2, "failed": 3, "unknown": 4, "again": -1, "open again": -1}
SHOWN = {"waiting": "skipped", "bad": "skipped", "again": "unknown", "open": "unknown", "open again": "unknown"}
SHOWN |= {"resending": "unknown", "half": "unknown"}


def written(fates):
    """Return a journal with one row per fate, and what a CSV report says of group, account and state of each."""
    book, rows, lines = Book(), [], iter(range(1, 10_000))
    first = None
    for seq, fate in enumerate(fates, 1):
        line = next(lines)
        if fate == "duplicate" and first:
            book.duplicate(seq, f"u{first}", first)
            rows.append(("g", f"u{first}", "duplicate"))
            continue
        if fate in {"bad", "duplicate"}:
            book.add("bad_row", line=line + 1, reason="no account", raw=f"raw {seq}")
            book.db.execute("UPDATE job SET bad = bad + 1, rows = max(rows, ?)", (seq,))
            rows.append(("", "", "skipped"))
            continue
        first = first or seq
        alone = f"acting {seq}" if fate in {"open", "open again", "resending", "half"} else ""
        span = {"chunk": book.account(seq, user_name=alone, state=STATE.get(fate, 0))}
        if fate in {"open", "open again"}:
            book.request(**span, outcome=OPEN)
        elif fate == "resending":
            book.request(**span, outcome=UNKNOWN, todo=1)
        elif fate == "half":
            book.request(**span, outcome=UNKNOWN)
            book.request(**span, outcome=NOT_SENT, todo=1, resent=1)
        rows.append(("g", f"u{seq}", SHOWN.get(fate, fate)))
    book.db.execute("UPDATE job SET rows = ?", (len(fates),))
    return book, rows


@given(st.lists(st.sampled_from([*FATES, "bad", "duplicate"]), max_size=40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_row_is_counted_once_and_is_one_line_in_its_place(fates, running):
    book, rows = written(fates)
    report = book.report(running=running)
    expected = Counter(state for _, _, state in rows)
    accounts = report.as_json()["accounts"]
    assert accounts.pop("total") == len(fates) == expected.total()
    assert accounts == {name: expected[name] for name in accounts}
    assert report.adds_up
    assert report.accounts.in_flight == (fates.count("open") + fates.count("open again") if running else 0)
    waiting = {"waiting", "again", "open", "open again", "resending", "half"} & set(fates)
    assert report.complete == (not waiting)
    assert report.state == ("running" if running else "incomplete" if waiting else "complete")
    header, *lines = book.csv()
    assert header == list(COLUMNS)
    assert [(int(line[0]), line[1], line[2], line[4]) for line in lines] == [
        (number, *row) for number, row in enumerate(rows, 1)
    ]
    rejected = {"refused", "failed", "unknown", "skipped"}
    assert [(each.group, each.account, each.state) for each in not_done(book.db)] == [
        row for row in rows if row[2] in rejected and row[1]
    ]
    book.db.close()


def test_an_open_request_reaches_only_its_chunk(book):
    reason = book.reason("why")
    book.chunk(1, ["a", "b", "c", "d"])
    book.chunk(5, ["e", "f", "g"], state=1, exceptions=[(1, 2, reason)])
    book.chunk(8, ["h"], "another")
    book.chunk(9, ["i", "j"], user_name="somebody")
    book.request(chunk=1, members=4, outcome=OPEN)
    accounts = book.report().accounts
    assert (accounts.done, accounts.refused, accounts.unknown, accounts.not_sent, accounts.in_flight) == (2, 1, 4, 3, 0)
    assert book.report(running=True).accounts.in_flight == 4
    assert [(line[2], line[4], line[5]) for line in book.csv()[5:8]] == [
        ("e", "invited", ""),
        ("f", "refused", "why"),
        ("g", "invited", ""),
    ]


def test_a_planned_request_counts_when_it_may_have_left(tmp_path, monkeypatch):
    """By its mark while the machine is the same one; without marks, any may have left."""
    book = Book(tmp_path / "job.db")
    chunks = [book.account(seq) for seq in range(1, 5)]
    book.run(BEGAN)
    for chunk in chunks:
        book.request(chunk=chunk, outcome=PLANNED)
    made = marks.Marks(tmp_path / "job.db", marks.RunKey(1, BEGAN))
    made.set(2, BEGAN)
    made.set_done(made.set(3, BEGAN), 3, marks.Mark(BEGAN, 0.5))
    report = read_report(tmp_path / "job.db", running=True)
    accounts = report.accounts
    assert (accounts.done, accounts.in_flight, accounts.unknown, accounts.not_sent) == (1, 1, 1, 2)
    assert (report.requests.sent, report.requests.answered, report.requests.in_flight) == (2, 1, 1)
    assert [line[4] for line in book.csv()[1:]] == ["skipped", "unknown", "invited", "skipped"]
    assert [each.account for each in not_done(book.db)] == ["u1", "u2", "u4"]
    monkeypatch.setattr(marks, "BOOT", tmp_path / "job.db")  # the machine was started again
    report = read_report(tmp_path / "job.db")
    assert (report.accounts.unknown, report.accounts.not_sent, report.requests.sent) == (4, 0, 4)
    made.close(remove=True)
    book.db.close()


def test_an_account_that_two_requests_may_have_reached_is_counted_once(book):
    chunk = book.account(1)
    book.request(chunk=chunk, outcome=UNKNOWN, todo=1)
    book.request(chunk=chunk, outcome=OPEN)
    book.request(chunk=chunk, outcome=OPEN)
    accounts = book.report(running=True).accounts
    assert (accounts.unknown, accounts.in_flight, accounts.adds_up) == (1, 1, True)
    assert [line[4] for line in book.csv()[1:]] == ["unknown"]


def test_rows_that_are_gone_are_missed(book):
    for seq in range(1, 4):
        book.account(seq, state=1)
    book.db.execute("DELETE FROM chunk WHERE id = 2")
    assert not book.report().adds_up
    assert "do not add up" in report_text(book.report())


def test_while_the_input_is_read_the_tables_are_counted():
    book = Book(loaded=False)
    book.add("content", sender_group=1, size=1, first=1, step=1, accounts='["u1"]')
    book.add("bad_row", line=2, reason="no account", raw="x")
    book.add("duplicate", seq=3, target_group=1, account="u1", first=1)
    book.db.execute("UPDATE job SET rows = 0, bad = 0, duplicates = 0")
    report = book.report(running=True)
    assert (report.state, report.complete, report.adds_up) == ("loading", False, True)
    assert (report.accounts.total, report.accounts.bad, report.accounts.not_sent, report.accounts.duplicate) == (3, 1, 1, 1)
    book.db.close()


@pytest.mark.parametrize(("operation", "word"), [("DeleteGroupMember", "removed"), ("SetGroupMemberRole", "done")])
def test_the_job_has_its_own_word_for_done(operation, word):
    book = Book(operation=operation, word=word)
    book.account(1, state=1)
    document = book.report().as_json()
    assert list(document)[:2] == ["accounts", "requests"]
    assert list(document["accounts"]) == ["total", word, "refused", "failed", "unknown", "skipped", "duplicate"]
    assert document["accounts"][word] == 1
    assert document["job"]["operation"] == operation
    assert f"  {word} " in report_text(book.report())
    assert book.csv()[1][4] == word
    book.db.close()


def test_reasons_are_listed_by_frequency_and_the_rest_in_one_line(book):
    seq = itertools.count(1)
    for number in range(60):
        for _ in range(number + 1):
            book.account(next(seq), state=2, reason=book.reason(f"why {number}"))
    report = book.report()
    assert [each.text for each in report.reasons] == [f"why {number}" for number in range(59, 9, -1)]
    assert [each.accounts for each in report.reasons] == list(range(60, 10, -1))
    assert (report.reasons_left_off.reasons, report.reasons_left_off.accounts) == (10, sum(range(1, 11)))
    assert "\n   60  refused  why 59\n" in report_text(report)
    assert f"\n  {sum(range(1, 41))}  for 40 other reasons\n" in report_text(report)
    assert report.as_json()["reasons_left_off"] == {"reasons": 10, "accounts": 55}


def test_reasons_carry_state_code_and_error_and_codes_count_requests_too(book):
    full, slow = book.reason("full", "900213", "ApiError"), book.reason("slow down", "900429", "Throttled")
    lost = book.reason("lost", "", "Unanswered")
    book.account(1, state=3, reason=full)
    book.account(2, state=4, reason=lost)
    book.account(3, state=-1, reason=lost)
    book.account(4, state=0, reason=full)  # it failed, and waits again
    for reason, outcome in ((slow, REFUSED), (slow, REFUSED), (full, REFUSED), (lost, UNKNOWN)):
        book.request(outcome=outcome, reason=reason)
    report = book.report()
    assert Counter((each.state, each.text, each.code, each.error, each.accounts) for each in report.reasons) == Counter(
        [
            ("failed", "full", "900213", "ApiError", 1),
            ("unknown", "lost", "", "Unanswered", 1),
            ("unknown", "lost", "", "Unanswered", 1),
        ]
    )
    assert [(each.code, each.requests, each.accounts) for each in report.codes] == [("900429", 2, 0), ("900213", 1, 1)]
    assert report.requests.throttled == 2
    assert book.csv()[4][4:] == ["skipped", "not sent", "", "", ""]
    assert book.csv()[3][4:6] == ["unknown", "lost"]


# ------------------------------------------------------------------------------ requests


def test_sendings_are_counted_by_outcome_and_by_why_they_were_made_again(book):
    book.sample(book.run(BEGAN, BEGAN + 10, "done"), BEGAN + 10, seconds=10)
    whole = book.request(outcome=REFUSED, split=1)
    book.request(repeats=whole)  # a half
    half = book.request(chunk=2, repeats=whole, outcome=NOT_SENT, waited=1.5)
    again = book.request(chunk=2, repeats=half, attempt=2, outcome=UNKNOWN, waited=0.5)
    resent = book.request(chunk=2, repeats=again, attempt=3, resent=1, outcome=REFUSED, split=1)
    book.request(chunk=2, repeats=resent, resent=1, outcome=OPEN)
    requests = book.report().requests
    assert (requests.sent, requests.answered, requests.refused, requests.not_sent) == (6, 1, 2, 1)
    assert (requests.unknown, requests.in_flight) == (2, 0)
    assert (requests.repeated, requests.resent, requests.split, requests.throttled) == (1, 2, 2, 0)
    assert (requests.waited, requests.mean_wait) == (2.0, pytest.approx(2 / 6))
    assert requests.per_second == pytest.approx(0.1)
    assert requests.sent == requests.answered + requests.refused + requests.not_sent + requests.unknown
    assert book.report(running=True).requests.in_flight == 1
    text = report_text(book.report(running=True))
    assert "1 answered, 2 refused, 1 not sent, 1 with unknown outcome, 1 in flight" in text


def test_an_empty_job_has_no_figures(book):
    report = book.report()
    assert (report.requests.sent, report.requests.latency, report.requests.per_second) == (0, None, 0.0)
    assert (report.requests.mean_wait, report.accounts_per_second, report.seconds) == (0.0, 0.0, 0)
    assert (report.runs, report.over_time, report.reasons, report.codes) == ((), (), (), ())
    assert report.as_json()["requests"]["latency"] is None
    assert report.complete
    assert [line for line in report_text(report).splitlines() if line][:3] == [
        "InviteJoinGroup: 0 rows of members.csv",
        "complete",
        "  invited    0",
    ]
    assert book.csv() == [list(COLUMNS)]


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_latencies_are_nearest_rank_percentiles(times, dice):
    numpy = pytest.importorskip("numpy")
    book = Book()
    book.db.execute("BEGIN")
    for elapsed in times:
        book.request(elapsed=elapsed, outcome=dice.choice([ANSWERED, REFUSED]))
        book.request(elapsed=5000.0, outcome=UNKNOWN)
    book.db.execute("COMMIT")
    latency = book.report().requests.latency
    expected = numpy.percentile(times, [50, 95, 99, 100], method="inverted_cdf")
    assert [latency.p50, latency.p95, latency.p99, latency.max] == expected.tolist()
    assert latency.p50 == statistics.median_low(times)
    book.db.close()


# ------------------------------------------------------------------------------ time


def test_a_run_lasted_as_long_as_its_samples_whatever_the_clock_on_the_wall_did(book):
    first = book.run(BEGAN)  # killed
    book.sample(first, BEGAN + 3)
    book.sample(first, BEGAN + 4)
    book.request(begun=BEGAN + 3, elapsed=5000)  # the next run settled it
    book.sample(book.run(BEGAN + 100, BEGAN + 100 + 86_400, "done"), BEGAN + 100 + 86_400, seconds=9.5)
    book.run(BEGAN + 300)  # killed in its first second
    book.sample(book.run(BEGAN + 400, BEGAN + 350, "done"), BEGAN + 350, seconds=0.75)  # the clock was set back
    runs = book.report().runs
    assert [run.seconds for run in runs] == pytest.approx([2, 9.5, 0, 0.75])
    assert [run.why for run in runs] == [None, "done", None, "done"]
    assert runs[0].began.isoformat() == TEN_O_CLOCK
    assert runs[0].ended is None
    assert book.report().seconds == pytest.approx(12.25)


@st.composite
def samples(draw):
    """Draw the lengths of the samples of each run."""
    runs = draw(st.integers(0, 5) | st.integers(55, 65))
    longest = 200 if runs <= 5 else 5
    lengths = st.integers(0, longest).map(lambda count: [1.0] * count)
    tails = st.sampled_from([[], [0.2], [0.7], [0.0]])
    return [draw(lengths) + draw(tails) for _ in range(runs)]


@given(samples(), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_intervals_lose_nothing(lengths, dice):
    book, rows = Book(), []
    book.db.execute("BEGIN")
    for number, run in enumerate(lengths, 1):
        at = BEGAN + 1000 * number
        for seconds in run:
            at += seconds
            row = {"seconds": seconds, "requests": dice.randrange(50), "accounts": dice.randrange(2000), "run": number}
            row |= {"throttled": dice.randrange(3), "failed": dice.randrange(3), "in_flight": dice.random() * 9}
            row |= {"concurrency": dice.randrange(1, 20), "rate": dice.choice([None, dice.random() * 50])}
            book.sample(at=at, **row)
            rows += [row] if seconds else []
    book.db.execute("COMMIT")
    intervals = book.report().over_time
    book.db.close()
    assert len(intervals) <= 120
    assert bool(intervals) == bool(rows)
    if len(rows) <= 60:
        assert len(intervals) >= sum(row["seconds"] >= 0.5 for row in rows)
    at = 0.0
    for each in intervals:
        assert each.at == pytest.approx(at)
        at += each.seconds
    assert at == pytest.approx(sum(row["seconds"] for row in rows))
    for name in ("requests", "accounts"):
        assert sum(getattr(each, name) * each.seconds for each in intervals) == pytest.approx(sum(row[name] for row in rows))
    for name in ("in_flight", "concurrency"):
        of_all = sum(row[name] * row["seconds"] for row in rows)
        assert sum(getattr(each, name) * each.seconds for each in intervals) == pytest.approx(of_all)
    for name in ("throttled", "failed"):
        assert sum(getattr(each, name) for each in intervals) == sum(row[name] for row in rows)
    check_rates(rows, [each.rate for each in intervals if each.rate is not None])
    if len({row["run"] for row in rows}) <= 60:
        check_runs(rows, intervals)


def test_intervals_are_cut_anew_in_each_run(book):
    for number, length in ((1, 61), (2, 101)):
        for second in range(length):
            book.sample(number, BEGAN + 1000 * number + second + 1)
    assert [each.seconds for each in book.report().over_time] == [2] * 30 + [1] + [2] * 50 + [1]


def check_rates(rows, shown):
    rates = [row["rate"] for row in rows if row["rate"] is not None]
    assert bool(rates) == bool(shown)
    assert not rates or min(rates) - 1e-9 <= min(shown) <= max(shown) <= max(rates) + 1e-9


def check_runs(rows, intervals):
    by_run, expected = Counter(), Counter()
    for each in intervals:
        by_run[each.run] += each.seconds
        assert each.time.timestamp() >= BEGAN + 1000 * each.run - 1e-3
    for row in rows:
        expected[row["run"]] += row["seconds"]
    assert by_run == pytest.approx(expected)


# ------------------------------------------------------------------------------ reading


def test_lists_of_what_is_odd_are_short_and_their_counts_whole(book):
    request = book.request(chunk=book.account(1, "研发部"))
    for number in range(30):
        book.add("anomaly", request=request, account=f"stranger {number}", reason=book.reason("who?"))
        book.bad(number + 100, f"bad {number}", "raw")
        book.duplicate(number + 2, "u1", 1, "研发部")
    report = book.report()
    assert (report.anomalies, report.accounts.bad, report.accounts.duplicate) == (30, 30, 30)
    assert [each.account for each in report.first_anomalies] == [f"stranger {number}" for number in range(20)]
    assert {(each.group, each.reason, each.request) for each in report.first_anomalies} == {("研发部", "who?", 1)}
    assert [each.row for each in report.first_duplicates] == list(range(2, 22))
    assert {(each.group, each.account, each.first_row) for each in report.first_duplicates} == {("研发部", "u1", 1)}
    assert report.first_bad_rows == tuple(BadRow(number + 100, f"bad {number}", "raw") for number in range(20))
    assert list(every_bad_row(book.db)) == [BadRow(number + 100, f"bad {number}", "raw") for number in range(30)]
    text = report_text(report)
    assert text.count("and 25 more") == 3
    assert "Duplicates: 30\n  row 2: u1 of 研发部, as in row 1\n" in text


def test_the_report_as_json_is_json_with_times_and_few_digits():
    book = lively(killed=True)
    document = json.loads(json.dumps(book.report().as_json()))
    assert document["job"]["source"]["name"] == "members.csv"
    assert datetime.fromisoformat(document["job"]["created"]).timestamp() == BEGAN - 60
    first, second = document["runs"]
    assert datetime.fromisoformat(first["ended"]).timestamp() == BEGAN + 60
    assert (second["ended"], second["why"], first["why"]) == (None, None, "stopped")
    assert document["requests"]["sent"] == 42
    assert document["requests"]["latency"]["p50"] == pytest.approx(book.report().requests.latency.p50, rel=0.005)
    numbers = [value for each in document["over_time"] for value in each.values() if isinstance(value, float)]
    assert all(value == round(value, 3) for value in numbers)
    book.db.close()


def test_a_journal_is_read_by_its_path_while_somebody_writes_it(tmp_path):
    path = tmp_path / "job 100%?#.db"
    book = Book(path)
    book.account(1, state=1)
    book.db.execute("BEGIN IMMEDIATE")
    book.account(2)
    assert read_report(path).accounts.total == 1
    assert read_report(str(path)).source_name == "members.csv"
    book.db.execute("COMMIT")
    assert read_report(path).accounts.total == 2
    book.db.close()


def test_a_report_is_of_one_moment(tmp_path):
    path = tmp_path / "job.db"
    book, reader, seen = Book(path), sqlite3.connect(path, isolation_level=None), []
    book.account(1, state=1)

    def interfere(statement):
        if "FROM chunk" in statement or "FROM job" in statement:
            seen.append(statement)
            book.account(len(seen) + 1, state=1)

    reader.set_trace_callback(interfere)
    report = read_report(reader)
    reader.set_trace_callback(None)
    assert len(seen) >= 3
    assert (report.adds_up, report.accounts.total) == (True, 2)  # one was there, and one came before the first look
    assert not reader.in_transaction
    reader.execute("BEGIN")
    assert read_report(reader).accounts.total == len(seen) + 1
    assert reader.in_transaction
    reader.close()
    book.db.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="there is no journal") as caught:
        read_report(tmp_path / "missing.db")
    assert caught.value.field == "journal"
    assert not (tmp_path / "missing.db").exists()
    (tmp_path / "text.db").write_text("group,account\n" * 100)
    (tmp_path / "empty.db").touch()
    for name, mark, version in (("inbox.db", 0x7262696D, 1), ("newer.db", 0x72626A62, 99), ("none.db", 0, 0)):
        other = sqlite3.connect(tmp_path / name)
        other.execute("CREATE TABLE t (x)")
        other.execute(f"PRAGMA application_id = {mark}")
        other.execute(f"PRAGMA user_version = {version}")
        other.close()
    causes = {
        "text.db": "cannot be read: it is not a journal, or a damaged one",
        "empty.db": "the journal holds no job",
        "inbox.db": "it is an inbox",
        "newer.db": "its schema has version 99",
        "none.db": "it is a database of another application",
    }
    for name, cause in causes.items():
        with pytest.raises(InvalidRequest, match=cause) as caught:
            read_report(tmp_path / name)
        assert caught.value.field == "journal"


# ------------------------------------------------------------------------------ rows


FORMULAS = [
    "=",
    "=1+1",
    "+1+1",
    "-1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "\u3000@x",
    "\uff1d1",
    "\uff0bx",
    "\uff0dx",
    "\uff20x",
]
HARMLESS = ["plain", 'a "quoted", 原因\nnext line', "+8613800138000", "-5", "1=1", "a+b", "'=1"]


def is_formula(cell):
    """Whether a spreadsheet may evaluate a cell, by another road than the code: it trims, and folds full-width signs."""
    plain = unicodedata.normalize("NFKC", cell).strip()
    return plain[:1] in set("=+-@") and not plain.lstrip("+-").isdecimal()


def test_no_cell_of_a_report_is_a_formula(book):
    for seq, text in enumerate([*FORMULAS, *HARMLESS], 1):
        reason = book.reason(text, text, "E")
        book.account(seq, text, f"{text}{seq}x", user_name=text, state=2, request=7, reason=reason)
    book.bad(99, "=1", "a;=1")
    head, *lines = book.csv()
    assert len(lines) == len(FORMULAS) + len(HARMLESS) + 1
    assert not [cell for line in lines for cell in line if is_formula(cell)]
    rows = {line[5]: line for line in lines}
    for text in HARMLESS:
        assert [rows[text][head.index(name)] for name in ("group", "user_name", "code")] == [text] * 3
    for line, text in zip(lines, FORMULAS, strict=False):
        assert [line[head.index(name)].replace("'", "") for name in ("group", "reason")] == [text.replace("'", "")] * 2


def test_accounts_that_are_numbers_stay_as_they_are(book):
    for seq, account in enumerate(["+8613800138000", "-5", "1001", "00", "张三"], 1):
        book.account(seq, "g", account, state=1, request=1)
    assert [line[2] for line in book.csv()[1:]] == ["+8613800138000", "-5", "1001", "00", "张三"]


@pytest.mark.parametrize("separator", [";", "|", "\t"])
def test_no_cell_is_a_formula_in_a_spreadsheet_with_another_separator(book, separator):
    for seq, text in enumerate(FORMULAS, 1):
        book.account(seq, f"g{separator}{text}", state=2, request=7, reason=book.reason(f'x"{separator} "{text}', "c", "E"))
    text = "\n".join(",".join(line) for line in book.csv())
    assert not [cell for line in text.splitlines() for cell in line.split(separator) if is_formula(cell.strip(' "'))]


def test_rows_not_done_are_chosen_by_state(book):
    for seq, state in enumerate((1, 2, 3, 4, 0, -1), 1):
        book.account(
            seq, user_name="acting" if seq == 3 else "", state=state, reason=book.reason("why") if state == 2 else None
        )
    assert [tuple(each) for each in not_done(book.db)] == [
        ("g", "u2", None, "refused", "why"),
        ("g", "u3", "acting", "failed", ""),
        ("g", "u4", None, "unknown", ""),
        ("g", "u5", None, "skipped", "not sent"),
        ("g", "u6", None, "unknown", "no answer is known"),
    ]
    assert [each.account for each in not_done(book.db, {"failed", "skipped"})] == ["u3", "u5"]
    back = io.BytesIO()
    assert write_rows(back, Format(kind="csv"), not_done(book.db)) == 5
    written_back = list(csv.DictReader(io.StringIO(back.getvalue().decode())))
    assert [(row["account"], row["user_name"], row["state"]) for row in written_back][1] == ("u3", "acting", "failed")
    assert list(not_done(book.db, ())) == []
    with pytest.raises(InvalidRequest, match="invalid invited") as caught:
        not_done(book.db, ("refused", "invited"))
    assert caught.value.field == "states"


# ------------------------------------------------------------------------------ text


@pytest.mark.parametrize("killed", [False, True])
def test_the_text_is_narrow_and_harmless(killed):
    book = lively(killed=killed, source="成员名单" * 30)
    text = report_text(book.report(running=killed))
    assert text.endswith("\n")
    assert max(map(width, text.splitlines())) == 100  # the name of the source was cut
    assert all(each.isprintable() for each in text.replace("\n", ""))
    assert ("to now" in text) == ("\nrunning\n" in text) == killed
    assert "2,037 rows" in text
    assert "\n  invited    1,473   72.3%\n" in text
    assert not any(line != line.rstrip() for line in text.splitlines())
    book.db.close()


def test_a_long_line_of_figures_goes_on_in_the_next_one(book):
    whole = book.request(outcome=REFUSED, split=1, reason=book.reason("slow down", "", "Throttled"))
    book.request(repeats=whole)
    book.request(attempt=2)
    book.request(resent=1)
    text = report_text(book.report())
    reasons = [
        "throttled",
        "sent again (nothing was done)",
        "sent again (outcome unknown)",
        "split into halves",
    ]
    assert f"  of these {', '.join(f'1 {reason}' for reason in reasons)}\n" in text.replace("\n    ", " ")
    assert max(map(width, text.splitlines())) <= 100


def test_requests_that_nobody_answered_have_no_times(book):
    book.request(outcome=UNKNOWN)
    text = report_text(book.report())
    assert "\n  1 with unknown outcome\n" in text
    assert "latency:" not in text


def test_a_killed_run_is_called_so_and_an_ended_one_what_it_says(book):
    for number in range(12):
        book.run(BEGAN + number, BEGAN + number + 0.5 if number else None, "fuse" if number else None)
    text = report_text(book.report())
    assert "the last 10 of 12" in text
    assert text.count(" failure limit\n") == 10
    book.db.execute("DELETE FROM run WHERE id > 1")
    assert "to unknown" in report_text(book.report())
    assert " killed\n" in report_text(book.report())


def test_a_long_reason_is_folded_by_what_it_takes_on_a_screen(book):
    reasons = [
        "e\N{COMBINING ACUTE ACCENT}" * 45,
        "é" * 95,
        "满" * 43,
        "满" * 44,
        "\N{FULLWIDTH LATIN CAPITAL LETTER E}" * 44,
        "a sentence with many words that goes on for longer than the line has room, and then ends here",
    ]
    for account, reason in enumerate(reasons, 1):
        book.account(account, state=2, reason=book.reason(reason))
    lines = report_text(book.report()).splitlines()
    assert max(map(cell_len, lines)) <= WIDTH
    indent, told = " " * len("  1  refused  "), []
    for line in lines[lines.index("Reasons") + 1 :]:
        if line.startswith(indent):
            told[-1] += line.removeprefix(indent) if "a" not in told[-1] else f" {line.removeprefix(indent)}"
        elif line.startswith("  1  refused  "):
            told.append(line.removeprefix("  1  refused  "))
    assert sorted(told) == sorted(reasons)
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("runs", [2, 14])
def test_lines_over_time_fit_and_leave_gaps_between_few_runs(book, runs):
    for number in range(1, runs + 1):
        book.run(BEGAN + number * 1000, BEGAN + number * 1000 + 100, "stopped")
        for second in range(100):
            book.sample(number, BEGAN + number * 1000 + second + 1, requests=second, throttled=0)
    (line,) = [each for each in report_text(book.report()).splitlines() if "requests/s" in each]
    bars = line[14:].split("  ")[0]
    assert bars.count(" ") == (1 if runs == 2 else 0)
    assert set(bars) <= set("▁▂▃▄▅▆▇█ ")
    assert width(line) <= 100
    assert "throttled/s" not in report_text(book.report())


def test_a_sparkline_goes_from_nothing_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([-1, 1000.0]) == "▁█"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.01234, "12.3 ms"), (1.0, "1 s"), (59.2, "59.2 s"), (61, "1:01 min"), (3599, "59:59 min"), (7325, "2:02:05 h")],
)
def test_durations_are_told_in_their_unit(book, seconds, shown):
    book.sample(book.run(BEGAN, BEGAN + seconds, "done"), BEGAN + seconds, seconds=seconds)
    assert f"  {shown}  done\n" in report_text(book.report())


def test_long_lists_of_codes_are_cut(book):
    for number in range(30):
        book.request(outcome=REFUSED, reason=book.reason("x\x07", f"{900000 + number}", "ApiError"))
    assert "  and 10 more\n" in report_text(book.report())


def test_options_that_are_set_are_told():
    book = Book(source=None)
    book.db.execute("UPDATE job SET options = ?", ('{"user_name": "admin", "declared": null}',))
    lines = report_text(book.report()).splitlines()
    assert (lines[0], lines[-1]) == ("InviteJoinGroup: 0 rows", "  with user_name admin")
    book.db.execute("UPDATE job SET options = '{}'")
    assert report_text(book.report()).splitlines()[-1].endswith("at most 50 accounts per request")
    book.db.close()


# ------------------------------------------------------------------------------ pictures


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def test_a_png_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    book = lively(source="成员 $a_b^$ members.csv")
    plot_report(book.report(), tmp_path / "job.PNG")
    wide, high = png_size(tmp_path / "job.PNG")
    assert wide == 1300
    assert 800 < high < 1100
    book.db.execute("UPDATE sample SET throttled = 0, failed = 0, rate = NULL")
    plot_report(book.report(), str(tmp_path / "well.png"))
    assert png_size(tmp_path / "well.png")[1] < high - 100  # a panel less
    book.db.close()


def svg_title(path):
    return ET.parse(path).getroot().find(".//{http://purl.org/dc/elements/1.1/}title").text


def test_an_svg_is_drawn_and_what_no_font_has_is_replaced(tmp_path):
    pytest.importorskip("matplotlib")
    book = lively(source="𒀀 <&\x07> members.csv")  # cuneiform
    plot_report(book.report(), tmp_path / "job.svg")
    assert svg_title(tmp_path / "job.svg") == "InviteJoinGroup: 2,037 rows of ? <&\N{REPLACEMENT CHARACTER}> members.csv"
    plot_report(book.report(), tmp_path / "again.svg")
    paths = [
        len(list(ET.parse(tmp_path / name).iter("{http://www.w3.org/2000/svg}path"))) for name in ("job.svg", "again.svg")
    ]
    assert paths[0] == paths[1] > 50
    book.db.close()


@pytest.mark.parametrize("runs", [0, 1, 30])
def test_jobs_with_no_and_with_many_runs_are_drawn(tmp_path, book, runs):
    pytest.importorskip("matplotlib")
    book.db.execute("UPDATE job SET source = '{}'")
    for number in range(1, runs + 1):
        book.run(BEGAN + number * 1000, BEGAN + number * 1000 + 400, "stopped")
        book.sample(number, BEGAN + number * 1000 + 400, seconds=400)
    plot_report(book.report(), tmp_path / "job.svg")
    assert svg_title(tmp_path / "job.svg") == "InviteJoinGroup: 0 rows"


def test_a_picture_of_another_kind_is_refused(tmp_path, book):
    with pytest.raises(InvalidRequest, match=r"\.png or \.svg, not with '\.pdf'") as caught:
        plot_report(book.report(), tmp_path / "job.pdf")
    assert caught.value.field == "path"


class Missing:
    """An import system that lacks a module."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, *_):
        if name == self.name:
            reason = f"No module named {name!r}"
            raise ModuleNotFoundError(reason, name=name)


def test_without_matplotlib_the_command_that_installs_it_is_told(tmp_path, book, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing("matplotlib"), *sys.meta_path])
    with pytest.raises(InvalidRequest, match=r'python -m pip install "rbim\[plot\]"'):
        plot_report(book.report(), tmp_path / "job.svg")


def test_a_broken_matplotlib_is_not_called_missing(tmp_path, book, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match=r"matplotlib\.figure"):
        plot_report(book.report(), tmp_path / "job.svg")


def test_pictures_leave_no_state_behind(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "job.db"
    book = lively(path)
    program = f"""
import sys
from rbim.bulk.input.format import Format
from rbim.bulk.input.format import write_rows
from rbim.bulk.report.plot import plot_report
from rbim.bulk.report.reading import read_report
assert "matplotlib" not in sys.modules
report = read_report({str(path)!r})
import matplotlib
before = matplotlib.rcParams.copy()
plot_report(report, {str(tmp_path / "job.svg")!r})
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams.copy() == before
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
    book.db.close()


# ------------------------------------------------------------------------------ size


@pytest.mark.slow
def test_a_large_journal_is_read_in_little_memory(tmp_path):
    path, count = tmp_path / "job.db", 400_000
    book = Book(path)
    why = book.reason("full")
    book.db.execute("BEGIN")
    for first in range(1, count + 1, 50):
        names = [f"account {seq}" for seq in range(first, first + 50)]
        book.chunk(first, names, state=1, exceptions=[(place, 2, why) for place in range(0, 50, 2)])
    book.db.execute("UPDATE job SET rows = ?", (count,))
    book.db.execute("COMMIT")
    book.db.close()
    program = f"""
import resource, sqlite3
from rbim.bulk.report.reading import read_report
from rbim.bulk.report.rows import write_report_csv
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert read_report({str(path)!r}).accounts.refused == {count // 2}
connection = sqlite3.connect({str(path)!r})
with open({str(tmp_path / "job.csv")!r}, "w", encoding="utf-8", newline="") as stream:
    write_report_csv(stream, connection)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, timeout=120, capture_output=True, text=True)
    assert int(ran.stdout) < 25_000  # KiB
    with (tmp_path / "job.csv").open(encoding="utf-8", newline="") as stream:
        assert sum(1 for _ in csv.reader(stream)) == count + 1
