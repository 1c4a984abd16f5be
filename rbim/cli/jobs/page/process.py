"""The process of a job's page: reads lines of the command, serves the page, and ends with its standard input."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import tempfile
import threading
import time
from codecs import getwriter
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import quote

import anyio

from rbim._support import json
from rbim._support.json_values import json_values
from rbim.bulk.journal.facts import job_facts, open_to_read
from rbim.bulk.report.reading import read_report
from rbim.bulk.report.rows import RowChoice, chosen_rows, write_chosen_csv
from rbim.cli.page.app import Answer, LocalPageApp, Tickets, new_token
from rbim.cli.page.points import PointHistory
from rbim.cli.page.server import LocalPageServer
from rbim.cli.printable import visible
from rbim.errors import InvalidRequest
from rbim.page.assets import Page
from rbim.page.events import Feed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator, Mapping

    from rbim.cli.page.app import Call
    from rbim.page.events import Stream

__all__ = ["accounts_page", "csv_of", "main", "reason_of_pace"]

NICENESS = 10  # how much the page gives way to the job, where the system knows that
GRACE = 0.6  # seconds that watchers have to receive the end: three ticks of the feed
PART = 64 * 1024  # bytes of a download
CSV = "text/csv; charset=utf-8"
POINTS = 600
SHARE = 20  # a report is read for at most one part in so many of the time
SHORTEST_PAUSE = 1.0  # seconds between two readings of the report
ROWS = 100  # accounts on one page of the list
SEARCH_LASTS = 20.0  # seconds, at most
SEARCH_STEPS = 10_000  # instructions of SQLite between two looks at the clock
NEARLY = 0.9  # share of a limit from which it counts as reached

PACE = ("request_rate", "rate", "in_flight", "concurrency", "adaptive_rate")
OUTCOMES = ("done", "refused", "failed", "unknown")


def reason_of_pace(progress: Mapping[str, Any], rates: list[Mapping[str, Any]]) -> str:
    """Return what limits the job now, as a word: see the page's texts. ``rates`` are the configured ones of the job."""
    if progress["phase"] in {"loading", "halted", "draining", "ended"}:
        return str(progress["phase"])
    if not progress["waiting"]:
        return "ending"
    if progress["adaptive_rate"] is not None:
        return "throttled" if progress["throttled"] else "begins"
    limits = [rate["limit"] / rate["per"] for rate in rates if not rate["each_group"]]
    if limits and progress["request_rate"] >= NEARLY * min(limits):
        return "rate"
    if progress["in_flight"] >= NEARLY * progress["concurrency"]:
        return "concurrency"
    return "rate of groups" if any(rate["each_group"] for rate in rates) else "full"


class _JobContent:
    """The state of the page. ``feed`` has the levels ``progress`` and ``why``, and the streams of points, report and end."""

    def __init__(self, journal: Path, command: str) -> None:
        self.journal = journal
        self.feed = Feed(self._levels)
        self.ended = False
        self._command = command
        self._progress: dict[str, Any] | None = None
        self._rates: list[Mapping[str, Any]] = []
        self._settings: dict[str, Any] = {}
        self._points = PointHistory(self.feed.stream("points", POINTS + 1, dict), POINTS)
        self._reports: Stream[dict[str, Any]] = self.feed.stream("report", 1, dict)
        self._end: Stream[dict[str, Any]] = self.feed.stream("end", 1, dict)

    def _levels(self) -> dict[str, Any]:
        why = None if self._progress is None else reason_of_pace(self._progress, self._rates)
        return {
            "journal": visible(str(self.journal)),
            "command": self._command,
            "progress": self._progress,
            "why": why,
            "settings": self._settings,
        }

    def received(self, document: Mapping[str, Any]) -> None:
        """Take a line of the command."""
        if "progress" in document:
            progress: dict[str, Any] = document["progress"]
            self._progress = progress
            if progress["phase"] != "loading":
                point = {name: progress[name] for name in ("elapsed", *PACE, *OUTCOMES)}
                if not progress["throttled"]:  # at the beginning the rate only tries what the platform accepts
                    point["adaptive_rate"] = None
                self._points.add(point)
        elif "end" in document and not self.ended:
            self.finish(document["end"])

    def finish(self, document: Mapping[str, Any]) -> None:
        """Show the end of the command, with its report if it has one (``report`` of the end says so)."""
        self.ended = True
        report: dict[str, Any] | None = document.get("report")
        if report is not None:
            self._reports.add(report)
        self._end.add({**document, "report": report is not None})

    async def read_reports(self) -> None:
        """Read the report again and again, while someone watches and the job runs."""
        while not self.ended:
            began = time.monotonic()
            if self.feed.watchers:
                found = await anyio.to_thread.run_sync(self._read)
                if found is not None and not self.ended:
                    report, self._settings = found
                    self._rates = self._settings["rates"]
                    self._reports.add(report)
            took = time.monotonic() - began
            await anyio.sleep(max(SHORTEST_PAUSE, (SHARE - 1) * took) if self.feed.watchers else SHORTEST_PAUSE / 5)

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return the report and the settings; None if there is no job yet, or if the journal cannot be read now."""
        try:
            report = read_report(self.journal, running=True)
            settings = job_facts(self.journal).settings
        except (InvalidRequest, sqlite3.Error):
            return None
        shown = {name: settings[name] for name in ("rates", "concurrency", "adaptive", "max_failures", "patience")}
        return {"done_word": report.done_word, **report.to_dict()}, shown


# ------------------------------------------------------------------------------ accounts


def _choice_of(values: Mapping[str, Any]) -> RowChoice:
    """Return the choice in a query or a document. Raises InvalidRequest."""
    given = {name: values.get(name) for name in ("state", "reason", "code", "text")}
    for name, value in given.items():
        if not (value is None or isinstance(value, str)):
            raise InvalidRequest(f"{name}: use a text", field=name)
    return RowChoice(
        state=given["state"] or None, reason=given["reason"], code=given["code"], text=(given["text"] or "").strip()
    )


def accounts_page(journal: Path, choice: RowChoice, after: int) -> dict[str, Any]:
    """Return the next accounts of a choice, in the input's order, and whether there are more. Raises InvalidRequest."""
    with _limited(journal) as connection:
        found = list(chosen_rows(connection, choice, after=after, limit=ROWS + 1))
    return {"rows": json_values(found[:ROWS]), "more": len(found) > ROWS}


@contextmanager
def _limited(journal: Path) -> Generator[sqlite3.Connection]:
    """Open the journal for a search that ends after 20 seconds. Raises InvalidRequest."""
    latest = time.monotonic() + SEARCH_LASTS
    with closing(open_to_read(journal)) as connection:
        connection.set_progress_handler(lambda: time.monotonic() > latest, SEARCH_STEPS)
        try:
            yield connection
        except sqlite3.OperationalError as error:
            raise InvalidRequest(f"the search took too long, or the journal cannot be read: {error}", field="text") from None


def csv_of(journal: Path, choice: RowChoice) -> IO[bytes]:
    """Return the chosen rows as CSV, of one moment, in a temporary file without a name. Raises InvalidRequest.

    It is written at once and not as fast as the browser reads: a slow reader must not hold a snapshot of the journal, whose
    log would grow meanwhile.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        file.write("\N{BYTE ORDER MARK}".encode())  # for spreadsheets
        with closing(open_to_read(journal)) as connection:
            write_chosen_csv(cast("IO[str]", getwriter("utf-8")(file)), connection, choice)
        file.flush()
    except BaseException as error:
        file.close()
        if isinstance(error, sqlite3.Error):
            raise InvalidRequest(f"the journal cannot be read: {error}", field="journal") from None
        raise
    return file


def main() -> None:
    """Serve the page of the job that the next line of standard input names, until standard input ends."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    asyncio.run(_serve(json.loads(sys.stdin.buffer.readline())))
    os._exit(0)  # a thread may still read standard input or the journal


async def _serve(first: dict[str, Any]) -> None:
    content = _JobContent(Path(first["journal"]), first["command"])
    routes = _Routes(content)
    token = new_token()
    app = LocalPageApp(
        Page("job", content.feed),
        token,
        routes={("GET", "/accounts"): routes.accounts, ("POST", "/download"): routes.download},
        tickets=routes.tickets,
    )
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with LocalPageServer(app) as server:
        sys.stdout.write(json.dumps({"url": f"http://127.0.0.1:{server.port}/#{token}"}).decode() + "\n")
        sys.stdout.flush()
        threading.Thread(target=_read_lines, args=(loop, content, over), daemon=True).start()
        reading = asyncio.create_task(content.read_reports())
        await over.wait()
        if not content.ended:
            content.finish({"code": None})  # the command was killed
        if content.feed.watchers:
            await asyncio.sleep(GRACE)
        reading.cancel()
        content.feed.close()


def _read_lines(loop: asyncio.AbstractEventLoop, content: _JobContent, over: asyncio.Event) -> None:
    """Take the lines of standard input until it ends."""
    with suppress(OSError, ValueError, RuntimeError):
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(content.received, json.loads(line))
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(over.set)


class _Routes:
    """The answers about accounts: one search and one download at a time, so that the machine stays free for the job."""

    def __init__(self, content: _JobContent) -> None:
        self.tickets = Tickets()
        self._journal = content.journal
        self._searching = asyncio.Lock()
        self._writing = asyncio.Lock()

    async def accounts(self, call: Call) -> Answer:
        """Return accounts of one outcome or reason, or those with a text in their name."""
        choice, after = _choice_of(call.query), call.whole_number("after")
        async with self._searching:
            return Answer.of(await asyncio.to_thread(accounts_page, self._journal, choice, after))

    async def download(self, call: Call) -> Answer:
        """Return the path of a file with all accounts of a choice."""
        choice = _choice_of(call.document)
        name = f"{self._journal.name.removesuffix('.journal')}.{choice.state or 'rows'}.csv"
        return Answer.of({"path": self.tickets.path(partial(self._file, choice, name)), "name": name})

    async def _file(self, choice: RowChoice, name: str, _: Call) -> Answer:
        async with self._writing:
            file = await asyncio.to_thread(csv_of, self._journal, choice)
        length = file.seek(0, os.SEEK_END)
        file.seek(0)
        headers = {
            "content-length": str(length),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        return Answer(content_type=CSV, body=_parts(file), headers=headers)


async def _parts(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while part := await asyncio.to_thread(file.read, PART):
            yield part
