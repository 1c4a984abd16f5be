"""The command of ``--on-end``: it is run in a shell when a job has ended, with the report on its standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from rbim.cli.errors import print_error
from rbim.cli.printable import json_line

if TYPE_CHECKING:
    from rbim.bulk.report.model import Report

__all__ = ["run_at_end"]

SECONDS = 600.0
"""Seconds that the command may take."""

GRACE = 5.0
"""Seconds between the request to end and the end by force."""


def run_at_end(command: str, report: Report) -> None:
    """Run a command with the report as JSON on its standard input; its output goes to standard error.

    It runs in a session of its own, so that what it starts can be ended with it. Whatever it does, the exit code of the job
    stays: failures are printed on standard error.
    """
    document = f"{json_line(report.as_json(), ascii_only=True)}\n".encode()
    try:
        process = subprocess.Popen(  # noqa: S602  # the user's own command line, as the flag says
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=None if _is_closed(2) else 2,
            start_new_session=True,
        )
    except OSError as error:
        print_error(f"--on-end: cannot run the command: {error.strerror or error}")
        return
    except KeyboardInterrupt:  # while it is started
        print_error("--on-end: the command may not have been run")
        return
    with process:
        try:
            process.communicate(document, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            _end(process)
            print_error(f"--on-end: the command was ended after {SECONDS:,.0f} s")
        except KeyboardInterrupt:
            _end(process)
            print_error("--on-end: the command was interrupted")
        else:
            if process.returncode:
                print_error(f"--on-end: the command failed ({_outcome(process.returncode)})")


def _is_closed(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def _outcome(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started."""
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(GRACE)
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if sys.platform == "win32":
        process.terminate()
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
