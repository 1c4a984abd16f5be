"""The start of ``rbim invite`` and ``rbim remove``: a job, or its estimate, from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from rbim.cli.confirm import at_terminal, confirmed
from rbim.cli.context import configuration, make_client, pacing
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.input import STANDARD, journal_beside, line_of, open_input
from rbim.cli.jobs.progress import time_left
from rbim.cli.jobs.run import JobRun, execute
from rbim.cli.output import show_json
from rbim.client.limits import Limits
from rbim.client.settings import COLUMNS
from rbim.errors import RbimError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from rbim.bulk.job import Job
    from rbim.cli.jobs.flags import InputFlags, OnUnknown, OutputFlags, PaceFlags, ResultFlags
    from rbim.cli.jobs.input import Input
    from rbim.config.config import Config
    from rbim.operations.base import Operation

__all__ = ["JobCommand", "NoSender", "begin"]


class JobCommand(NamedTuple):
    """The command line; ``make`` makes the job of a sender and settings; ``asks_first`` wants a confirmation."""

    verb: str
    make: Callable[..., Job[Any]]
    file: str
    user_name: str | None
    chunk: int | None
    journal: Path | None
    on_unknown: OnUnknown
    dry_run: bool
    input_flags: InputFlags
    pace_flags: PaceFlags
    output_flags: OutputFlags
    result_flags: ResultFlags
    asks_first: bool = False


class NoSender:
    """The sender of a job that is only inspected, not run."""

    async def send(self, op: Operation[Any]) -> NoReturn:
        """Never send: raise AssertionError."""
        raise AssertionError(op)


def begin(command: JobCommand) -> int:
    """Run the command and return the exit code."""
    name = f"rbim {command.verb}"
    try:
        config = configuration()
        user_name = command.user_name or config["user_name"]  # kept in the journal, so that a resumed job uses the same
        pace = {**pacing(config), **command.pace_flags.settings(config["rates"])}
        settings = {**pace, "chunk": command.chunk, "user_name": user_name, "dialect": config.dialect}
        journal = command.journal or journal_beside(command.file, command.verb)
        job = command.make(NoSender(), journal=journal, **settings)
        client = None if command.dry_run else make_client(config, limits=Limits(concurrency=job.settings.concurrency))
        options = _input_options(command.input_flags, config)
        with open_input(command.file, options) as rows:
            if client is None:
                return rows.leave(_estimate(job, rows, as_json=command.output_flags.as_json))
            files = Files(
                job.journal,
                rows=command.result_flags.not_done,
                plot=command.result_flags.plot,
                source=None if command.file == STANDARD else command.file,
            )
            if command.asks_first and not confirmed(_action(command, job, options), f"{name} --yes"):
                return rows.leave(JobExit.USAGE)
            job = command.make(client, journal=journal, **settings)
            return execute(
                JobRun(
                    command=name,
                    journal=job.journal,
                    client=client,
                    begin=lambda: job.run(rows, command.on_unknown),
                    output_flags=command.output_flags,
                    files=files,
                    rows=rows,
                )
            )
    except RbimError as error:
        return report_error(error, name)
    except KeyboardInterrupt:
        print_error("nothing was sent: run the same command again")
        return JobExit.INTERRUPTED


def _input_options(flags: InputFlags, config: Config) -> dict[str, Any]:
    """Return the options for RowFile: the flags, and the configured columns."""
    options = flags.options()
    return options | {name: config[name] for name in COLUMNS if options[name] is None}


def _action(command: JobCommand, job: Job[Any], options: dict[str, Any]) -> str:
    """Return the action to confirm, such as "remove 3 accounts from 1 group"; counts need a terminal and a file."""
    if not (at_terminal() and Path(command.file).is_file()):  # a stream can be read only once
        return f"{command.verb} every account in {command.file}"
    with open_input(command.file, options) as rows:
        found = anyio.run(job.estimate, rows)
    accounts, groups = found.rows - found.bad - found.duplicates, found.groups
    return f"{command.verb} {accounts:,} account{'s' * (accounts != 1)} from {groups:,} group{'s' * (groups != 1)}"


def _estimate(job: Job[Any], rows: Input, *, as_json: bool) -> int:
    """Print the estimate of the job and return the exit code."""
    try:
        found = anyio.run(job.estimate, rows)
    except KeyboardInterrupt:
        return JobExit.INTERRUPTED
    usable = found.rows - found.bad - found.duplicates
    if as_json:
        show_json(
            {
                "rows": found.rows,
                "usable": usable,
                "bad": found.bad,
                "duplicate": found.duplicates,
                "groups": found.groups,
                "requests": found.requests,
                "chunk": job.work.chunk,
                "seconds": found.seconds,
                "bad_rows": [row._asdict() for row in rows.bad],
            }
        )
    else:
        duration = "no rate given: as fast as the platform allows"
        if found.seconds is not None:
            duration = f"at least {time_left(found.seconds)} at the given rates"
        elif job.settings.rates:
            duration = "as fast as the platform and the rate of each group allow"
        lines = [
            f"{found.rows:,} rows: {usable:,} usable, {found.bad:,} invalid, {found.duplicates:,} duplicates",
            *(f"  {line_of(row)}" for row in rows.bad),
            *([f"  and {found.bad - len(rows.bad):,} more"] if found.bad > len(rows.bad) else []),
            f"{found.groups:,} group{'s' * (found.groups != 1)}",
            f"{found.requests:,} requests of at most {job.work.chunk:,} accounts; {duration}",
            "nothing was sent",
        ]
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return JobExit.INCOMPLETE if found.bad else JobExit.DONE
