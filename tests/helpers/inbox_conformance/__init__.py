"""The conformance suite for inboxes: checks that one keeps the contract of Sink, Inbox, Backlog and Archive.

The contract is that of :mod:`rbim.callbacks.inbox.protocols`. ``helpers.inbox_places`` has the inboxes under test.
"""

from anyio import create_task_group

from helpers.inbox_conformance import accepting, archive, claiming, deaths, settling
from helpers.inbox_conformance.case import InboxConformance

__all__ = ["CASES", "InboxConformance", "failures"]

CASES = (*accepting.CASES, *claiming.CASES, *settling.CASES, *deaths.CASES, *archive.CASES)
"""The cases that every inbox must pass; some are for durable ones only."""


async def failures(subject, /, cases=CASES, *, at_once=1):
    """Run cases, up to ``at_once`` side by side, each with a place of its own; return what fails, in words, by case."""
    waiting, failing = iter(cases), {}

    async def run():
        for case in waiting:
            if (failure := await case.failure(subject)) is not None:
                failing[case.name] = failure

    async with create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(run)
    return failing
