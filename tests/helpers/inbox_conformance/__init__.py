"""The conformance suite for inboxes: checks that one keeps the contract of Sink, Inbox, Backlog and Archive.

The contract is that of :mod:`rbim.callbacks.inbox.protocols`, and of Archive. ``helpers.inbox_places`` has the inboxes under
test; the fields of InboxConformance declare what one need not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import SkipTest

from anyio import create_task_group

from helpers.inbox_conformance import accepting, archive, claiming, deaths, settling, sinks
from helpers.inbox_conformance.case import InboxCase, InboxConformance, NonConformingInbox

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CASES", "InboxConformance", "NonConformingInbox", "failures"]

CASES: tuple[InboxCase, ...] = (
    *sinks.CASES,
    *accepting.CASES,
    *claiming.CASES,
    *settling.CASES,
    *deaths.CASES,
    *archive.CASES,
)
"""The cases that every inbox must pass, apart from those that need a feature it lacks."""


async def failures(
    subject: InboxConformance, /, cases: Iterable[InboxCase] = CASES, *, at_once: int = 1
) -> dict[str, NonConformingInbox]:
    """Run cases and return the failures by case name, in the order of the cases. Skipped cases count as passed.

    Up to ``at_once`` cases run concurrently (default: 1), each with a place of its own.
    """
    wanted = [*cases]
    waiting = iter(wanted)
    failing: dict[str, NonConformingInbox] = {}

    async def run() -> None:
        for case in waiting:
            try:
                await case(subject)
            except SkipTest:
                continue
            except NonConformingInbox as failure:
                failing[case.name] = failure

    async with create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(run)
    return {case.name: failing[case.name] for case in wanted if case.name in failing}
