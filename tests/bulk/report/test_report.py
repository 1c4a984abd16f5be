"""Reports of jobs: journals are written here as a job would, and what is expected is counted in plain Python."""

import csv
import io
import itertools
import json
import math
import random
import re
import sqlite3
import statistics
import unicodedata
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from helpers.tables import each_row
from rbim.bulk.input.rows import BadRow, Format, cleaned, unescaped
from rbim.bulk.journal import facts
from rbim.bulk.journal.schema import JOURNAL, STATEMENTS
from rbim.bulk.report import reading
from rbim.bulk.report.plot import plot_report
from rbim.bulk.report.reading import first_not_done, read_report
from rbim.bulk.report.rows import NOT_DONE, UNUSABLE, ReportRow, rows_of, write_csv, write_rows
from rbim.bulk.report.text import report_text

BEGAN = 1_790_000_000.0
TEN_O_CLOCK = datetime.fromtimestamp(BEGAN, UTC).isoformat()
OPEN, ANSWERED, REFUSED, NOT_SENT, UNKNOWN = range(5)


class Book:
    """A journal that a test writes, table by table."""

    def __init__(self, path=":memory:", *, operation="InviteJoinGroup", word="invited", source="members.csv", loaded=True):
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode = WAL")
        for statement in STATEMENTS:
            self.db.execute(statement)
        self.db.execute(f"PRAGMA application_id = {int.from_bytes(JOURNAL.mark, 'big')}")
        self.db.execute(f"PRAGMA user_version = {JOURNAL.version}")
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
        """Add an account, in a chunk of its own; return the numbers of its sender group and its chunk."""
        sender_group = self.known("sender_group", target_group=self.known("target_group", name=group), user_name=user_name)
        values = {"state": state, "request": request, "reason": reason}
        self.db.execute("UPDATE job SET rows = max(rows, ?)", (seq,))
        self.add("account", sender_group=sender_group, chunk=seq, seq=seq, account=account or f"u{seq}")
        self.add("chunk", sender_group=sender_group, id=seq, **values)
        return {"sender_group": sender_group, "chunk": seq}

    def request(self, *, sender_group=1, chunk=1, members=1, attempt=1, begun=BEGAN, elapsed=0.1, outcome=ANSWERED, **more):
        ended = None if outcome == OPEN else begun + elapsed
        elapsed = None if outcome == OPEN else elapsed
        values = {"sender_group": sender_group, "chunk": chunk, "members": members, "attempt": attempt, **more}
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

    def report(self, *, running=False):
        return reading._read(self.db, Path("journal"), running=running)

    def csv(self):
        stream = io.BytesIO()
        write_csv(stream, rows_of(self.db), mark=False)
        return list(csv.reader(io.StringIO(stream.getvalue().decode(), newline="")))


@pytest.fixture
def book():
    return Book()


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
            book.add("bad_row", line=line, reason="no account", raw=f"raw {seq}")
            book.db.execute("UPDATE job SET bad = bad + 1, rows = max(rows, ?)", (seq,))
            rows.append(("", "", "skipped"))
            continue
        first = first or seq
        span = book.account(seq, state=STATE.get(fate, 0))
        if fate in {"open", "open again"}:
            book.request(**span, outcome=OPEN)
        elif fate == "resending":
            book.request(**span, outcome=UNKNOWN, retry=1)
        elif fate == "half":
            book.request(**span, outcome=UNKNOWN)
            book.request(**span, outcome=NOT_SENT, retry=1, resent=1)
        rows.append(("g", f"u{seq}", SHOWN.get(fate, fate)))
    book.db.execute("UPDATE job SET rows = ?", (len(fates),))
    return book, rows


@given(st.lists(st.sampled_from([*FATES, "bad", "duplicate"]), max_size=40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_row_is_counted_once_and_is_one_line_in_its_place(fates, running):
    book, rows = written(fates)
    report = book.report(running=running)
    expected = Counter(state for _, _, state in rows)
    accounts = report.to_dict()["accounts"]
    assert accounts.pop("total") == len(fates) == expected.total()
    assert accounts == {name: expected[name] for name in accounts}
    assert report.accounts.adds_up
    assert report.accounts.in_flight == (fates.count("open") + fates.count("open again") if running else 0)
    waiting = {"waiting", "again", "open", "open again", "resending", "half"} & set(fates)
    assert report.complete == (not waiting)
    assert report.state == ("running" if running else "incomplete" if waiting else "complete")
    header, *lines = book.csv()
    assert header == list(ReportRow._fields)
    assert [(int(line[0]), line[1], line[2], line[4]) for line in lines] == [
        (number, *row) for number, row in enumerate(rows, 1)
    ]
    rejected = {"refused", "failed", "unknown", "skipped"}
    assert [(each.group, each.account, each.state) for each in rows_of(book.db, NOT_DONE)] == [
        row for row in rows if row[2] in rejected and row[1]
    ]


def test_an_open_request_reaches_only_the_waiting_accounts_of_its_chunk(book):
    reason = book.reason("why")
    for sender_group, chunk, state, rows in [(1, 1, 0, [1, 3]), (1, 2, 0, [4]), (2, 1, 0, [5]), (1, 3, 1, [2, 6])]:
        group = book.known("target_group", name=f"g{sender_group}")
        assert book.known("sender_group", target_group=group, user_name="") == sender_group
        book.add("chunk", sender_group=sender_group, id=chunk, state=state)
        for seq in rows:
            own = {"state": 2, "reason": reason} if seq == 2 else {}
            book.add("account", sender_group=sender_group, chunk=chunk, seq=seq, account=f"u{seq}", **own)
    book.db.execute("UPDATE job SET rows = 6")
    book.request(members=2, outcome=OPEN)
    accounts = book.report().accounts
    assert (accounts.done, accounts.refused, accounts.unknown, accounts.not_sent, accounts.in_flight) == (1, 1, 2, 2, 0)
    assert book.report(running=True).accounts.in_flight == 2
    assert [line[4] for line in book.csv()[1:]] == ["unknown", "refused", "unknown", "skipped", "skipped", "invited"]


def test_rows_that_are_gone_are_missed(book):
    for seq in range(1, 4):
        book.account(seq, state=1)
    book.db.execute("DELETE FROM account WHERE seq = 2")
    assert not book.report().accounts.adds_up
    assert "do not add up" in report_text(book.report())


def test_while_the_input_is_read_its_rows_are_counted():
    book = Book(loaded=False)
    book.add("bad_row", line=2, reason="no account", raw="x")
    book.db.execute("UPDATE job SET rows = 3, bad = 1")
    report = book.report(running=True)
    assert (report.state, report.complete, report.accounts.adds_up) == ("loading", False, True)
    assert (report.accounts.total, report.accounts.bad, report.accounts.not_sent, report.accounts.duplicate) == (3, 1, 2, 0)


def test_reasons_are_listed_by_frequency_and_the_rest_in_one_line(book):
    seq = itertools.count(1)
    for number in range(60):
        for _ in range(number + 1):
            book.account(next(seq), state=2, reason=book.reason(f"why {number}"))
    report = book.report()
    assert [each.text for each in report.reasons] == [f"why {number}" for number in range(59, 29, -1)]
    assert [each.accounts for each in report.reasons] == list(range(60, 30, -1))
    assert (report.reasons_left_off.reasons, report.reasons_left_off.accounts) == (30, sum(range(1, 31)))
    assert "\n   60  refused  why 59\n" in report_text(report)
    assert f"\n  {sum(range(1, 31))}  for 30 other reasons\n" in report_text(report)
    assert report.to_dict()["reasons_left_off"] == {"reasons": 30, "accounts": sum(range(1, 31))}


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
            ("unknown", "lost", "", "Unanswered", 2),
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
    assert requests.waited == 2.0
    assert requests.per_second == pytest.approx(0.1)
    assert requests.sent == requests.answered + requests.refused + requests.not_sent + requests.unknown
    assert book.report(running=True).requests.in_flight == 1
    text = report_text(book.report(running=True))
    assert "1 answered, 2 refused, 1 not sent, 1 with unknown outcome, 1 in flight" in text


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=300), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_latencies_are_nearest_rank_percentiles(times, dice):
    book = Book()
    book.db.execute("BEGIN")
    for elapsed in times:
        book.request(elapsed=elapsed, outcome=dice.choice([ANSWERED, REFUSED]))
        book.request(elapsed=5000.0, outcome=UNKNOWN)
    book.db.execute("COMMIT")
    latency = book.report().requests.latency
    expected = [sorted(times)[-(-percent * len(times) // 100) - 1] for percent in (50, 95, 99, 100)]
    assert [latency.p50, latency.p95, latency.p99, latency.max] == expected
    assert latency.p50 == statistics.median_low(times)


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
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
    request = book.request(**book.account(1, "研发部"))
    for number in range(30):
        book.add("anomaly", request=request, account=f"stranger {number}", reason=book.reason("who?"))
        book.bad(number + 100, f"bad {number}", "raw")
        book.duplicate(number + 2, "u1", 1, "研发部")
    report = book.report()
    assert (report.anomalies, report.accounts.bad, report.accounts.duplicate) == (30, 30, 30)
    assert [each.account for each in report.first_anomalies] == [f"stranger {number}" for number in range(10)]
    assert {(each.group, each.reason, each.request) for each in report.first_anomalies} == {("研发部", "who?", 1)}
    assert [each.row for each in report.first_duplicates] == list(range(2, 12))
    assert {(each.group, each.account, each.first_row) for each in report.first_duplicates} == {("研发部", "u1", 1)}
    assert report.first_bad_rows == tuple(BadRow(number + 100, f"bad {number}", "raw") for number in range(10))
    bad = list(rows_of(book.db, (UNUSABLE,)))
    assert {each.state for each in bad} == {"skipped"}
    assert [(each.row, each.reason) for each in bad] == [(number + 100, f"bad {number}: raw") for number in range(30)]
    text = report_text(report)
    assert text.count("and 20 more") == 2
    assert "Duplicates: 30\n  line 2: u1 of 研发部, as in line 1\n" in text


def test_the_report_as_json_is_json_with_times_and_few_digits():
    book = lively(killed=True)
    document = json.loads(json.dumps(book.report().to_dict()))
    assert document["job"]["source"]["name"] == "members.csv"
    assert datetime.fromisoformat(document["job"]["created"]).timestamp() == BEGAN - 60
    first, second = document["runs"]
    assert datetime.fromisoformat(first["ended"]).timestamp() == BEGAN + 60
    assert (second["ended"], second["why"], first["why"]) == (None, None, "stopped")
    assert document["requests"]["sent"] == 42
    assert document["requests"]["latency"]["p50"] == pytest.approx(book.report().requests.latency.p50, rel=0.005)
    numbers = [value for each in document["over_time"] for value in each.values() if isinstance(value, float)]
    assert all(value == round(value, 3) for value in numbers)


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


def test_a_report_is_of_one_moment(tmp_path, monkeypatch):
    path = tmp_path / "job.db"
    book, seen = Book(path), []
    book.account(1, state=1)

    def interfere(statement):
        if "FROM result" in statement or "FROM job" in statement:
            seen.append(statement)
            book.account(len(seen) + 1, state=1)

    def opened(path):
        reader = facts.open_to_read(path)
        reader.set_trace_callback(interfere)
        return reader

    monkeypatch.setattr(reading, "open_to_read", opened)
    report = read_report(path)
    assert len(seen) >= 3
    assert (report.accounts.adds_up, report.accounts.total) == (True, 2)  # one was there, and one came before the first look
    assert read_report(path).accounts.total > 4


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
    """Whether a spreadsheet may evaluate a cell, by another road than the code: it trims, and folds full-width signs.

    A number that is kept as text (``="0138"``) is a formula that does nothing.
    """
    if re.fullmatch(r'="[0-9.,:/ %+Ee-]*"', cell):
        return False
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
        assert rows[text][head.index("code")] == text
    for line, text in zip(lines, [*FORMULAS, *HARMLESS], strict=False):
        if "'" not in text:  # an input that is read again has the exact texts
            assert [cleaned(unescaped(line[head.index(name)])) for name in ("group", "user_name")] == [cleaned(text)] * 2
    for line, text in zip(lines, FORMULAS, strict=False):
        assert line[head.index("reason")].replace("'", "") == text.replace("'", "")


def test_rows_not_done_are_chosen_by_state(book):
    for seq, state in enumerate((1, 2, 3, 4, 0, -1), 1):
        book.account(
            seq, user_name="acting" if seq == 3 else "", state=state, reason=book.reason("why") if state == 2 else None
        )
    assert [each[1:6] for each in rows_of(book.db, NOT_DONE)] == [
        ("g", "u2", "", "refused", "why"),
        ("g", "u3", "acting", "failed", ""),
        ("g", "u4", "", "unknown", ""),
        ("g", "u5", "", "skipped", "not sent"),
        ("g", "u6", "", "unknown", "no answer is known"),
    ]
    assert [each.account for each in rows_of(book.db, {"failed", "skipped"})] == ["u3", "u5"]
    assert list(rows_of(book.db, ())) == []
    back = io.BytesIO()
    write_rows(back, Format(kind="csv"), rows_of(book.db, NOT_DONE))
    written_back = list(csv.DictReader(io.StringIO(back.getvalue().decode())))
    assert [(row["account"], row["user_name"], row["state"]) for row in written_back][1] == ("u3", "acting", "failed")
    assert len(written_back) == 5


# ------------------------------------------------------------------------------ text


@each_row("killed", [False, True])
def test_the_text_is_short_and_harmless(killed):
    book = lively(killed=killed, source="成员名单" * 30)
    text = report_text(book.report(running=killed))
    assert text.endswith("\n")
    assert max(map(len, text.splitlines())) <= 140
    assert ("成员名单" * 25 + "...\n") in text
    assert all(each.isprintable() for each in text.replace("\n", ""))
    assert ("to now" in text) == ("\nrunning\n" in text) == killed
    assert "2,037 rows" in text
    assert "\n  invited    1,473   72.3%\n" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@each_row("count, bad", [(3, 1), (40, 1), (41, 0)])
def test_who_was_not_invited_comes_first(tmp_path, count, bad):
    path = tmp_path / f"{count}.db"
    book = Book(path)
    reason = book.reason("no such account", "330103", "Refused")
    for seq in range(1, count + 1):
        book.account(seq + 1, "g", f"u{seq}", state=2, reason=reason)
    book.account(count + 2, "g", "done", state=1)
    book.account(count + 3, "g", "waits", state=0)
    if bad:
        book.bad(1, "account: empty", "g1,")
    found = report_text(book.report(), first_not_done(path, book.report())).splitlines()
    begin = found.index(f"Not invited: {count + bad} rows, beside 1 that wait")
    assert begin == 3
    width = 2 if count > 8 else 1
    lines = [f"  line {1:>{width}}  account: empty: g1,", f"  line {2:>{width}}  u1 of g: refused: 330103 no such account"]
    assert found[begin + 1 : begin + 2 + bad] == lines[1 - bad :]
    flag = "--csv" if bad else "--not-done"
    assert (f"  and {count + bad - 10} more: rbim job report JOURNAL {flag} FILE" in found) == (count > 9)
    assert found.index("Reasons") > begin


# ------------------------------------------------------------------------------ pictures


def svg_title(path):
    return ET.parse(path).getroot().find(".//{http://purl.org/dc/elements/1.1/}title").text


@pytest.mark.ci
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
