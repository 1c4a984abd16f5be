"""The start of a run: of a new job, or its estimate, from the command line; of the rest of one from its journal."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import anyio

from rbim._support.text import counted, printable
from rbim.bulk.input.content import CHINESE
from rbim.bulk.job import open_job
from rbim.bulk.journal.facts import job_facts
from rbim.bulk.report.reading import read_report
from rbim.bulk.run import ANOTHER_JOB
from rbim.cli.confirm import at_terminal, confirmed
from rbim.cli.context import configuration, make_client, pacing, take_shared_rates
from rbim.cli.errors import print_error
from rbim.cli.exit_codes import JobExit
from rbim.cli.folding import fold_for
from rbim.cli.global_flags import command_line, current_flags, given_flags, quoted_words, same_with, with_flag
from rbim.cli.jobs.files import Files
from rbim.cli.jobs.input import SHOWN, STANDARD, journal_beside, line_of, open_input
from rbim.cli.jobs.journal_errors import explaining
from rbim.cli.jobs.progress import time_left
from rbim.cli.jobs.run import JobRun, execute
from rbim.cli.json_output import show_json
from rbim.client.fan_out import Done, fan_out
from rbim.client.limits import Limits
from rbim.config import COLUMNS
from rbim.errors import AuthenticationError, IntermediaryError, InvalidRequest, NotFound, Outcome, RbimError
from rbim.operations.groups import GroupType, QueryGroupDetail

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import NoReturn

    from rbim.bulk.job import Job
    from rbim.bulk.run import Run
    from rbim.cli.jobs.flags import InputFlags, PaceFlags, ResultFlags, StartFlags
    from rbim.cli.jobs.input import Input
    from rbim.client.client import AsyncClient
    from rbim.operations.base import Operation
    from rbim.operations.groups import GroupDetail

__all__ = ["JobCommand", "begin", "continue_job", "retried"]

INPUT_ERRORS = {"source", "max_bad"}  # fields of errors that end the reading of the input
MOST = max(kind.member_limit for kind in GroupType)
STATES = ("failed", "unknown", "refused")  # the states of accounts that a retry can send again


class JobCommand(NamedTuple):
    """The command line; ``make`` makes the job of a sender and settings.

    ``adds``: the job adds members to groups, which have a capacity. ``asks_first``: it wants a confirmation.
    """

    verb: str
    make: Callable[..., Job[Any]]
    file: str
    start: StartFlags
    input: InputFlags
    pace: PaceFlags
    results: ResultFlags
    adds: bool = False
    check_groups: bool = False
    asks_first: bool = False


class _NoSender:
    """The sender of a job that is only inspected, not run."""

    async def send(self, op: Operation[Any]) -> NoReturn:
        """Never send: raise AssertionError."""
        raise AssertionError(op)


def begin(command: JobCommand) -> int:
    """Run the command and return the exit code. Raises InvalidRequest."""
    start = command.start
    if command.check_groups and not start.dry_run:
        raise InvalidRequest("--check-groups: it is for a dry run: add --dry-run", field="check_groups")
    journal = (start.journal or journal_beside(command.file, command.verb)).absolute()
    try:
        with explaining(journal):
            config = configuration()
            user_name = command.input.user_name or config["user_name"]  # kept in the journal, for a resumed job
            pace = {**_last_pace(journal), **pacing(config)}
            pace |= command.pace.settings(pace.get("rates", ()))
            shared = take_shared_rates(pace, ())
            settings = {**pace, "chunk": start.chunk, "user_name": user_name, "dialect": config.dialect}
            job = command.make(_NoSender(), journal=journal, **settings)
            limits = Limits(concurrency=job.settings.concurrency, rates=shared)
            client = make_client(config, limits=limits) if command.check_groups or not start.dry_run else None
            options = command.input.options()
            options |= {name: config[name] for name in COLUMNS if options.get(name) is None}
            with open_input(command.file, options) as rows:
                if client is None or start.dry_run:
                    return rows.leave(_estimate(command, job, rows, client))
                source = None if command.file == STANDARD else command.file
                files = Files(journal, source=source, not_done=command.results.not_done)
                if command.asks_first and not confirmed(f"permanently {_action(command, job, options)}", same_with("--yes")):
                    return rows.leave(JobExit.USAGE)
                job = command.make(client, journal=journal, **settings)
                begun = JobRun(journal, client, lambda: job.run(rows, limit=start.limit), command.results, files, rows)
                return rows.leave(execute(begun))
    except InvalidRequest as error:
        _explain(error, command, journal)
        raise
    except KeyboardInterrupt:
        print_error("nothing was sent: run the same command again")
        return JobExit.INTERRUPTED


def continue_job(
    journal: Path, verb: str, run: Callable[[Job[Any]], Run], pace_flags: PaceFlags, result_flags: ResultFlags
) -> int:
    """Run the rest of the job and return the exit code. Raises InvalidRequest."""
    journal = journal.absolute()
    with explaining(journal, verb):
        stored = open_job(_NoSender(), journal)
        config = configuration()
        settings = pace_flags.settings([*stored.settings.rates, *(rate for rate in config["rates"] if rate.shared)])
        shared = take_shared_rates(settings, config["rates"])
        limits = Limits(concurrency=settings.get("concurrency", stored.settings.concurrency), rates=shared)
        client = make_client(config, limits=limits)
        job = open_job(client, journal, **settings, dialect=config.dialect)
        files = Files(journal, source=job_facts(journal).source.get("path"), not_done=result_flags.not_done)
        return execute(JobRun(journal, client, lambda: run(job), result_flags, files))


def retried(job: Job[Any], states: Collection[str], reasons: Sequence[str], groups: Sequence[str]) -> Run:
    """Return a run that sends the accounts in these states again. Raises InvalidRequest if there are none.

    The run itself raises it if accounts wait to be sent, or if none has one of the reasons and groups.
    """
    report = read_report(job.journal)
    counts = {state: getattr(report.accounts, state) for state in STATES}
    if report.complete and not any(counts[state] for state in states):
        selected = " or ".join(state for state in STATES if state in states)
        wrong = InvalidRequest(f"{job.journal}: no account to retry: none is {selected}", field="journal")
        if others := [f"{number:,} {state} (--only {state})" for state, number in counts.items() if number]:
            wrong.add_note(f"Accounts that were not done: {', '.join(others)}")
        raise wrong
    return job.retry(
        failed="failed" in states, unknown="unknown" in states, refused="refused" in states, reasons=reasons, groups=groups
    )


def _last_pace(journal: Path) -> dict[str, Any]:
    """Return the pace of the last run of the job in a journal, which the same command keeps; {} if there is none."""
    try:
        if not journal.exists():
            return {}
        last = open_job(_NoSender(), journal).settings
    except (InvalidRequest, OSError):  # the run itself says what is wrong with the journal
        return {}
    return {name: getattr(last, name) for name in ("rates", "concurrency", "max_failures", "patience")}


def _explain(error: InvalidRequest, command: JobCommand, journal: Path) -> None:
    """Add the next step to an error."""
    if error.field == "encoding" and error.message.endswith(f"--encoding {CHINESE}"):
        error.add_note(command_line(*with_flag(current_flags().words, "--encoding", CHINESE)))
    if error.field == ANOTHER_JOB:
        error.add_note(f"To finish that job:\n{command_line('job', 'resume', journal, *given_flags())}")
        stem = journal.name.removesuffix(".journal")
        names = (journal.with_name(f"{stem}.{number}.journal") for number in count(2))
        unused = quoted_words("--journal", str(next(name for name in names if not name.exists())))
        error.add_note(f"To begin another job, the same command with: {unused}")
    if error.field == "journal" and isinstance(error.__cause__, OSError):
        error.add_note("The journal stands beside the input; --journal PATH names another place.")
    if error.field in INPUT_ERRORS and not command.start.dry_run:
        with suppress(InvalidRequest):
            if read_report(journal).state == "loading":
                state = "(`rbim job list`: loading, 0 rows): run the same command again, or delete it."
                error.add_note(f"Nothing was sent. {journal} holds no job yet {state}")


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
        sizes = found.accounts_by_group
        details = dict.fromkeys(sizes) if client is None else anyio.run(_details, client, sizes)
    except KeyboardInterrupt:
        return JobExit.INTERRUPTED
    except InvalidRequest:
        sys.stderr.write("".join(f"{line_of(row)}\n" for row in rows.bad))
        raise
    usable = found.rows - found.bad - found.duplicates
    found_warnings = (_warning(group, sizes[group], detail) for group, detail in details.items() if command.adds)
    warnings = [each for each in found_warnings if each is not None]
    if command.results.as_json:
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


async def _details(client: AsyncClient, groups: Iterable[str]) -> dict[str, GroupDetail | RbimError | None]:
    """Ask the platform once for each group, and return its details, or the error if the platform refuses them.

    Raises any other error: it says nothing about the group, no answer of the platform came.
    """
    details: dict[str, GroupDetail | RbimError | None] = dict.fromkeys(groups)
    operations = (QueryGroupDetail(group_id=group) for group in groups)
    async with client, fan_out(client, operations) as outcomes:
        async for outcome in outcomes:
            found = outcome.answer if isinstance(outcome, Done) else outcome.error
            if isinstance(found, RbimError) and (
                found.outcome is not Outcome.REFUSED or isinstance(found, (AuthenticationError, IntermediaryError))
            ):
                raise found
            details[cast("QueryGroupDetail", outcome.operation).group_id] = found
    return details


def _warning(group: str, accounts: int, detail: GroupDetail | RbimError | None) -> _GroupWarning | None:
    """Return a warning if a group cannot take its accounts; without its details, if no group holds as many."""
    if isinstance(detail, NotFound):
        return _GroupWarning(group, accounts, None, "the platform has no such group")
    if isinstance(detail, RbimError):
        return _GroupWarning(group, accounts, None, f"its details cannot be read: {detail}")
    if detail is None or detail.count is None or not isinstance(detail.type, GroupType):
        cause = f"{accounts:,} accounts, but no group holds more than {MOST:,} members"
        return _GroupWarning(group, accounts, None, cause) if accounts > MOST else None
    limit = detail.type.member_limit
    places = max(0, limit - detail.count)
    state = f"{places:,} places are left" if places else "it is full"
    cause = f"{state} ({detail.count:,} of {limit:,} members), for {accounts:,} accounts; members already there need none"
    return _GroupWarning(group, accounts, places, cause) if accounts > places else None
