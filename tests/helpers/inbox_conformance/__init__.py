"""The conformance suite for inboxes: checks that one keeps the contract of Sink, Inbox, Backlog and Archive.

The contract is that of :mod:`rbim.callbacks.inbox.protocols`. ``helpers.inbox_places`` has the inboxes under test.
"""

from unittest import SkipTest

from anyio import create_task_group

from helpers.inbox_conformance import accepting, archive, claiming, deaths, settling
from helpers.inbox_conformance.case import InboxConformance, NonConformingInbox

__all__ = ["CASES", "InboxConformance", "NonConformingInbox", "failures"]

CASES = (*accepting.CASES, *claiming.CASES, *settling.CASES, *deaths.CASES, *archive.CASES)
"""The cases that every inbox must pass; some are for durable ones only."""


async def failures(subject, /, cases=CASES, *, at_once=1):
    """Run cases and return the failures by case name, in the order of the cases. Skipped cases count as passed.

    Up to ``at_once`` cases run concurrently (default: 1), each with a place of its own.
    """
    wanted = [*cases]
    waiting = iter(wanted)
    failing = {}

    async def run():
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
