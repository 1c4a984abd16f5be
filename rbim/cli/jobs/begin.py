"""The start of ``rbim invite`` and ``rbim remove``: a job, or its estimate, from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio

from rbim.bulk.input.content import CHINESE
from rbim.bulk.job import open_job
from rbim.cli.command_lines import command_line, same_with
from rbim.cli.confirm import at_terminal, confirmed
from rbim.cli.context import configuration, make_client, pacing, take_shared_rates
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.folding import fold_for
from rbim.cli.global_flags import current_flags, with_flag
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.flags import JOB_FLAGS
from rbim.cli.jobs.input import SHOWN, STANDARD, journal_beside, line_of, open_input
from rbim.cli.jobs.progress import time_left
from rbim.cli.jobs.run import JobRun, execute
from rbim.cli.json_output import show_json
from rbim.cli.printable import counted, printable
from rbim.client.fan_out import Done, fan_out
from rbim.client.limits import Limits
from rbim.config import COLUMNS
from rbim.errors import AuthenticationError, IntermediaryError, InvalidRequest, NotFound, Outcome, RbimError
from rbim.operations.groups import GroupType, QueryGroupDetail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from rbim.bulk.job import Job
    from rbim.cli.jobs.flags import InputFlags, PaceFlags, ResultFlags
    from rbim.cli.jobs.input import Input
    from rbim.client.client import AsyncClient
    from rbim.operations.base import Operation
    from rbim.operations.groups import GroupDetail

__all__ = ["JobCommand", "NoSender", "begin"]

PARTS = {"header", "encoding", "group", "sheet"}  # of an input, with which the message of an error begins
MOST = max(kind.member_limit for kind in GroupType)


class JobCommand(NamedTuple):
    """The command line; ``make`` makes the job of a sender and settings.

    ``adds``: the job adds members to groups, which have a capacity. ``asks_first``: it wants a confirmation.
    """

    verb: str
    make: Callable[..., Job[Any]]
    file: str
    chunk: int | None
    journal: Path | None
    limit: int | None
    dry_run: bool
    check_groups: bool
    input_flags: InputFlags
    pace_flags: PaceFlags
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
        user_name = command.input_flags.user_name or config["user_name"]  # kept in the journal, for a resumed job
        journal = command.journal or journal_beside(command.file, command.verb)
        pace = {**_last_pace(journal), **pacing(config)}
        pace |= command.pace_flags.settings(pace.get("rates", ()))
        shared = take_shared_rates(pace, ())
        settings = {**pace, "chunk": command.chunk, "user_name": user_name, "dialect": config.dialect}
        job = command.make(NoSender(), journal=journal, **settings)
        if command.check_groups and not command.dry_run:
            raise InvalidRequest("--check-groups: it is for a dry run: add --dry-run", field="check_groups")
        limits = Limits(concurrency=job.settings.concurrency, rates=shared)
        client = make_client(config, limits=limits) if command.check_groups or not command.dry_run else None
        options = command.input_flags.options()
        options |= {name: config[name] for name in COLUMNS if options.get(name) is None}
        with open_input(command.file, options) as rows:
            if client is None or command.dry_run:
                return rows.leave(_estimate(command, job, rows, client))
            source = None if command.file == STANDARD else command.file
            files = Files(job.journal, source=source, not_done=command.result_flags.not_done)
            if command.asks_first and not confirmed(f"permanently {_action(command, job, options)}", same_with("--yes")):
                return rows.leave(JobExit.USAGE)
            job = command.make(client, journal=journal, **settings)
            return execute(
                JobRun(
                    command=name,
                    journal=job.journal,
                    client=client,
                    dialect=config.dialect,
                    begin=lambda: job.run(rows, limit=command.limit),
                    flags=command.result_flags,
                    files=files,
                    rows=rows,
                )
            )
    except RbimError as error:
        return report_error(_explained(error, command), name, flags=JOB_FLAGS)
    except KeyboardInterrupt:
        print_error("nothing was sent: run the same command again")
        return JobExit.INTERRUPTED


def _last_pace(journal: Path) -> dict[str, Any]:
    """Return the pace of the last run of the job in a journal, which the same command keeps; {} if there is none."""
    try:
        if not journal.exists():
            return {}
        last = open_job(NoSender(), journal).settings
    except (InvalidRequest, OSError):  # the run itself says what is wrong with the journal
        return {}
    max_failures = last.max_failures
    return {"rates": last.rates, "concurrency": last.concurrency, "max_failures": max_failures, "patience": last.patience}


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
        warnings = _too_large(found.accounts_by_group) if command.adds else []
        if client is not None:
            warnings = anyio.run(_checked_groups, client, found.accounts_by_group)
    except KeyboardInterrupt:
        return JobExit.INTERRUPTED
    except InvalidRequest as error:
        sys.stderr.write("".join(f"{line_of(row)}\n" for row in rows.bad))
        return report_error(_explained(error, command), f"rbim {command.verb}", flags=JOB_FLAGS)
    usable = found.rows - found.bad - found.duplicates
    if command.result_flags.as_json:
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
                "input": rows.about,
                "first_rows": [{"line": line, **row._asdict()} for line, row in rows.first],
                "bad_rows": rows.bad,
                "warnings": warnings,
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
            f"input: {printable(rows.about)}",
            *(f"  line {line}, group {printable(row.group)}, account {printable(row.account)}" for line, row in rows.first),
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


class _GroupWarning(NamedTuple):
    """A group that cannot take its accounts: how many there are, the free places (None: unknown), and the cause."""

    group: str
    accounts: int
    places: int | None
    cause: str


def _too_large(sizes: Mapping[str, int]) -> list[_GroupWarning]:
    """Return a warning for each group with more accounts than any group can hold."""
    return [
        _GroupWarning(group, accounts, None, f"{accounts:,} accounts, but no group holds more than {MOST:,} members")
        for group, accounts in sizes.items()
        if accounts > MOST
    ]


async def _checked_groups(client: AsyncClient, sizes: Mapping[str, int]) -> list[_GroupWarning]:
    """Ask the platform once for each group, and return a warning for each that cannot take its accounts.

    Raises AuthenticationError, and the error of a group that says nothing about the group: no answer of the platform came.
    """
    warnings: dict[str, _GroupWarning] = {}
    operations = (QueryGroupDetail(group_id=group) for group in sizes)
    async with client, fan_out(client, operations) as outcomes:
        async for outcome in outcomes:
            group = cast("QueryGroupDetail", outcome.operation).group_id
            if isinstance(outcome, Done):
                found = _warning_of(group, sizes[group], outcome.answer)
            else:
                found = _GroupWarning(group, sizes[group], None, _cause(outcome.error))
            if found is not None:
                warnings[group] = found
    return [warnings[group] for group in sizes if group in warnings]


def _cause(error: RbimError) -> str:
    if error.outcome is not Outcome.REFUSED or isinstance(error, (AuthenticationError, IntermediaryError)):
        raise error
    return "the platform has no such group" if isinstance(error, NotFound) else f"its details cannot be read: {error}"


def _warning_of(group: str, accounts: int, detail: GroupDetail) -> _GroupWarning | None:
    if detail.count is None or not isinstance(detail.type, GroupType):
        return next(iter(_too_large({group: accounts})), None)
    limit = detail.type.member_limit
    places = max(0, limit - detail.count)
    if accounts <= places:
        return None
    state = f"{places:,} places are left" if places else "it is full"
    cause = f"{state} ({detail.count:,} of {limit:,} members), for {accounts:,} accounts; members already there need none"
    return _GroupWarning(group, accounts, places, cause)
