"""``rbim job forget``: the erasure of the accounts in a journal, after a confirmation."""

from __future__ import annotations

import shlex
import sqlite3
import sys
from typing import TYPE_CHECKING

from rbim.bulk.journal.forget import erasable, forget_job
from rbim.cli.confirm import confirmed
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.journal_errors import explained
from rbim.cli.json_output import show_json
from rbim.errors import RbimError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["forget_accounts"]

COMMAND = "rbim job forget"


def forget_accounts(journal: Path, *, unfinished: bool, yes: bool, as_json: bool = False) -> int:
    """Erase the accounts and return the exit code."""
    journal = journal.absolute()
    try:
        found = erasable(journal)
        if found.erased is None and not yes and (unfinished or not found.unfinished):  # otherwise it is refused anyway
            action = f"erase {found.accounts:,} account{'s' * (found.accounts != 1)} from {journal}"
            if found.waiting:
                action = f"{action}, of which {found.waiting:,} still wait to be sent"
            flags = " --unfinished" if unfinished else ""
            command = f"{COMMAND} {shlex.quote(str(journal))}{flags} --yes"
            if not confirmed(f"permanently {action}", command, unchanged="nothing was erased"):
                return JobExit.USAGE
        erased = forget_job(journal, unfinished=unfinished)
    except RbimError as error:
        return report_error(explained(error, journal, "forget"), COMMAND)
    except sqlite3.Error as error:
        print_error(f"{journal}: {error}")
        return JobExit.USAGE
    if as_json:
        show_json({"journal": str(journal), "erased": erased.isoformat()})
        return JobExit.DONE
    sys.stdout.write(f"the accounts were erased on {erased:%Y-%m-%d %H:%M:%S} UTC; the counts stay\n")
    return JobExit.DONE
