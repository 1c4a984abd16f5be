"""What people do with an inbox: look at dead letters and at what is in quarantine, requeue, discard, purge, replay."""

import json
import threading
from collections import Counter
from datetime import datetime, timedelta

import pytest
from anyio import create_task_group, fail_after, to_thread

from helpers.deliveries import delivery, unreadable
from rbim import InvalidRequest
from rbim.callbacks import Archive, Counts, Message, Picture
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


async def waiting(inbox):
    async with inbox.backlog() as backlog:
        return [(claim.number, claim.attempt) for claim in await backlog.claim(9)]


async def test_dead_letters_and_what_is_in_quarantine_are_shown(inbox, clock):
    async with inbox:
        archive = await filled(inbox)
        counts = await archive.counts()
        assert (counts.waiting, counts.dead, counts.quarantined) == (1, 2, 2)
        assert isinstance(counts, Counts)
        clock.elapsed += 10
        assert await archive.lag() == pytest.approx(6.0)
        first, third = await archive.dead_letters()
        assert (first.number, first.error, first.attempts, first.key) == (1, "boom 1", 1, delivery(1).key)
        assert third.msg_type == "PICTURE"
        assert await archive.dead_letters(1, after=1) == [third]
        strange, foreign = await archive.quarantined()
        assert (strange.body, foreign.error) == (unreadable("a").body, "of another application")
        assert await archive.event(third.number) == third
        assert await archive.event(foreign.number) == foreign
        assert await archive.event(4) is None


async def test_requeued_events_are_handled_in_their_old_order_and_may_fail_as_often_as_new_ones(inbox):
    async with inbox:
        archive = await filled(inbox)
        strange, foreign = await archive.quarantined()
        assert await archive.requeue([3, 1, 1, 4, 99, strange.number]) == 2
        assert await waiting(inbox) == [(1, 1), (3, 1), (4, 1)]
        assert await archive.dead_letters() == []
        assert await archive.requeue([foreign.number]) == 1  # its body can be read now
        assert [letter.number for letter in await archive.quarantined()] == [strange.number]
        assert (await archive.counts()).waiting == 4


async def test_what_is_requeued_while_its_conversation_is_leased_has_its_turn(inbox):
    async with inbox:
        archive = await filled(inbox)
        async with inbox.backlog() as backlog:
            (claim,) = await backlog.claim(1)
            assert claim.number == 4
            assert await archive.requeue([1]) == 1
            (following,) = await backlog.done([claim], more=5)
            assert following.number == 1
            assert not await backlog.done([following], more=5)


async def test_what_is_requeued_can_be_claimed_though_nothing_else_of_its_conversation_waits(inbox):
    async with inbox:
        await inbox.accept(delivery(1))
        async with inbox.backlog() as backlog:
            await backlog.dead_letter((await backlog.claim(1))[0], error="boom", more=0)
        assert await waiting(inbox) == []
        assert await inbox.requeue([1]) == 1
        assert await waiting(inbox) == [(1, 1)]


async def test_discarded_events_are_gone(inbox):
    async with inbox:
        archive = await filled(inbox)
        strange, foreign = await archive.quarantined()
        assert await archive.discard([1, 4, 99, strange.number]) == 2  # 4 waits
        assert [letter.number for letter in await archive.dead_letters()] == [3]
        assert await archive.quarantined() == [foreign]
        assert (await archive.counts()).waiting == 1


async def test_a_number_of_the_other_kind_is_left_as_it_is(inbox):
    async with inbox:
        archive = await filled(inbox)
        assert [letter.quarantined for letter in [*await archive.dead_letters(), *await archive.quarantined()]] == [
            *[False] * 2,
            *[True] * 2,
        ]
        assert await archive.requeue([1, 3, 5, 6], dead=False, quarantined=False) == 0
        assert await archive.discard([1, 3, 5, 6], dead=False, quarantined=False) == 0
        assert await archive.discard([1, 3, 5], dead=False) == 1
        assert await archive.discard([3, 6], quarantined=False) == 1
        assert await archive.requeue([1, 6], dead=False) == 1
        assert [letter.number for letter in await archive.dead_letters()] == [1]
        assert await archive.requeue([1], quarantined=False) == 1
        counts = await archive.counts()
        assert (counts.waiting, counts.dead, counts.quarantined) == (3, 0, 0)


async def test_numbers_that_no_event_can_have(inbox):
    huge = 10**30
    async with inbox:
        archive = await filled(inbox)
        for number in (0, -1, -huge, huge, 2**63, 2**63 - 1):
            assert await archive.event(number) is None
            assert await archive.requeue([number]) == await archive.discard([number]) == 0
        assert await archive.dead_letters(after=huge) == []
        assert await archive.quarantined(after=2**63) == []
        assert [letter.number for letter in await archive.dead_letters(huge, -huge)] == [1, 3]


@pytest.mark.parametrize(
    ("chosen", "dead", "quarantined"),
    [
        ({}, [1, 3], [5, 6]),
        ({"since": START + timedelta(seconds=2)}, [3], []),
        ({"kind": Picture}, [3], []),
        ({"kind": Message}, [1, 3], [6]),
        ({"kind": "TEXT"}, [1], [6]),
        ({"kind": "TEXT", "since": START + timedelta(seconds=1)}, [1], []),
        ({"conversation": "app/team/b"}, [1, 3], []),
        ({"conversation": "team/c"}, [], [6]),
        ({"conversation": "eam/c"}, [], []),
        ({"conversation": "'", "kind": "'"}, [], []),
    ],
)
async def test_dead_letters_and_quarantine_of_a_choice(inbox, chosen, dead, quarantined):
    async with inbox:
        archive = await filled(inbox)
        assert [letter.number for letter in await archive.dead_letters(**chosen)] == dead
        assert [letter.number for letter in await archive.quarantined(**chosen)] == quarantined
        assert [letter.number for letter in await archive.dead_letters(1, **chosen)] == dead[:1]
        assert [letter.number for letter in await archive.dead_letters(after=1, **chosen)] == [n for n in dead if n > 1]


@pytest.mark.parametrize(
    ("options", "count", "left"),
    [
        ({}, 4, (0, 0)),
        ({"quarantined": False}, 2, (0, 2)),
        ({"dead": False}, 2, (2, 0)),
        ({"before": START + timedelta(seconds=2), "quarantined": False}, 1, (1, 2)),
    ],
)
async def test_a_purge_deletes_what_is_asked_for(inbox, options, count, left):
    async with inbox:
        archive = await filled(inbox)
        assert await archive.purge(**options) == count
        counts = await archive.counts()
        assert (counts.waiting, counts.dead, counts.quarantined) == (1, *left)


async def test_a_purge_works_in_steps(path, monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.archive_statements.LETTER_STEP", 2)
    monkeypatch.setattr("rbim.callbacks.inbox.sqlite.STEP", 2)
    async with SqliteInbox(path) as inbox:
        for number in range(10):
            await inbox.accept(unreadable(str(number)))
        assert await inbox.purge(before=START - timedelta(days=900)) == 0
        assert await inbox.discard(range(1, 6)) == 5
        assert await inbox.purge() == 5


async def test_a_replay_of_dead_letters(inbox):
    async with inbox:
        archive = await filled(inbox)
        assert await archive.replay(kind=Picture, dead_only=True) == 1
        assert await archive.replay(START + timedelta(seconds=2), dead_only=True) == 0
        assert await archive.replay(kind="TEXT", dead_only=True) == 1
        assert await waiting(inbox) == [(1, 1), (3, 1), (4, 1)]
        assert len(await archive.quarantined()) == 2


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"dead_only": True},
        {"kind": Picture},
        {"kind": "TEXT"},
        {"kind": Message, "dead_only": True},
        {"since": START + timedelta(seconds=2)},
        {"since": START + timedelta(days=1)},
    ],
    ids=str,
)
async def test_what_a_replay_would_do_is_what_it_does(inbox, chosen, monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.sqlite.SPAN", 2)
    monkeypatch.setattr("rbim.callbacks.inbox.archive_statements.LETTER_STEP", 2)
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


async def claims_of(inbox):
    async with inbox.backlog() as backlog:
        claims = await backlog.claim(99)
        for fence in {claim.fence: claim for claim in claims}.values():
            await backlog.release(fence)
        return claims


async def test_arguments_of_an_archive_are_checked(inbox):
    async with inbox:
        for call, field in [
            (lambda: inbox.purge(before=datetime(2026, 1, 1)), "before"),  # noqa: DTZ001  # that is the point
            (lambda: inbox.replay("2026-01-01"), "since"),
            (lambda: inbox.dead_letters(0), "limit"),
            (lambda: inbox.quarantined(-1), "limit"),
            (lambda: inbox.dead_letters(since=datetime(2026, 1, 1)), "since"),  # noqa: DTZ001  # that is the point
            (lambda: inbox.quarantined(kind=int), "kind"),
            (lambda: inbox.replayable("2026-01-01"), "since"),
            (lambda: inbox.replayable(kind=int), "kind"),
        ]:
            with pytest.raises(InvalidRequest) as caught:
                await call()
            assert caught.value.field == field


async def test_dead_letters_and_quarantine_have_a_retention_of_their_own(path, monkeypatch):
    monkeypatch.setattr("rbim.callbacks.inbox.archive_statements.LETTER_STEP", 2)
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
        inbox._store._database._for_queries().set_progress_handler(searching, 1)
        with fail_after(10):
            async with create_task_group() as tasks:
                tasks.start_soon(getattr(inbox, look))
                await to_thread.run_sync(began.wait, 5)
                assert began.is_set()
                try:
                    assert await inbox.accept(delivery(7))
                finally:
                    go.set()
        inbox._store._database._for_queries().set_progress_handler(None, 1)
