"""The demo: invite 5,000 accounts into three groups of the emulator over real HTTP, and check the figures."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Annotated, Any, cast

from attrs import define, field
from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rbim.cli.context import configuration
from rbim.cli.errors import print_error, require
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Json  # noqa: TC001  # cyclopts reads it
from rbim.cli.folding import fold_for
from rbim.cli.json_output import show_json
from rbim.cli.output import console, print_rows
from rbim.client.client import AsyncClient
from rbim.client.fan_out import Done, fan_out
from rbim.credentials import Credentials
from rbim.emulator.emulator import Emulator
from rbim.errors import Outcome, RbimError
from rbim.operations.groups import GroupType, InviteJoinGroup
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rbim.dialect import Dialect

__all__ = ["demo"]

OWNER = "rbim-demo-owner"
WORKERS = 50
EXAMPLE = {"产品公告": 1900, "客户交流": 1700, "内部测试": 1400}  # accounts of each group
NOT_LOGGED_IN = 125  # every 125th account has never logged in
COUNTS = ("accounts", "invited", "refused", "failed", "unknown")


def demo(
    *,
    as_json: Annotated[
        Json, Parameter(help="Print the figures as one JSON object, as the last line of standard output.")
    ] = False,
) -> int:
    """Invite 5,000 accounts into three groups of an emulated platform, over real HTTP on this machine.

    Starts the emulator on a free port, creates the groups, invites the accounts in requests of 50, and compares the
    members of each group with the responses. Exit code 0 if all figures agree, else 1.
    """
    require("cli,server", "uvicorn")
    numbers = iter(range(1, sum(EXAMPLE.values()) + 1))
    groups = [_DemoGroup(name, [f"user-{next(numbers):05}" for _ in range(size)]) for name, size in EXAMPLE.items()]
    dialect = configuration().dialect
    with _progress(sum(EXAMPLE.values()), as_json=as_json) as advance:
        figures = asyncio.run(_demonstrate(groups, dialect, advance))
    if as_json:
        show_json({**figures, "groups": [group.document() for group in groups]})
    else:
        _print_figures(figures, groups)
    for group in groups:
        if group.holds != group.invited + 1:
            holds = "an unknown number of" if group.holds is None else f"{group.holds:,}"
            print_error(
                f"{group.name} has {holds} members, expected {group.invited + 1:,} (the invited accounts and the owner)"
            )
    return Exit.DONE if figures["agrees"] else Exit.REFUSED


@define(eq=False)
class _DemoGroup:
    """The accounts for one group, and their results; the counters have the number of each reason."""

    name: str
    accounts: list[str]
    group_id: str = ""
    invited: int = 0
    refused: Counter[str] = field(factory=Counter[str])
    failed: Counter[str] = field(factory=Counter[str])
    unknown: Counter[str] = field(factory=Counter[str])
    holds: int | None = None

    @property
    def type(self) -> GroupType:
        """The smallest type with room for the accounts and the owner."""
        return next(kind for kind in GroupType if kind.member_limit > len(self.accounts))

    @property
    def reasons(self) -> dict[str, int]:
        """The number of each reason."""
        return dict((self.refused + self.failed + self.unknown).most_common())

    def counts(self) -> dict[str, int]:
        """Return the numbers of COUNTS."""
        numbers = (len(self.accounts), self.invited, *(each.total() for each in (self.refused, self.failed, self.unknown)))
        return dict(zip(COUNTS, numbers, strict=True))

    def document(self) -> dict[str, Any]:
        """Return its figures as JSON."""
        about = {"group_id": self.group_id, "name": self.name, "type": self.type.value}
        return about | self.counts() | {"reasons": self.reasons, "holds": self.holds, "expected": self.invited + 1}


async def _demonstrate(groups: list[_DemoGroup], dialect: Dialect, advance: Callable[[int], None]) -> dict[str, Any]:
    """Invite all accounts, one request for each group in turn; return the figures of all groups together."""
    from rbim.emulator.server.server import serve

    credentials = Credentials(app_id=secrets.token_hex(16), app_token=secrets.token_hex(16))
    emulator = Emulator(credentials=credentials, dialect=dialect)
    emulator.never_logged_in(*(name for group in groups for name in group.accounts if not int(name[5:]) % NOT_LOGGED_IN))
    transport = HttpxTransport(trust_env=False)  # no proxy for requests to this machine
    async with (
        serve(emulator) as server,
        AsyncClient(
            base_url=server.url, credentials=credentials, user_name=OWNER, transport=transport, dialect=dialect
        ) as client,
    ):
        for group in groups:
            group.group_id = (await client.groups.create(name=group.name, type=group.type)).group_id
        by_id = {group.group_id: group for group in groups}
        limit = dialect.invite_limit
        invitations = (
            [
                InviteJoinGroup(group_id=group.group_id, members=tuple(group.accounts[at : at + limit]))
                for at in range(0, len(group.accounts), limit)
            ]
            for group in groups
        )
        in_turn = [op for op in chain.from_iterable(zip_longest(*invitations)) if op is not None]
        before, began = emulator.requests.count, time.perf_counter()
        async with fan_out(client, in_turn, workers=WORKERS) as outcomes:
            async for outcome in outcomes:
                op = cast("InviteJoinGroup", outcome.operation)
                group = by_id[op.group_id]
                if isinstance(outcome, Done):
                    group.invited += len(outcome.answer.invited)
                    group.refused.update(outcome.answer.refused.values())
                    group.unknown["the answer does not say which were refused"] += len(outcome.answer.unknown)
                else:
                    error = outcome.error
                    counter = group.unknown if error.outcome is Outcome.UNKNOWN else group.failed
                    counter[f"{type(error).__name__}: {error.message}"] += len(op.members)
                advance(len(op.members))
        seconds, sent = time.perf_counter() - began, emulator.requests.count - before
        for group in groups:
            with suppress(RbimError):  # the figures show what is missing
                group.holds = (await client.groups.detail(group_id=group.group_id)).count
    accounts = Counter[str]()
    for group in groups:
        accounts.update(group.counts())
    return {
        "accounts": {"total" if name == "accounts" else name: accounts[name] for name in COUNTS},
        "requests": {"invitations": len(in_turn), "sent": sent},
        "seconds": round(seconds, 6),
        "accounts_per_second": round(accounts["accounts"] / seconds, 1),
        "requests_per_second": round(sent / seconds, 1),
        "agrees": all(group.holds == group.invited + 1 for group in groups),
        "address": server.url,
    }


@contextmanager
def _progress(total: int, *, as_json: bool) -> Generator[Callable[[int], None]]:
    """Show a bar of the progress on a terminal."""
    out = console(stderr=as_json)
    columns = (TextColumn("Inviting"), BarColumn(), MofNCompleteColumn(), TextColumn("accounts"), TimeElapsedColumn())
    with Progress(*columns, console=out, disable=not out.file.isatty()) as bar:
        task = bar.add_task("", total=total)
        yield lambda accounts: bar.advance(task, accounts)
    if out.file.isatty():
        out.print()


def _print_figures(figures: dict[str, Any], groups: list[_DemoGroup]) -> None:
    """Print the figures as tables and a few sentences."""
    rows = [
        {
            "group": group.name,
            "type": f"{group.type.name.lower()} ({group.type.member_limit:,})",
            **{name: f"{count:,}" for name, count in group.counts().items()},
            "members": "?" if group.holds is None else f"{group.holds:,}",
        }
        for group in groups
    ]
    print_rows(rows, numbers=(*COUNTS, "members"), whole=("type",))
    reasons = [
        {"group": group.name, "reason": reason, "accounts": f"{count:,}"}
        for group in groups
        for reason, count in group.reasons.items()
    ]
    if reasons:
        console().print()
        print_rows(reasons, numbers=("accounts",))
    total, *others = figures["accounts"].items()
    lines = ["", f"{total[1]:,} accounts: {', '.join(f'{count:,} {name}' for name, count in others)}."]
    if figures["agrees"]:
        lines.append("By the platform's own count, each group has the invited accounts and its owner.")
    lines.append(
        f"{figures['requests']['sent']:,} requests in {figures['seconds']:.2f} s: "
        f"{figures['accounts_per_second']:,.0f} accounts/s, {figures['requests_per_second']:,.0f} requests/s."
    )
    lines.append(f"Client and emulator ran in one event loop, over HTTP at {figures['address']}.")
    sys.stdout.write(fold_for(sys.stdout, "".join(f"{line}\n" for line in lines)))
