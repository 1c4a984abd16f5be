"""What people do with an inbox: look at dead letters and at what is in quarantine, requeue, discard, purge, replay."""

import json
import threading
from collections import Counter
from datetime import timedelta

import pytest
from anyio import create_task_group, fail_after, to_thread

from helpers.deliveries import delivery, unreadable
from rbim.callbacks import Archive, Message, Picture
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.emulator.clock import START, EmulatedClock


@pytest.fixture(params=["memory", "sqlite"])
def inbox(request, clock, path):
    return MemorySink(clock=clock) if request.param == "memory" else SqliteInbox(path, clock=clock)


async def filled(inbox):
    """Four events of one conversation, of which the first and the third are dead, and two in quarantine."""
    archive: Archive = inbox
    for number in range(1, 5):
        at = START + timedelta(seconds=number)
        await inbox.accept(delivery(number, at=at, msg_type="PICTURE" if number == 3 else "TEXT"))
    await inbox.accept(unreadable("a"))
    await inbox.accept(delivery(6, "c", problem="of another application"))
    async with inbox.backlog() as backlog:
        claims = await backlog.claim(4)
        await backlog.dead_letter(claims[0], error="boom 1", more=3)
        await backlog.done(claims[1:2], more=2)
        await backlog.dead_letter(claims[2], error="boom 3", more=0)
    return archive


CHOICES = [
    {},
    {"kind": Picture},
    {"kind": "TEXT"},
    {"kind": Message},
    {"since": START + timedelta(seconds=2)},
    {"since": START + timedelta(days=1)},
]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
async def test_what_a_replay_would_do_is_what_it_does(inbox, chosen, monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.stored.Archive._span", 2)
    monkeypatch.setattr("rbim.callbacks.inbox.store.STEP", 2)
    async with inbox:
        archive = await filled(inbox)
        again = START + timedelta(seconds=3)  # cannot be handled when they come; two are readable and have one key by now
        for place, number in enumerate((7, 7, 8, 9)):
            await inbox.accept(delivery(number, "d", at=again, key=f"q{place}", problem="not yet"))
        await inbox.accept(delivery(9, "d", at=again))  # its key is known by now
        await inbox.accept(delivery(9, "d", at=again, msg_type="PICTURE"))
        await inbox.accept(delivery(9, "d", at=again, msg_type="PICTURE", body=b'{"convType": "TEAM", "msgType": "AUDIO"}'))
        before = [*await archive.dead_letters(), *await archive.quarantined(), *[await archive.counts()]]
        told = await archive.replayable(**chosen)
        assert [*await archive.dead_letters(), *await archive.quarantined(), *[await archive.counts()]] == before
        seen = {claim.number for claim in await claims_of(inbox)}
        assert await archive.replay(**chosen) == sum(told.values())
        kinds = Counter(json.loads(claim.body)["msgType"] for claim in await claims_of(inbox) if claim.number not in seen)
        assert told == kinds
        assert list(told.values()) == sorted(told.values(), reverse=True)
        if not chosen:  # what is known under its key by now is gone
            assert len(await archive.quarantined()) == 2


async def test_an_event_of_a_time_that_is_yet_to_come_does_not_wait(inbox):
    async with inbox:
        await inbox.accept(delivery(1, at=START + timedelta(seconds=5)))
        assert await inbox.lag() == 0


async def claims_of(inbox):
    async with inbox.backlog() as backlog:
        claims = await backlog.claim(99)
        for fence in {claim.fence: claim for claim in claims}.values():
            await backlog.release(fence)
        return claims


async def test_dead_letters_and_quarantine_have_a_retention_of_their_own(path, monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.store.STEP", 2)
    clock = EmulatedClock()
    async with SqliteInbox(path, clock=clock, dead_retention=86_400.0) as inbox:
        await filled(inbox)
        clock.elapsed += 86_000
        await inbox.accept(delivery(7, "d"))
        assert (await inbox.counts()).dead == 2
        clock.elapsed += 800
        for number in range(8, 12):  # each transaction looks at two of each kind, a minute later again
            await inbox.accept(delivery(number, "d"))
            clock.elapsed += 61
        counts = await inbox.counts()
        assert (counts.waiting, counts.dead, counts.quarantined) == (6, 0, 0)
    async with SqliteInbox(path, clock=clock) as inbox:
        await inbox.accept(unreadable("kept"))
        clock.elapsed += 10**9
        await inbox.accept(delivery(12, "d"))
        assert (await inbox.counts()).quarantined == 1


@pytest.mark.parametrize("look", ["lag", "counts", "dead_letters", "quarantined", "replayable"])
async def test_deliveries_are_accepted_while_people_look(path, look):
    """A search among a million events may take long, and has a connection of its own."""
    began, go = threading.Event(), threading.Event()

    def searching():
        began.set()
        return not go.wait(20)  # True would end the search

    async with SqliteInbox(path) as inbox:
        await filled(inbox)
        await getattr(inbox, look)()
        inbox._database._query_connection.set_progress_handler(searching, 1)
        with fail_after(10):
            async with create_task_group() as tasks:
                tasks.start_soon(getattr(inbox, look))
                await to_thread.run_sync(began.wait, 5)
                assert began.is_set()
                try:
                    assert await inbox.accept(delivery(7))
                finally:
                    go.set()
        inbox._database._query_connection.set_progress_handler(None, 1)
