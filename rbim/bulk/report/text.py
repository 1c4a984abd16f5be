"""Text form of a job's report: a line for each fact, the most important figures first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim._support.text import counted, listed, one_line
from rbim.choices import spelled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rbim.bulk.report.model import Report
    from rbim.bulk.report.rows import ReportRow

__all__ = ["report_text"]

MAX_SHOWN = 100
"""Characters of a foreign text that are shown."""

RUNS = 10  # lines of runs: the latest ones
TIME = "%Y-%m-%d %H:%M:%S"
MINUTE = 60.0
HOUR = 3600.0

REASONS_OF_END = {"fuse": "failure limit"}  # text for the values in the journal that need one

STATES = {
    "loading": "loading: the input is not read completely yet, nothing was sent",
    "running": "running",
    "complete": "complete",
    "incomplete": "not complete: resume the job to send the rest",
}


def report_text(report: Report, rows: Sequence[ReportRow] = ()) -> str:
    """Return a report as lines of text, the last one with a line break: first who was not invited, then why.

    ``rows``: the first of the rows that were not done (:func:`~rbim.bulk.report.reading.first_not_done`). Times are in UTC.
    Long lists (reasons, runs) are cut to their most important entries.
    """
    sections = (_accounts, _reasons, _codes, _requests, _runs, _anomalies, _duplicates, _job)
    shown = [_head(report), _not_done(report, rows), *(section(report) for section in sections)]
    texts = ["\n".join(line.rstrip() for line in lines) for lines in shown]
    return "\n\n".join(filter(None, texts)) + "\n"


# ------------------------------------------------------------------------------ sections


def _head(report: Report) -> Iterator[str]:
    source = f" of {_clean(report.source_name)}" if report.source_name else ""
    yield f"{report.operation}: {counted(report.accounts.total, 'row')}{source}"
    yield STATES[report.state]
    if report.erased:
        yield f"The accounts were erased on {report.erased:{TIME}}; the counts are from before."


def _not_done(report: Report, rows: Sequence[ReportRow]) -> Iterator[str]:
    accounts = report.accounts
    waiting = accounts.in_flight + accounts.not_sent
    count = accounts.refused + accounts.failed + accounts.unknown + accounts.bad - accounts.in_flight
    if not count:
        return
    yield f"Not {report.done_word}: {counted(count, 'row')}{f', beside {waiting:,} that wait' if waiting else ''}"
    width = max((len(f"{row.row:,}") for row in rows), default=0)
    for row in rows:
        who = f"{_clean(row.account)} of {_clean(row.group)}: {row.state}: " if row.account else ""
        code = f"{_clean(row.code)} " if row.code and row.code not in row.reason else ""
        yield f"  line {row.row:>{width},}  {who}{code}{_clean(row.reason)}"
    if rows and count > len(rows):
        flag = "--csv" if accounts.bad else "--not-done"  # the second has no rows that cannot be used
        yield f"  and {count - len(rows):,} more: rbim job report JOURNAL {flag} FILE"


def _accounts(report: Report) -> Iterator[str]:
    accounts = report.accounts
    skipped = [(accounts.not_sent, "not sent"), (accounts.bad, "cannot be used")]
    notes = {"skipped": listed(skipped), "unknown": "may have taken effect"}
    counts = [
        (report.done_word, accounts.done),
        ("refused", accounts.refused),
        ("failed", accounts.failed),
        ("unknown", accounts.unknown - accounts.in_flight),
        ("in flight", accounts.in_flight),
        ("skipped", accounts.skipped),
        ("duplicate", accounts.duplicate),
    ]
    width = len(f"{accounts.total:,}")
    for index, (name, count) in enumerate(counts):
        if count or not index:
            share = f"{count / accounts.total:7.1%}" if accounts.total else ""
            yield f"  {name:<10} {count:>{width},} {share}   {notes.get(name, '')}"
    if not accounts.adds_up:
        yield "  These do not add up: another program changed the journal."


def _reasons(report: Report) -> Iterator[str]:
    if not report.reasons:
        return
    yield "Reasons"
    others = report.reasons_left_off
    width = len(f"{max(report.reasons[0].accounts, others.accounts if others else 0):,}")
    states = max(len(each.state) for each in report.reasons)
    for each in report.reasons:
        error = f" ({_clean(each.error)})" if each.error else ""
        code = f"{_clean(each.code)} " if each.code and each.code not in each.text else ""
        yield f"  {each.accounts:>{width},}  {each.state:<{states}}  {code}{_clean(each.text)}{error}"
    if others:
        yield f"  {others.accounts:>{width},}  for {counted(others.reasons, 'other reason')}"


def _codes(report: Report) -> Iterator[str]:
    if report.codes:
        yield "Platform codes"
    for each in report.codes:
        yield f"  {_clean(each.code)}  {counted(each.requests, 'request')}, {counted(each.accounts, 'account')}"


def _requests(report: Report) -> Iterator[str]:
    requests = report.requests
    if not requests.sent:
        return
    yield f"Requests: {requests.sent:,}"
    unknown = (requests.unknown - requests.in_flight, "with unknown outcome"), (requests.in_flight, "in flight")
    outcomes = (requests.answered, "answered"), (requests.refused, "refused"), (requests.not_sent, "not sent"), *unknown
    yield f"  {listed(outcomes)}"
    again = (requests.repeated, "sent again (nothing was done)"), (requests.resent, "sent again (outcome unknown)")
    if notes := listed([(requests.throttled, "throttled"), *again, (requests.split, "split into halves")]):
        yield f"  of these {notes}"
    if requests.per_second:
        rates = f"{_figure(requests.per_second)} requests/s and {_figure(report.accounts_per_second)} accounts/s"
        yield f"  {rates} over {_duration(report.seconds)}"
    if requests.latency:
        times = requests.latency
        shares = ("50%", times.p50), ("95%", times.p95), ("99%", times.p99), ("all", times.max)
        yield f"  latency: {', '.join(f'{share} within {_duration(value)}' for share, value in shares)}"
    if requests.waited:
        mean = _duration(requests.waited / requests.sent)
        yield f"  delayed by rates and halts: {_duration(requests.waited)} in total, {mean} on average"


def _runs(report: Report) -> Iterator[str]:
    if not report.runs:
        return
    yield "Runs (UTC)" if len(report.runs) <= RUNS else f"Runs (UTC): the last {RUNS} of {len(report.runs):,}"
    for run in report.runs[-RUNS:]:
        running = report.state == "running" and run is report.runs[-1]
        ended = f"{run.ended:{TIME}}" if run.ended else "now" if running else "unknown"
        end = REASONS_OF_END.get(run.why or "", run.why) or ("running" if running else "killed")
        yield f"  {run.id:>3}  {run.began:{TIME}} to {ended:<19}  {_duration(run.seconds):>10}  {_clean(end)}"


def _anomalies(report: Report) -> Iterator[str]:
    if report.anomalies:
        yield f"Failures that name no account of their request: {report.anomalies:,}"
    for each in report.first_anomalies:
        yield f"  {_clean(each.account)} of {_clean(each.group)}: {_clean(each.reason)} (request {each.request:,})"
    if report.anomalies > len(report.first_anomalies):
        yield f"  and {report.anomalies - len(report.first_anomalies):,} more"


def _duplicates(report: Report) -> Iterator[str]:
    count = report.accounts.duplicate
    if count:
        yield f"Duplicates: {count:,}"
    for each in report.first_duplicates:
        yield f"  line {each.row:,}: {_clean(each.account)} of {_clean(each.group)}, as in line {each.first_row:,}"
    if count > len(report.first_duplicates):
        yield f"  and {count - len(report.first_duplicates):,} more"


def _job(report: Report) -> Iterator[str]:
    given = {name: value for name, value in report.options.items() if value is not None and value is not False}
    options = [f"{name} {_clean(str(value))}" for name, value in given.items()]
    yield f"Job: created {report.created:{TIME}} UTC, at most {counted(report.chunk, 'account')} per request"
    if options:
        yield f"  with {', '.join(options)}"
    if report.dialect:
        values = ", ".join(f"{name} {_clean(spelled(document))}" for name, document in report.dialect.items())
        yield f"  dialect: {values}"


# ------------------------------------------------------------------------------ words and figures


def _figure(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"  # noqa: PLR2004  # three digits


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < MINUTE:
        return f"{seconds:.3g} s"
    minutes, left = divmod(round(seconds), 60)
    if seconds < HOUR:
        return f"{minutes}:{left:02} min"
    return f"{minutes // 60:,}:{minutes % 60:02}:{left:02} h"


def _clean(text: str) -> str:
    return one_line(text, MAX_SHOWN)
