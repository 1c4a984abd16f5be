"""The waiting events, for one worker: claims, and the results of handling."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from logging import getLogger
from secrets import token_hex
from typing import TYPE_CHECKING

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.jetstream.archive import write_letter
from rbim.jetstream.connection import ended, finished, together
from rbim.jetstream.lanes import PENDING, Lanes
from rbim.jetstream.messages import stored
from rbim.jetstream.nats_py import NotFoundError, parts
from rbim.jetstream.ownership import Ownership
from rbim.jetstream.partition import written
from rbim.jetstream.record import Blame

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.inbox.protocols import Claim
    from rbim.clock import Clock
    from rbim.jetstream.lanes import Entry, Lane, Share
    from rbim.jetstream.messages import Stored
    from rbim.jetstream.ownership import Tally
    from rbim.jetstream.partition import Partition
    from rbim.jetstream.streams import Streams

__all__ = ["JetStreamBacklog"]

logger = getLogger("rbim.jetstream")


class JetStreamBacklog:
    """A :class:`~rbim.callbacks.Backlog` on the servers; an async context manager.

    A method that is cancelled may have its effect all the same: call it again with the same arguments, or release the claim.
    Then it waits for what was begun, so that servers whose answers take longer than the caller's patience hold up nothing.
    """

    def __init__(self, streams: Streams, *, takeover: float, retention: float, clock: Clock, tally: Tally) -> None:
        self._streams = streams
        self._clock = clock
        self._news = asyncio.Event()
        self._lanes = Lanes(self._now, self._news.set)
        # a worker that is started again is another one: it must not take the claims of the one before for its own
        self._ownership = Ownership(
            streams, self._lanes, boot=token_hex(8), takeover=takeover, retention=retention, now=self._now, tally=tally
        )
        self._rounds: asyncio.Task[None] | None = None
        self._claiming: asyncio.Task[list[tuple[Lane, list[Entry]]]] | None = None

    async def __aenter__(self) -> Self:
        await self._streams.__aenter__()
        self._rounds = asyncio.create_task(self._ownership.run(), name="rbim-partitions")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await finished(asyncio.create_task(self._leave()))

    async def _leave(self) -> None:
        for task in (self._rounds, self._claiming):
            if task is not None:
                await ended(task)
        if self._claiming is not None and not self._claiming.cancelled() and self._claiming.exception() is None:
            self._handed_out(self._claiming.result(), 0)
        await self._ownership.leave()
        await self._streams.__aexit__(None, None, None)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        """Claim events under leases that are written; if this is cancelled, the next call returns them."""
        while True:
            if self._claiming is None:
                self._claiming = asyncio.create_task(self._claim(limit), name="rbim-claim")
            claiming = self._claiming
            await asyncio.wait((claiming,))
            if self._claiming is claiming:
                self._claiming = None
                return self._handed_out(claiming.result(), limit)

    async def _claim(self, limit: int) -> list[tuple[Lane, list[Entry]]]:
        """Lease lanes, and write that; return those that were not lost, with their oldest entries."""
        self._lanes.due()
        leased = self._lanes.lease(limit)
        try:
            for lane, entries in leased:
                await self._read(lane, entries)
            found = await self._commit(lane for lane, _ in leased)
        except BaseException:
            for lane, _ in leased:
                self._end(lane)
            raise
        claimed: list[tuple[Lane, list[Entry]]] = []
        for lane, entries in leased:
            revision = found.get(lane.share, 0)
            if lane.fence != PENDING:
                continue
            if not revision or not entries:
                self._end(lane)
                continue
            lane.fence = revision
            claimed.append((lane, entries))
        return claimed

    def _handed_out(self, claimed: list[tuple[Lane, list[Entry]]], limit: int) -> list[Claim]:
        """Return at most ``limit`` claims; give back those that are too many, or are no longer sure."""
        claims: list[Claim] = []
        for lane, entries in claimed:
            partition, room = self._ownership.of(lane.share), limit - len(claims)
            if lane.share.lost or partition is None:
                continue
            if room < 1 or not partition.is_fresh:
                self._end(lane)
                continue
            claims += map(lane.claim, entries[:room])
        return claims

    async def begin(self, claim: Claim, /) -> None:
        """Note that a suspect is handled from now on."""
        lane = self._lanes.leased(claim)
        begun = lane.record.leases.get(lane.held) is Blame.TRIAL
        self._blame(lane, Blame.TRIAL)
        await self._written(lane, changed=not begun)

    async def discount(self, claims: Sequence[Claim], /) -> None:
        """Note that a death from now on says nothing about these events, which have crashed as often as their claims say."""
        lanes: list[Lane] = []
        for claim in claims:
            with suppress(LeaseLost):
                lane = self._lanes.leased(claim)
                if lane.was_suspect and not claim.crashes:
                    self._lanes.clear(lane)
                else:
                    self._blame(lane, Blame.NONE)
                lanes.append(lane)
        await self._commit(lanes)

    async def done(self, claims: Sequence[Claim], /, *, more: int) -> Sequence[Claim]:
        """Settle events, and return the next ones under the same lease."""
        lane = self._lanes.leased(claims[0])
        entries = [entry for claim in claims if (entry := lane.entry(claim)) is not None]
        if not entries and not lane.settled.issuperset(claim.number for claim in claims):
            raise LeaseLost
        self._lanes.settle(lane, entries)
        following = self._following(lane, more)
        if following:
            await self._read(lane, following)
        changed = bool(entries)
        if not following and lane.held:
            lane.let_go()
            changed = True
        elif following and not lane.held:  # it came after the lease was to end
            lane.hold(Blame.SUSPECT)
            changed = True
        await self._written(lane, changed=changed)
        lane.settled.difference_update(claim.number for claim in claims)
        if not following:
            self._end(lane)
        return [lane.claim(entry) for entry in following]

    @staticmethod
    def _following(lane: Lane, more: int) -> list[Entry]:
        if lane.was_suspect or not more or not lane.entries or lane.entries[0].sequence in lane.record.crashes:
            return []
        return lane.oldest(more)

    async def dead_letter(self, claim: Claim, /, *, error: str, more: int) -> Sequence[Claim]:
        """Write a dead letter, then settle the event."""
        lane = self._lanes.leased(claim)
        entry = lane.entry(claim)
        if entry is not None:
            await write_letter(self._streams, entry.sequence, claim, entry.delivery, error)
        return await self.done((claim,), more=more)

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        """Record a failed attempt, and pause the conversation."""
        del error
        lane = self._lanes.leased(claim)
        entry = lane.entry(claim)
        if entry is None:
            raise LeaseLost
        changed = lane.retried != entry.number
        if changed:
            lane.retried = entry.number
            record, sequence = lane.record, entry.sequence
            failures = record.failures.get(sequence, 0) + 1
            record.forgive(sequence)
            record.failures[sequence], record.pauses[sequence] = failures, self._now() + pause
            lane.let_go()
        await self._written(lane, changed=changed)
        self._end(lane)

    async def release(self, claim: Claim, /, *, died: bool = False) -> None:
        """Give a conversation back."""
        with suppress(LeaseLost):
            lane = self._lanes.leased(claim)
            entry = lane.entry(claim)
            if died and entry is not None:
                lane.record.crashes[entry.sequence] = claim.crashes + 1
            partition = self._partition(lane)
            self._lanes.end(lane, first=True)
            await partition.commit()

    async def renew(self, claims: Sequence[Claim], /) -> Sequence[Claim]:
        """Write the records of the claims; return the claims that are lost."""
        lanes: dict[int, Lane] = {}
        for place, claim in enumerate(claims):
            with suppress(LeaseLost):
                lanes[place] = self._lanes.leased(claim)
        written = await self._commit(lanes.values())
        held = {place for place, lane in lanes.items() if lane.share in written}
        return [claim for place, claim in enumerate(claims) if place not in held]

    async def wait(self) -> None:
        """Wait until a claim may succeed."""
        while True:
            due = self._lanes.due()
            if self._lanes.claimable:
                return
            self._news.clear()
            with nullcontext() if due is None else self._clock.scope(due):
                await self._news.wait()

    @staticmethod
    def _blame(lane: Lane, blame: Blame) -> None:
        if lane.held:
            lane.record.leases[lane.held] = blame

    def _partition(self, lane: Lane) -> Partition:
        partition = self._ownership.of(lane.share)
        if partition is None:
            raise LeaseLost
        return partition

    async def _written(self, lane: Lane, *, changed: bool) -> None:
        """Wait until the last change of a lane is written: this one, or an earlier one if nothing is changed.

        Raises LeaseLost.
        """
        if changed or lane.write is None:
            lane.write = self._partition(lane).next_write()
        await written(lane.write)

    async def _commit(self, lanes: Iterable[Lane]) -> dict[Share, int]:
        """Write the records of these lanes' partitions; return the revisions, without those of partitions that are lost."""
        writes: dict[Share, asyncio.Future[int]] = {}
        for share in {lane.share for lane in lanes}:
            partition = self._ownership.of(share)
            if partition is not None and not share.lost:
                writes[share] = partition.next_write()
        if writes:
            await asyncio.wait(writes.values())
        return {share: revision for share, write in writes.items() if (revision := write.result())}

    def _end(self, lane: Lane) -> None:
        """End a lease in memory, and have that written soon."""
        if lane.share.lost:
            return
        self._lanes.end(lane)
        partition = self._ownership.of(lane.share)
        if partition is not None:
            partition.changed()

    async def _read(self, lane: Lane, entries: list[Entry]) -> None:
        """Read the contents of entries that are not kept, and remove those whose message was deleted."""
        unread = lane.unread(entries)
        for entry, event in zip(unread, await together(map(self._content, unread)), strict=True):
            if entry.stored is None and entry in lane.entries:
                if event is not None:
                    entry.stored = event
                    lane.share.bodies += 1
                    continue
                logger.error("message %d was deleted or changed by others: it is skipped", entry.sequence)
                if entry in entries:
                    entries.remove(entry)
                self._lanes.settle(lane, [entry])

    async def _content(self, entry: Entry) -> Stored | None:
        jetstream, stream = await self._streams.jetstream(), self._streams.subjects.events
        try:
            return stored(*parts(await jetstream.get_msg(stream, seq=entry.sequence)))
        except (NotFoundError, ValueError):
            return None
