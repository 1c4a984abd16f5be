"""The list of all conformance cases for inboxes, and ``failures``, which runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import SkipTest

from anyio import create_task_group

from rbim.testing.inbox_conformance import (
    accepting as inbox_accepting,
    archive as inbox_archive,
    claiming as inbox_claiming,
    deaths as inbox_deaths,
    settling as inbox_settling,
    sinks as inbox_sinks,
)
from rbim.testing.inbox_conformance.case import InboxCase, NonConformingInbox

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.testing.inbox_conformance.case import InboxConformance

__all__ = ["CASES", "failures"]

CASES: tuple[InboxCase, ...] = (
    *inbox_sinks.CASES,
    *inbox_accepting.CASES,
    *inbox_claiming.CASES,
    *inbox_settling.CASES,
    *inbox_deaths.CASES,
    *inbox_archive.CASES,
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
