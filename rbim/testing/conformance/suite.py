"""The list of all conformance cases, and ``failures``, which runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import SkipTest

from anyio import create_task_group

from rbim.testing.conformance import answers, concurrency, connections, errors, requests, tls
from rbim.testing.conformance.case import Case, Conformance, NonConforming, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rbim.http import Transport

__all__ = ["CASES", "SLOW_CASES", "Case", "Conformance", "NonConforming", "failures"]

CASES: tuple[Case, ...] = (
    *requests.CASES,
    *answers.CASES,
    *connections.CASES,
    *errors.CASES,
    *tls.CASES,
    *concurrency.CASES,
)
"""The cases that every transport must pass; they take a few seconds."""

SLOW_CASES: tuple[Case, ...] = (*concurrency.SLOW_CASES,)
"""Long forms of some cases; they take minutes."""


async def failures(
    subject: Conformance | Callable[..., Transport], /, cases: Iterable[Case] = CASES, *, at_once: int = 1
) -> dict[str, NonConforming]:
    """Run cases and return the failures by case name, in the order of the cases. Skipped cases count as passed.

    Up to ``at_once`` cases run concurrently (default: 1), since cases mostly wait; cases marked ``alone`` run one by one.
    """
    wanted = [*cases]
    waiting = iter([case for case in wanted if not case.alone])
    failing: dict[str, NonConforming] = {}

    async def run(queue: Iterable[Case]) -> None:
        for case in queue:
            try:
                await case(subject)
            except SkipTest:
                continue
            except NonConforming as failure:
                failing[case.name] = failure

    with environment({}):  # around all cases: a case that ends would restore what a running one hides
        async with create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(run, waiting)
        await run(case for case in wanted if case.alone)
    return {case.name: failing[case.name] for case in wanted if case.name in failing}
