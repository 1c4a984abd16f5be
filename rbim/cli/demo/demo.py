"""The demo: invite accounts into groups of the emulator over real HTTP, and check the figures."""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import contextmanager, suppress
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rbim.cli.context import configuration
from rbim.cli.demo.report import Figures, print_figures, print_json
from rbim.cli.demo.rows import read_rows
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.output import console
from rbim.client.client import AsyncClient
from rbim.client.fan_out import Done, Failed, fan_out
from rbim.credentials import Credentials
from rbim.emulator.emulator import Emulator
from rbim.emulator.server.server import serve
from rbim.errors import Outcome, RbimError
from rbim.operations.groups import InviteJoinGroup
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from rich.console import Console

    from rbim.cli.demo.rows import DemoGroup, DemoRows
    from rbim.dialect import Dialect
    from rbim.http import Request, Response
    from rbim.operations.groups import Invited

__all__ = ["run_demo"]

OWNER = "rbim-demo-owner"
WORKERS = 50
STEPS = 10


def run_demo(path: Path | None, *, plain: bool, as_json: bool) -> int:
    """Run the demo on the rows of a file (default: an example of 5,000 rows) and return the exit code."""
    try:
        rows, dialect = read_rows(path), configuration().dialect
        with _progress(rows.total - rows.duplicates, plain=plain, as_json=as_json) as advance:
            figures = asyncio.run(_demonstrate(rows, dialect, advance))
    except RbimError as error:
        return report_error(error, "rbim demo")
    if as_json:
        print_json(figures)
    else:
        print_figures(figures)
    mismatches = list(figures.mismatches())
    for mismatch in mismatches:
        print_error(mismatch)
    return Exit.REFUSED if mismatches else Exit.DONE


class _Counting(HttpxTransport):
    """The default transport, counting requests."""

    sent = 0

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # the protocol's
        self.sent += 1
        return await super().send(request, timeout=timeout)


async def _demonstrate(rows: DemoRows, dialect: Dialect, advance: Callable[[int], None]) -> Figures:
    credentials = Credentials(app_id=secrets.token_hex(16), app_token=secrets.token_hex(16))
    emulator = Emulator(credentials=credentials, dialect=dialect)
    emulator.never_logged_in(*rows.never_logged_in)
    transport = _Counting(trust_env=False)  # no proxy for requests to this machine
    async with (
        serve(emulator) as server,
        AsyncClient(
            base_url=server.url,
            credentials=credentials,
            user_name=OWNER,
            transport=transport,
            dialect=dialect,
        ) as client,
    ):
        figures = Figures(rows=rows, address=server.url)
        for group in rows.groups.values():
            group.group_id = (await client.groups.create(name=group.name, type=group.type)).group_id
        before, began = transport.sent, time.perf_counter()
        figures.calls = await _invite(client, rows, advance)
        figures.seconds = time.perf_counter() - began
        figures.requests = transport.sent - before
        for group in rows.groups.values():
            with suppress(RbimError):  # the figures show what is missing
                group.holds = (await client.groups.detail(group_id=group.group_id)).count
    return figures


async def _invite(client: AsyncClient, rows: DemoRows, advance: Callable[[int], None]) -> int:
    """Invite all accounts, record the results, and return the number of calls."""
    calls = 0
    by_id = {group.group_id: group for group in rows.groups.values()}
    async with fan_out(client, _invitations(rows, client.dialect.invite_limit), workers=WORKERS) as outcomes:
        async for outcome in outcomes:
            op = cast("InviteJoinGroup", outcome.operation)
            _record(by_id[op.group_id], op.members, outcome)
            calls += 1
            advance(len(op.members))
    return calls


def _invitations(rows: DemoRows, limit: int) -> Iterator[InviteJoinGroup]:
    """Yield the invitations of at most ``limit`` accounts, one for each group in turn."""
    for round_ in zip_longest(*(_invitations_of(group, limit) for group in rows.groups.values())):
        yield from (op for op in round_ if op is not None)


def _invitations_of(group: DemoGroup, limit: int) -> Iterator[InviteJoinGroup]:
    accounts = iter(group.accounts)
    while members := tuple(islice(accounts, limit)):
        yield InviteJoinGroup(group_id=group.group_id, members=members)


def _record(group: DemoGroup, members: tuple[str, ...], outcome: Done[Invited] | Failed[Invited]) -> None:
    if isinstance(outcome, Done):
        answer = outcome.answer
        group.refused.update(answer.refused.values())
        group.invited += len(answer.invited)
        group.unknown.update(["the answer does not say which were refused"] * len(answer.unknown))
        return
    error = outcome.error
    counter = group.unknown if error.outcome is Outcome.UNKNOWN else group.failed
    counter[f"{type(error).__name__}: {error.message}"] += len(members)


@contextmanager
def _progress(total: int, *, plain: bool, as_json: bool) -> Generator[Callable[[int], None]]:
    """Show the progress: a bar on a terminal, else a line every tenth; with JSON only the bar."""
    out = console(stderr=as_json)
    if plain or not out.file.isatty():
        yield _ignore if as_json else _lines(out, total)
        return
    bar = Progress(
        TextColumn("Inviting"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accounts"),
        TimeElapsedColumn(),
        console=out,
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda accounts: bar.advance(task, accounts)
    out.print()


def _ignore(_: int) -> None:
    """Print nothing."""


def _lines(out: Console, total: int) -> Callable[[int], None]:
    done = printed = 0

    def advance(accounts: int) -> None:
        nonlocal done, printed
        done += accounts
        if done * STEPS // total > printed:
            printed = done * STEPS // total
            out.print(f"{done:,} of {total:,} accounts")

    return advance
