"""The conformance suite for inboxes: checks that one keeps the contract of Sink, Inbox, Backlog and Archive.

To test your own inbox, with pytest and anyio::

    from rbim.testing.inbox_conformance import CASES, InboxConformance

    class Events:                       # a place with no events
        def inbox(self): ...            # an inbox for these events, as another process would make it
        async def pass_time(self, seconds): ...    # for pauses, leases and ages
        async def kill(self, backlog): ...         # the process of this worker dies; return when others may claim

    @asynccontextmanager
    async def make():
        yield Events()

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_conformance(case):
        await case(InboxConformance(make))

``await failures(InboxConformance(make), at_once=16)`` is faster, needs no pytest, and returns the failed cases. The contract
is that of :mod:`rbim.callbacks.inbox.protocols`; what an inbox need not have is declared by the fields of InboxConformance.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.testing.inbox_conformance.case import (
        InboxCase as InboxCase,
        InboxConformance as InboxConformance,
        NonConformingInbox as NonConformingInbox,
        Place as Place,
    )
    from rbim.testing.inbox_conformance.suite import CASES as CASES, failures as failures
else:
    __getattr__, __dir__ = lazy_names(__name__)
