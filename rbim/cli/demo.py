"""The demo: invite accounts into groups of the emulator over real HTTP, and check the figures."""

from __future__ import annotations

import asyncio
import csv
import secrets
import time
from collections import Counter
from contextlib import contextmanager, suppress
from itertools import count, islice, zip_longest
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from rbim.cli.context import configuration
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.json_output import show_json
from rbim.cli.output import console, table
from rbim.cli.printable import printable
from rbim.client.client import AsyncClient
from rbim.client.fan_out import Done, Failed, fan_out
from rbim.credentials import Credentials
from rbim.emulator.emulator import Emulator
from rbim.emulator.server.server import serve
from rbim.errors import InvalidRequest, Outcome, RbimError
from rbim.operations.groups import CreateGroup, GroupType, InviteJoinGroup
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

    from rich.console import Console

    from rbim.dialect import Dialect
    from rbim.http import Request, Response
    from rbim.operations.groups import Invited

__all__ = ["example", "run_demo"]

OWNER = "rbim-demo-owner"
WORKERS = 50
STEPS = 10
COLUMNS = ("accounts", "invited", "refused", "failed", "unknown")
EXAMPLE = {"产品公告": 1900, "客户交流": 1700, "内部测试": 1400}  # accounts of each group
NOT_LOGGED_IN = 125  # every 125th account has never logged in
LOGGED_IN = {"yes": True, "no": False, "": True}


def run_demo(path: Path | None, *, plain: bool, as_json: bool) -> int:
    """Run the demo on the rows of a file (default: an example of 5,000 rows) and return the exit code."""
    try:
        rows, dialect = _read_rows(path), configuration().dialect
        with _progress(rows.total - rows.duplicates, plain=plain, as_json=as_json) as advance:
            figures = asyncio.run(_demonstrate(rows, dialect, advance))
    except RbimError as error:
        return report_error(error, "rbim demo")
    if as_json:
        _print_json(figures)
    else:
        _print_figures(figures)
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


async def _demonstrate(rows: _Rows, dialect: Dialect, advance: Callable[[int], None]) -> _Figures:
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
        figures = _Figures(rows=rows, address=server.url)
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


async def _invite(client: AsyncClient, rows: _Rows, advance: Callable[[int], None]) -> int:
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


def _invitations(rows: _Rows, limit: int) -> Iterator[InviteJoinGroup]:
    """Yield the invitations of at most ``limit`` accounts, one for each group in turn."""
    for round_ in zip_longest(*(_invitations_of(group, limit) for group in rows.groups.values())):
        yield from (op for op in round_ if op is not None)


def _invitations_of(group: _Group, limit: int) -> Iterator[InviteJoinGroup]:
    accounts = iter(group.accounts)
    while members := tuple(islice(accounts, limit)):
        yield InviteJoinGroup(group_id=group.group_id, members=members)


def _record(group: _Group, members: tuple[str, ...], outcome: Done[Invited] | Failed[Invited]) -> None:
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


# The rows of the file, by group.


@define(eq=False)
class _Group:
    """The accounts for one group, and their results; the counters have the number of each reason."""

    name: str
    accounts: dict[str, None] = field(factory=dict[str, None])
    group_id: str = ""
    invited: int = 0
    refused: Counter[str] = field(factory=Counter[str])
    failed: Counter[str] = field(factory=Counter[str])
    unknown: Counter[str] = field(factory=Counter[str])
    holds: int | None = None

    @property
    def type(self) -> GroupType:
        """The smallest type with room for the accounts and the owner, else the largest."""
        return next((kind for kind in GroupType if kind.member_limit > len(self.accounts)), GroupType.VIP)

    @property
    def expected(self) -> int:
        """The expected number of members: the invited accounts and the owner."""
        return self.invited + 1


@define(eq=False)
class _Rows:
    """The rows of a file: their number, the number of duplicates, and the accounts by group."""

    total: int = 0
    duplicates: int = 0
    groups: dict[str, _Group] = field(factory=dict[str, _Group])
    never_logged_in: set[str] = field(factory=set[str])


def example() -> Iterator[str]:
    """Yield the lines of the default CSV file: 5,000 accounts."""
    yield "group,account,logged_in\n"
    numbers = count(1)
    for group, accounts in EXAMPLE.items():
        for number in islice(numbers, accounts):
            yield f"{group},user-{number:05},{'yes' if number % NOT_LOGGED_IN else 'no'}\n"


def _read_rows(path: Path | None) -> _Rows:
    """Read a file, or the example. Raises InvalidRequest that names file and line."""
    if path is None:
        return _read(example(), "the example")
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return _read(lines, str(path))
    except OSError as error:
        reason = f"{path}: {error.strerror or error}"
    except UnicodeDecodeError:
        reason = f"{path}: not UTF-8: save it as CSV in UTF-8"
    raise InvalidRequest(reason, field="csv")


def _read(lines: Iterable[str], source: str) -> _Rows:
    rows = _Rows()
    reader = csv.reader(lines, strict=True)
    try:
        headings = _headings(next(reader, list[str]()))
        for cells in reader:
            if cells:
                _add(rows, headings, [cell.strip() for cell in cells])
    except (csv.Error, InvalidRequest) as error:
        reason = error.message if isinstance(error, InvalidRequest) else str(error)
        raise InvalidRequest(f"{source}, line {max(reader.line_num, 1)}: {reason}", field="csv") from None
    if not rows.total:
        raise InvalidRequest(f"{source}: no accounts in the file", field="csv")
    return rows


def _headings(cells: list[str]) -> list[str]:
    headings = [cell.strip().lower() for cell in cells]
    if not {"group", "account"} <= set(headings):
        raise InvalidRequest("the first line must name the columns group and account")
    return headings


def _add(rows: _Rows, headings: list[str], cells: list[str]) -> None:
    row = dict(zip(headings, cells, strict=False))
    group, account = row.get("group", ""), row.get("account", "")
    logged_in = LOGGED_IN.get(row.get("logged_in", "").lower())
    if len(cells) > len(headings):
        raise InvalidRequest("more cells than columns in the first line")
    if not group or not account:
        raise InvalidRequest(f"the {'account' if group else 'group'} is missing")
    if logged_in is None:
        raise InvalidRequest(f"logged_in: invalid value {row['logged_in']!r}: use yes or no")
    if group not in rows.groups:
        CreateGroup(name=group, type=GroupType.VIP)  # checks the name
        rows.groups[group] = _Group(group)
    accounts = rows.groups[group].accounts
    rows.total += 1
    rows.duplicates += account in accounts
    accounts[account] = None
    if not logged_in:
        rows.never_logged_in.add(account)


# The result: tables for people, one JSON object for programs, and mismatches.


@define(eq=False, kw_only=True)
class _Figures:
    """The figures of a demo: ``calls`` invitations in ``requests`` attempts within ``seconds``."""

    rows: _Rows
    address: str
    calls: int = 0
    requests: int = 0
    seconds: float = 0.0

    @property
    def groups(self) -> list[_Group]:
        """The groups, in the order of the file."""
        return list(self.rows.groups.values())

    @property
    def accounts(self) -> dict[str, int]:
        """The number of accounts in total and by result."""
        sums = Counter[str]()
        for group in self.groups:
            sums.update(_counts(group))
        counted = {name: sums[name] for name in COLUMNS[1:]}
        return {"total": self.rows.total, **counted, "duplicates": self.rows.duplicates}

    def per_second(self, count: int) -> float:
        """Return a count per second."""
        return count / self.seconds if self.seconds else 0.0

    def mismatches(self) -> Iterator[str]:
        """Yield a line for each mismatch between file, responses and groups."""
        accounts = self.accounts
        counted = sum(accounts.values()) - accounts["total"]
        if counted != accounts["total"]:
            yield f"the file has {accounts['total']:,} rows, but the results add up to {counted:,}"
        for group in self.groups:
            if group.holds != group.expected:
                holds = "an unknown number of" if group.holds is None else f"{group.holds:,}"
                yield f"{group.name} has {holds} members, expected {group.expected:,} (the invited accounts and the owner)"


def _counts(group: _Group) -> dict[str, int]:
    return {
        "accounts": len(group.accounts),
        "invited": group.invited,
        "refused": group.refused.total(),
        "failed": group.failed.total(),
        "unknown": group.unknown.total(),
    }


def _reasons(group: _Group) -> dict[str, int]:
    return dict((group.refused + group.failed + group.unknown).most_common())


def _print_json(figures: _Figures) -> None:
    """Write the figures as one JSON object in one line."""
    accounts = figures.accounts
    document: dict[str, Any] = {
        "accounts": accounts,
        "requests": {"invitations": figures.calls, "sent": figures.requests},
        "groups": [
            {
                "group_id": group.group_id,
                "name": group.name,
                "type": group.type.value,
                "member_limit": group.type.member_limit,
                **_counts(group),
                "reasons": _reasons(group),
                "holds": group.holds,
                "expected": group.expected,
            }
            for group in figures.groups
        ],
        "seconds": round(figures.seconds, 6),
        "accounts_per_second": round(figures.per_second(_sent(figures)), 1),
        "requests_per_second": round(figures.per_second(figures.requests), 1),
        "agrees": not list(figures.mismatches()),
    }
    show_json(document)


def _sent(figures: _Figures) -> int:
    return figures.rows.total - figures.rows.duplicates


def _print_figures(figures: _Figures) -> None:
    """Print the figures as tables and a few sentences."""
    out = console()
    made = table("group", "type", *COLUMNS, "members", numbers=(*COLUMNS, "members"), whole=("type",))
    for group in figures.groups:
        cells = [f"{count:,}" for count in _counts(group).values()]
        kind = f"{group.type.name.lower()} ({group.type.member_limit:,})"
        holds = "?" if group.holds is None else f"{group.holds:,}"
        right = group.holds == group.expected
        made.add_row(Text(printable(group.name)), Text(kind), *cells, Text(holds, style="green" if right else "bold red"))
    out.print(made)
    out.print()
    made = table("group", "reason", "accounts", numbers=("accounts",))
    for group in figures.groups:
        for reason, accounts in _reasons(group).items():
            made.add_row(Text(printable(group.name)), Text(printable(reason)), f"{accounts:,}")
    if made.row_count:
        out.print(made)
        out.print()
    for line in _sentences(figures):
        out.print(line)


def _sentences(figures: _Figures) -> Iterator[str]:
    accounts = figures.accounts
    parts = ", ".join(f"{accounts[name]:,} {name}" for name in (*COLUMNS[1:], "duplicates"))
    yield f"{accounts['total']:,} rows: {parts}."
    if not list(figures.mismatches()):
        yield "By the platform's own count, each group has the invited accounts and its owner."
    yield (
        f"{figures.requests:,} requests in {figures.seconds:.2f} s: {figures.per_second(_sent(figures)):,.0f} accounts/s, "
        f"{figures.per_second(figures.requests):,.0f} requests/s."
    )
    yield f"Client and emulator ran in one event loop, over HTTP at {figures.address}."
