"""Processes of two users, for tests of what one of them can do to the other's files; only root can start them."""

import os
import subprocess
import sys

import pytest

OWNER, OTHER = 12345, 65534
"""Numbers of the two users; neither is root."""

PATIENCE = 60

two_users = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can start processes of two users"
)

# everything is imported before root becomes the user, who may not read where Python is installed
PRELUDE = """
import asyncio, contextlib, csv, encodings.idna, errno, fcntl, json, os, sqlite3, stat, struct, sys, tempfile, time
from pathlib import Path
uid, umask, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
{imports}
def become():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    os.umask(umask)
"""

FILES = """
import anyio, anyio._backends._asyncio
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.lock import JobLock, is_locked
from rbim.callbacks import SqliteInbox
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.receiver.spool import Spool
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.storage.sqlite import Database
"""

RBIM = f"""{FILES}
import matplotlib.figure, matplotlib.backends.backend_svg
from rbim import AsyncClient, GroupType
from rbim.bulk import InviteJob, forget_job, read_report
from rbim.bulk.report.plot import plot_report
from rbim.cli import run
from rbim.cli.emulator import _write_state
from rbim.cli.jobs import job_commands, journal_errors, report
from rbim.cli.jobs.files import Files
from rbim.emulator import Emulator
"""


def process(uid, script, *arguments, umask=0o022, imports=""):
    """Start a script in a process of a user; ``become()`` makes it that user's."""
    text = PRELUDE.format(imports=imports) + script
    command = [sys.executable, "-c", text, str(uid), str(umask), *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines(uid, script, *arguments, umask=0o022, imports=""):
    """Run a script as a user and return its lines of output."""
    with process(uid, f"become()\n{script}", *arguments, umask=umask, imports=imports) as started:
        try:
            out, err = started.communicate(timeout=PATIENCE)
        finally:
            started.kill()
    assert started.returncode == 0, err
    return out.splitlines()
