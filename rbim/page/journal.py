"""The page of a job's journal, while the job runs or long after: it only reads."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import closing, contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
from anyio.to_thread import run_sync

from rbim._support.json_values import json_values
from rbim.bulk.journal.facts import job_facts, open_to_read
from rbim.bulk.journal.lock import is_locked
from rbim.bulk.report.reading import read_report
from rbim.bulk.report.rows import NOT_DONE, UNUSABLE, format_of, rows_of, write_csv, write_rows
from rbim.errors import InvalidRequest
from rbim.page.server import FilePage, PageResponse, RestingAnswer
from rbim.storage.sqlite import log_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Mapping
    from pathlib import Path

    from rbim.bulk.report.model import Report
    from rbim.page.server import Handler, PageRequest

__all__ = ["accounts_of", "journal_page", "reason_of_pace", "written"]

ROWS = 100  # accounts that one answer lists
SEARCH_LASTS = 20.0  # seconds, at most
SEARCH_STEPS = 10_000  # instructions of SQLite between two looks at the clock
PART = 64 * 1024  # bytes of a download
NEARLY = 0.9  # share of a limit from which it counts as reached


def journal_page(journal: Path, commands: Mapping[str, str]) -> FilePage:
    """Return the page of a journal. ``commands`` are those that go on from there, by their verbs (``resume``, ``retry``)."""
    answers = _JournalAnswers(journal, commands)
    routes: dict[tuple[str, str], Handler] = {
        ("GET", "/state"): answers.state,
        ("GET", "/accounts"): answers.accounts,
        ("GET", "/download"): answers.download,
    }
    return FilePage("journal", routes)


def reason_of_pace(report: Report, settings: Mapping[str, Any]) -> str:
    """Return what limits a running job, as a word: see the page's texts."""
    if report.state == "loading":
        return "loading"
    if not report.accounts.not_sent:
        return "ending"
    if not report.over_time:
        return "begins"
    now = report.over_time[-1]
    if now.rate is not None and (now.throttled or now.requests >= NEARLY * now.rate):
        return "throttled" if report.requests.throttled else "begins"
    limits = [rate["limit"] / rate["per"] for rate in settings["rates"] if not rate["each_group"]]
    if limits and now.requests >= NEARLY * min(limits):
        return "rate"
    if now.in_flight >= NEARLY * now.concurrency:
        return "concurrency"
    return "rate of groups" if any(rate["each_group"] for rate in settings["rates"]) else "full"


class _JournalAnswers:
    """Each kind of question is answered one at a time, so that the machine stays free for the job."""

    def __init__(self, journal: Path, commands: Mapping[str, str]) -> None:
        self._journal = journal
        self._commands = commands
        self._searching, self._writing = anyio.Lock(), anyio.Lock()
        self._read: tuple[object, PageResponse] | None = None
        self.state = RestingAnswer(partial(run_sync, self._state))

    def _state(self) -> PageResponse:
        """Return the report, the settings, and whether the job runs; the same again while nothing has changed."""
        running = is_locked(self._journal)
        seen = (running, *map(_version, (self._journal, log_of(self._journal))))
        if self._read is not None and seen == self._read[0]:
            return self._read[1]
        try:
            report = read_report(self._journal, running=running)
            settings = job_facts(self._journal).settings
        except sqlite3.Error as error:
            raise InvalidRequest(f"{self._journal} cannot be read now: {error}", field="journal") from None
        document = {
            "journal": str(self._journal),
            "commands": self._commands,
            "running": running,
            "settings": {name: settings[name] for name in ("rates", "concurrency", "adaptive")},
            "why": reason_of_pace(report, settings) if running else report.state,
            "report": {"done_word": report.done_word, **report.to_dict()},
        }
        answer = PageResponse.of(document)
        self._read = seen, answer
        return answer

    async def accounts(self, call: PageRequest) -> PageResponse:
        """Return accounts of one outcome or reason, or those with a text in their name."""
        choice, after = _choice_of(call.query), call.number("after")
        async with self._searching:
            return PageResponse.of(await run_sync(accounts_of, self._journal, choice, after))

    async def download(self, call: PageRequest) -> PageResponse:
        """Return a file: the accounts of a choice as CSV, or with ``not_done`` those in the format of the input."""
        choice = None if "not_done" in call.query else _choice_of(call.query)
        async with self._writing:
            file, ending = await run_sync(written, self._journal, choice)
        length = file.seek(0, os.SEEK_END)
        file.seek(0)
        kind = "not-done" if choice is None else call.query.get("state") or "rows"
        name = f"{self._journal.name.removesuffix('.journal')}.{kind}{ending}"
        headers = {
            "content-length": str(length),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        return PageResponse(content_type="application/octet-stream", body=_parts(file), headers=headers)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _choice_of(query: Mapping[str, str]) -> dict[str, Any]:
    """Return which rows a question is for, as arguments of :func:`rows_of`."""
    state = query.get("state")
    states = (state, UNUSABLE) if state == "skipped" else (state,) if state else None
    return {
        "states": states,
        "reason": query.get("reason"),
        "code": query.get("code"),
        "text": query.get("text", "").strip(),
    }


def accounts_of(journal: Path, choice: Mapping[str, Any], after: int) -> dict[str, Any]:
    """Return the next rows of a choice, in the input's order, and whether there are more. Raises InvalidRequest."""
    latest = time.monotonic() + SEARCH_LASTS
    with _opened(journal) as connection:
        connection.set_progress_handler(lambda: time.monotonic() > latest, SEARCH_STEPS)
        found = list(rows_of(connection, **choice, after=after, limit=ROWS + 1))
    return {"rows": json_values(found[:ROWS]), "more": len(found) > ROWS}


def written(journal: Path, choice: Mapping[str, Any] | None) -> tuple[IO[bytes], str]:
    """Return a temporary file without a name, and the ending of the name that it should have. Raises InvalidRequest.

    It has the chosen rows as CSV, of one moment; without a choice, the rows that were not done in their input's format. It
    is written at once and not as fast as the browser reads: a slow reader must not hold a snapshot of the journal, whose log
    would grow meanwhile.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        facts = job_facts(journal)
        facts.require_accounts(journal)
        form = format_of(journal, facts.source)
        with _opened(journal) as connection:
            if choice is None:
                write_rows(file, form, rows_of(connection, NOT_DONE))
            else:
                write_csv(file, rows_of(connection, **choice), mark=True)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file, f".{form.kind if choice is None else 'csv'}"


@contextmanager
def _opened(journal: Path) -> Generator[sqlite3.Connection]:
    """Open the journal for a search. Raises InvalidRequest if that takes too long, or if it cannot be read."""
    with closing(open_to_read(journal)) as connection:
        try:
            yield connection
        except sqlite3.Error as error:
            raise InvalidRequest(f"the search took too long, or the journal cannot be read: {error}", field="text") from None


async def _parts(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while part := await run_sync(file.read, PART):
            yield part
