# noqa: INP001  # a folder of examples is no package
"""Invite all accounts in a file: ``python bulk.py members.csv`` (columns ``group`` and ``account``), with ``--rate 50/s``.

The first Ctrl-C lets requests in flight finish; the second one ends the script at once. The same command resumes the job:
the journal ``members.csv.journal`` has the results so far. The exit codes are those of ``rbim invite``.

RBIM_BASE_URL, RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) select the platform.
"""

import asyncio
import signal
import sys
from argparse import ArgumentParser
from itertools import chain, repeat
from pathlib import Path

from rbim import AsyncClient, AuthenticationError, InvalidRequest, Rate
from rbim.bulk import InviteJob, Report, RowFile, Run

INVITED, CREDENTIALS, USAGE, NOT_ALL, GAVE_UP, UNKNOWN, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


async def invite(file: Path, rates: list[Rate]) -> int:
    """Run or resume the job of a file, and return the exit code."""
    async with AsyncClient.from_env() as client:
        job = InviteJob(client, journal=f"{file}.journal", rates=rates)
        with RowFile(file) as rows:
            async with job.run(rows) as run:
                handle_signals(run)
                async for now in run:
                    left = "" if now.eta is None else f", {now.eta:.0f} s left"
                    log(f"{now.total - now.waiting:,} of {now.total:,} rows, {now.request_rate:.0f} requests/s{left}")
    report = await job.report()
    show(report)
    return exit_code(run, report)


def handle_signals(run: Run) -> None:
    """Stop the run at the first Ctrl-C, and interrupt it at the next one (on POSIX)."""
    presses = chain([run.stop], repeat(run.interrupt))

    def pressed() -> None:
        log("stopping; Ctrl-C again ends it at once")
        next(presses)()

    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, pressed)


def show(report: Report) -> None:
    """Print the counts of the report, and the reasons for accounts that were not invited."""
    accounts = report.accounts
    sys.stdout.write(
        f"{accounts.done:,} invited, {accounts.refused:,} refused, {accounts.failed:,} failed, "
        f"{accounts.unknown:,} unknown, {accounts.not_sent:,} not sent, {accounts.bad:,} unusable\n"
    )
    for each in report.reasons:
        sys.stdout.write(f"{each.accounts:>8,} {each.state}: {each.text}\n")


def exit_code(run: Run, report: Report) -> int:
    """Return the exit code for the calling script."""
    accounts = report.accounts
    if not report.complete:
        return INTERRUPTED if run.why in {"stopped", "interrupted"} else GAVE_UP
    if accounts.unknown:
        return UNKNOWN
    return NOT_ALL if accounts.refused or accounts.failed or accounts.bad else INVITED


def log(line: str) -> None:
    """Write a line to standard error; standard output is for the report."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def main() -> int:
    """Read the command line, and run the job."""
    parser = ArgumentParser(description="Invite all accounts in a file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--rate", type=Rate.parse, action="append", default=[], help="such as 50/s; if repeated, all apply")
    arguments = parser.parse_args()
    try:
        return asyncio.run(invite(arguments.file, arguments.rate))
    except InvalidRequest as error:
        log(str(error))
        return USAGE
    except AuthenticationError as error:
        log(str(error))
        return CREDENTIALS
    except KeyboardInterrupt:  # before the job began
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
