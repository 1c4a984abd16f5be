"""The start of ``rbim invite`` and ``rbim remove``: a job, or its estimate, from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from rbim.bulk.input.lines import CHINESE
from rbim.cli.command_lines import command_line, same_with
from rbim.cli.confirm import at_terminal, confirmed
from rbim.cli.context import configuration, make_client, pacing
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.folding import fold_for
from rbim.cli.global_flags import current_flags, with_flag
from rbim.cli.jobs.capacity import checked_groups, too_large
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.flags import JOB_FLAGS
from rbim.cli.jobs.input import SHOWN, STANDARD, journal_beside, line_of, open_input
from rbim.cli.jobs.progress import time_left
from rbim.cli.jobs.run import JobRun, execute
from rbim.cli.json_output import show_json
from rbim.cli.printable import counted, printable
from rbim.client.limits import Limits
from rbim.client.settings import COLUMNS
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from rbim.bulk.job import Job
    from rbim.cli.jobs.flags import InputFlags, OnUnknown, OutputFlags, PaceFlags, ResultFlags
    from rbim.cli.jobs.input import Input
    from rbim.client.client import AsyncClient
    from rbim.config.config import Config
    from rbim.operations.base import Operation

__all__ = ["JobCommand", "NoSender", "begin"]


PARTS = {"header", "encoding", "group"}
"""The parts of an input with which the message of an error begins."""


class JobCommand(NamedTuple):
    """The command line; ``make`` makes the job of a sender and settings.

    ``adds``: the job adds members to groups, which have a capacity. ``asks_first``: it wants a confirmation.
    """

    verb: str
    make: Callable[..., Job[Any]]
    file: str
    user_name: str | None
    chunk: int | None
    journal: Path | None
    on_unknown: OnUnknown
    limit: int | None
    dry_run: bool
    check_groups: bool
    input_flags: InputFlags
    pace_flags: PaceFlags
    output_flags: OutputFlags
    result_flags: ResultFlags
    adds: bool = False
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
        command.output_flags.require_page()
        if command.output_flags.page and command.dry_run:
            raise InvalidRequest("--page: it shows a job that runs: leave out --dry-run", field="page")
        if command.check_groups and not command.dry_run:
            raise InvalidRequest("--check-groups: it is for a dry run: add --dry-run", field="check_groups")
        limits = Limits(concurrency=job.settings.concurrency)
        client = make_client(config, limits=limits) if command.check_groups or not command.dry_run else None
        options = _input_options(command.input_flags, config)
        with open_input(command.file, options) as rows:
            if client is None or command.dry_run:
                return rows.leave(_estimate(command, job, rows, client))
            source = None if command.file == STANDARD else command.file
            files = Files(job.journal, source=source, **command.result_flags.files())
            if command.asks_first and not confirmed(f"permanently {_action(command, job, options)}", same_with("--yes")):
                return rows.leave(JobExit.USAGE)
            job = command.make(client, journal=journal, **settings)
            return execute(
                JobRun(
                    command=name,
                    journal=job.journal,
                    client=client,
                    dialect=config.dialect,
                    begin=lambda: job.run(rows, command.on_unknown, limit=command.limit),
                    output_flags=command.output_flags,
                    files=files,
                    on_end=command.result_flags.on_end,
                    rows=rows,
                )
            )
    except RbimError as error:
        return report_error(_explained(error, command), name, flags=JOB_FLAGS)
    except KeyboardInterrupt:
        print_error("nothing was sent: run the same command again")
        return JobExit.INTERRUPTED


def _explained(error: RbimError, command: JobCommand) -> RbimError:
    """Return the error; what it says about the input names the file.

    If it proposes another encoding, a note has this command with that encoding.
    """
    if not isinstance(error, InvalidRequest):
        return error
    if error.field == "encoding" and error.message.endswith(f"--encoding {CHINESE}"):
        error.add_note(command_line(*with_flag(current_flags().words, "--encoding", CHINESE)))
    part, colon, rest = error.message.partition(": ")
    if colon and part in PARTS:
        error.message = f"{'standard input' if command.file == STANDARD else command.file}: {rest}"
    return error


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
    return f"{command.verb} {counted(accounts, 'account')} from {counted(groups, 'group')}"


def _estimate(command: JobCommand, job: Job[Any], rows: Input, client: AsyncClient | None) -> int:
    """Print the estimate of the job and return the exit code; ask the platform for the groups if there is a client."""
    try:
        found = anyio.run(job.estimate, rows)
        warnings = too_large(found.accounts_by_group) if command.adds else []
        if client is not None:
            warnings = anyio.run(checked_groups, client, found.accounts_by_group)
    except KeyboardInterrupt:
        return JobExit.INTERRUPTED
    except InvalidRequest as error:
        sys.stderr.write("".join(f"{line_of(row)}\n" for row in rows.bad))
        return report_error(_explained(error, command), f"rbim {command.verb}", flags=JOB_FLAGS)
    usable = found.rows - found.bad - found.duplicates
    if command.output_flags.as_json:
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
                "warnings": [warning._asdict() for warning in warnings],
            }
        )
    else:
        duration = "no rate given: as fast as the platform allows"
        if found.seconds is not None:
            duration = f"at least {time_left(found.seconds)} at the given rates"
        elif job.settings.rates:
            duration = "as fast as the platform and the rate of each group allow"
        duplicates = counted(found.duplicates, "duplicate")
        lines = [
            f"{counted(found.rows, 'row')}: {', '.join((f'{usable:,} usable', f'{found.bad:,} invalid', duplicates))}",
            *(f"  {line_of(row)}" for row in rows.bad),
            *([f"  and {found.bad - len(rows.bad):,} more"] if found.bad > len(rows.bad) else []),
            counted(found.groups, "group"),
            f"{counted(found.requests, 'request')} of at most {counted(job.work.chunk, 'account')}; {duration}",
            *(f"warning: {printable(each.group)}: {printable(each.cause)}" for each in warnings[:SHOWN]),
            *([f"  and {len(warnings) - SHOWN:,} more groups"] if len(warnings) > SHOWN else []),
            "nothing was sent",
        ]
        sys.stdout.write(fold_for(sys.stdout, "".join(f"{line}\n" for line in lines)))
    return JobExit.INCOMPLETE if found.bad or warnings else JobExit.DONE
