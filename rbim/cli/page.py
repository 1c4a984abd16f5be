"""``rbim page``: a job or an inbox in a browser."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from rbim.bulk.journal.facts import job_facts
from rbim.cli.callback.inboxes import with_archive
from rbim.cli.callback.signals import stopped_by_signals
from rbim.cli.errors import print_note, require
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import FileName, Port  # noqa: TC001  # cyclopts reads it
from rbim.cli.global_flags import command_line
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.callbacks.inbox.stored import Archive
    from rbim.page.server import FilePage

__all__ = ["page"]

INBOX = b"rbim"  # the mark of an inbox's file


def page(file: FileName, /, *, port: Annotated[Port, Parameter(show_default=False)] = 0) -> int:
    """Show a job or an inbox in a browser: what was done and what was not, with reasons, and downloads.

    The file may be in use or finished; the page follows it. It runs until Ctrl-C, for this machine only. Standard output has
    its address, which ends with a token: who has it can read all accounts and messages. The page of a job only reads; that
    of an inbox can also let dead letters and events in quarantine be handled again, or delete them.

    Parameters
    ----------
    file
        The journal of a job, or the inbox of `rbim callback serve`.
    port
        The port on 127.0.0.1. Default: a free one.
    """
    require("server", "uvicorn")
    from rbim.page.inbox import inbox_page
    from rbim.page.journal import journal_page

    async def show_inbox(archive: Archive) -> None:
        await _serve(inbox_page(archive, file), port)

    if "://" not in file and not Path(file).exists():
        raise InvalidRequest(f"{file}: no such file: give the journal of a job, or an inbox", field="file")
    if "://" in file or _is_inbox(Path(file)):
        with_archive(file, show_inbox)
    else:
        path = Path(file).absolute()
        job_facts(path)
        commands = {verb: command_line("job", verb, path) for verb in ("resume", "retry")}
        anyio.run(_serve, journal_page(path, commands), port)
    return Exit.DONE


async def _serve(served: FilePage, port: int) -> None:
    from rbim.page.server import serve_page

    def begun(address: str) -> None:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        print_note("Ctrl-C ends the page")

    try:
        with stopped_by_signals(bool):  # the server heeds a signal, and raises it again when it has ended
            await serve_page(served, port, begun)
    except OSError as error:
        place, cause = f"127.0.0.1 port {port}", error.strerror or error
        raise InvalidRequest(f"cannot listen on {place} ({cause}): choose another --port", field="port") from None


def _is_inbox(path: Path) -> bool:
    """Return whether a file has the mark of an inbox; it may still be in SQLite's log beside it."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            ((mark,),) = connection.execute("PRAGMA application_id").fetchall()
    except sqlite3.Error:
        return False
    return bool(mark == int.from_bytes(INBOX, "big"))
