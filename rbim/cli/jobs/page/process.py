"""The process of a job's page: reads lines of the command, serves the page, and ends with its standard input."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from rbim._support import json
from rbim.cli.jobs.page.content import JobContent, accounts_page, choice_of, csv_of
from rbim.cli.page.app import Answer, LocalPageApp, Tickets, new_token
from rbim.cli.page.server import LocalPageServer
from rbim.page.assets import Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rbim.bulk.report.rows import RowChoice
    from rbim.cli.page.app import Call

__all__ = ["main"]

NICENESS = 10
"""How much the page gives way to the job, where the system knows that."""

GRACE = 0.6
"""Seconds that watchers have to receive the end: three ticks of the feed."""

PART = 64 * 1024  # bytes of a download
CSV = "text/csv; charset=utf-8"


def main() -> None:
    """Serve the page of the job that the next line of standard input names, until standard input ends."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    asyncio.run(_serve(json.loads(sys.stdin.buffer.readline())))
    os._exit(0)  # a thread may still read standard input or the journal


async def _serve(first: dict[str, Any]) -> None:
    content = JobContent(Path(first["journal"]), first["command"])
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


def _read_lines(loop: asyncio.AbstractEventLoop, content: JobContent, over: asyncio.Event) -> None:
    """Take the lines of standard input until it ends."""
    with suppress(OSError, ValueError, RuntimeError):
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(content.received, json.loads(line))
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(over.set)


class _Routes:
    """The answers about accounts: one search and one download at a time, so that the machine stays free for the job."""

    def __init__(self, content: JobContent) -> None:
        self.tickets = Tickets()
        self._journal = content.journal
        self._searching = asyncio.Lock()
        self._writing = asyncio.Lock()

    async def accounts(self, call: Call) -> Answer:
        """Return accounts of one outcome or reason, or those with a text in their name."""
        choice, after = choice_of(call.query), call.whole_number("after")
        async with self._searching:
            return Answer.of(await asyncio.to_thread(accounts_page, self._journal, choice, after))

    async def download(self, call: Call) -> Answer:
        """Return the path of a file with all accounts of a choice."""
        choice = choice_of(call.document)
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
