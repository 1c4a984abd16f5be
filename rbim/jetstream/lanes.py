"""The conversations of the partitions that a worker owns, in its memory: ready, leased, pausing or suspect. Does no I/O."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from heapq import heappop, heappush
from itertools import count, islice
from operator import attrgetter
from typing import TYPE_CHECKING

from attrs import define, field

from rbim.callbacks.inbox.protocols import Claim, LeaseLost
from rbim.jetstream.record import Blame

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from rbim.callbacks.delivery import Delivery
    from rbim.jetstream.messages import Stored
    from rbim.jetstream.record import Record

__all__ = ["Entry", "Lane", "Lanes", "Share"]

# Theory of operation: a conversation whose partition this worker owns (see inbox/protocols.py for leases in general).
#
#   ready, suspect, pausing   Events wait and no task has them: in the queue of that name.
#   leased                    A task of this worker has it; ``fence`` is the revision of the record that says so, or PENDING
#                             until that is written.
#   gone                      The partition was lost or given back, or no event waits: the lane is in no table any more.
#
# What must always hold:
# - Lanes change in memory first; the partition's next write makes the change durable. A method of the backlog returns after
#   that write. If its task is cancelled before, the change stays, and is written all the same.
# - A leased lane has its oldest event in the record's ``leases`` (``held``), until its lease is to end with the next write.
# - ``settled`` and ``retried`` have the numbers of events whose result is in memory, and not yet acknowledged to the caller
#   as written: it may ask again, and the result is not counted twice.
# - Entries are ordered by number, which differs from the order of the messages if some were made to wait again.
# - Bodies are kept for the first LANE_BODIES entries of a lane, and for BODIES of a partition; others are read again when
#   they are claimed, READ_AT_ONCE of a lane. So one conversation that fails for hours, or has a thousand events, holds up no
#   other one of its partition.

PENDING = -1
LANE_BODIES = 64
READ_AT_ONCE = 32
BODIES = 500
ENTRIES = 20_000


@define(eq=False)
class Entry:
    """An event that waits: its message, and its content if that is kept."""

    sequence: int
    number: int
    stored: Stored | None

    @property
    def delivery(self) -> Delivery:
        """The event. Only for an entry whose content was read."""
        assert self.stored is not None  # noqa: S101  # read before it is claimed
        return self.stored.delivery


_by_number = attrgetter("number")


@define(eq=False)
class Share:
    """A partition as its lanes see it: the record, and how much of it is in memory."""

    record: Record
    lanes: dict[str, Lane] = field(factory=dict[str, "Lane"])
    entries: int = 0
    bodies: int = 0
    pausing: int = 0
    lost: bool = False

    @property
    def has_room(self) -> bool:
        """Whether to read further: not more than can be handled soon, unless nothing of what was read may be handled."""
        return self.entries < ENTRIES and (self.bodies < BODIES or self.pausing >= len(self.lanes))


@define(eq=False)
class Lane:
    """A conversation with events that wait."""

    conversation: str
    share: Share
    entries: list[Entry] = field(factory=list[Entry])
    fence: int = 0
    held: int = 0  # the sequence in the record's leases
    was_suspect: bool = False
    pauses: bool = False
    settled: set[int] = field(factory=set[int])
    retried: int = 0
    write: Future[int] | None = None  # the one that has its last change

    @property
    def record(self) -> Record:
        """The record of its partition."""
        return self.share.record

    def oldest(self, limit: int) -> list[Entry]:
        """Return its oldest entries, up to the next suspect: that one is claimed by itself."""
        found = self.entries[: 1 if self.was_suspect else limit]
        crashes = self.record.crashes
        if crashes:
            for place, entry in enumerate(found):
                if place and entry.sequence in crashes:
                    return found[:place]
        return found

    def unread(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries without content among these; if there are any, some of those behind them, too."""
        missing = [entry for entry in entries if entry.stored is None]
        if missing:
            others = (entry for entry in self.entries if entry.stored is None and entry not in missing)
            missing += islice(others, max(0, READ_AT_ONCE - len(missing)))
        return missing

    def entry(self, claim: Claim) -> Entry | None:
        """Return the entry of a claim, or None if it is settled."""
        return next((entry for entry in self.entries if entry.number == claim.number), None)

    def hold(self, blame: Blame) -> None:
        """Note the oldest event in the record's leases."""
        leases = self.record.leases
        if self.held:
            blame = leases.pop(self.held, blame)
        self.held = self.entries[0].sequence
        leases[self.held] = blame

    def let_go(self) -> None:
        """Remove it from the record's leases: its lease ends with the next write."""
        self.record.leases.pop(self.held, None)
        self.held = 0

    def claim(self, entry: Entry) -> Claim:
        """Return a claim of an entry under the lane's fence."""
        delivery, record = entry.delivery, self.record
        return Claim(
            number=entry.number,
            key=delivery.key,
            conversation=self.conversation,
            app_id=delivery.app_id,
            body=delivery.body,
            received=delivery.received,
            attempt=record.failures.get(entry.sequence, 0) + 1,
            fence=self.fence,
            replays=0 if entry.stored is None else entry.stored.replays,
            crashes=record.crashes.get(entry.sequence, 0) if self.was_suspect else 0,
            headers={} if entry.stored is None else entry.stored.headers,
        )


class Lanes:
    """All lanes of a worker. ``changed`` is called when a claim may succeed that could not before."""

    def __init__(self, now: Callable[[], float], changed: Callable[[], object]) -> None:
        self._now = now
        self._changed = changed
        self._lanes: dict[str, Lane] = {}
        self._ready: OrderedDict[str, Lane] = OrderedDict()
        self._suspects: OrderedDict[str, Lane] = OrderedDict()
        self._pausing: list[tuple[float, int, Lane]] = []
        self._order = count()
        self._trial: Lane | None = None  # the suspect that is leased

    def add(self, share: Share, stored: Stored) -> None:
        """Add an event that was read and waits."""
        conversation = stored.delivery.conversation
        lane = self._lanes.get(conversation)
        if lane is None:
            lane = self._lanes[conversation] = share.lanes[conversation] = Lane(conversation, share)
        if stored.number != stored.sequence and any(entry.number == stored.number for entry in lane.entries):
            share.record.settle(stored.sequence)  # it waits already, and was made to wait again by another command
            return
        keep = share.bodies < BODIES and len(lane.entries) < LANE_BODIES
        entry = Entry(stored.sequence, stored.number, stored if keep else None)
        insort(lane.entries, entry, key=_by_number)
        share.entries += 1
        share.bodies += keep
        if lane.entries[0] is entry and not lane.fence:
            self._open(lane)

    def _open(self, lane: Lane, *, first: bool = False) -> None:
        """Put a lane that is not leased into the queue where it belongs."""
        self._close(lane)
        oldest, record = lane.entries[0], lane.record
        due = record.pauses.get(oldest.sequence, 0.0)
        if due > self._now():
            lane.pauses = True
            lane.share.pausing += 1
            heappush(self._pausing, (due, next(self._order), lane))
        elif oldest.sequence in record.crashes:
            self._suspects[lane.conversation] = lane
        else:
            self._ready[lane.conversation] = lane
            if first:
                self._ready.move_to_end(lane.conversation, last=False)
        self._changed()

    def _close(self, lane: Lane) -> None:
        self._ready.pop(lane.conversation, None)
        self._suspects.pop(lane.conversation, None)
        if lane.pauses:
            lane.pauses = False
            lane.share.pausing -= 1

    def due(self) -> float | None:
        """Open the lanes whose pause is over; return the seconds until the next one, or None if none pauses."""
        while self._pausing:
            due, _, lane = self._pausing[0]
            if lane.pauses and due > (now := self._now()):
                return due - now
            heappop(self._pausing)
            if lane.pauses:
                self._open(lane)
        return None

    @property
    def claimable(self) -> bool:
        """Whether a claim would return something now."""
        return bool(self._ready) or (bool(self._suspects) and self._trial is None)

    def lease(self, limit: int) -> list[tuple[Lane, list[Entry]]]:
        """Lease a suspect, or lanes with at most ``limit`` entries together; their fences are PENDING."""
        if limit < 1:
            return []
        if self._suspects and self._trial is None:
            _, lane = self._suspects.popitem(last=False)
            self._trial, lane.was_suspect, lane.fence = lane, True, PENDING
            lane.hold(Blame.NONE)
            return [(lane, lane.oldest(1))]
        lanes = [self._ready.popitem(last=False)[1] for _ in range(min(limit, len(self._ready)))]
        for lane in lanes:
            lane.fence = PENDING
            lane.hold(Blame.SUSPECT)
        return [(lane, lane.oldest(limit // len(lanes))) for lane in lanes]

    def leased(self, claim: Claim) -> Lane:
        """Return the lane of a claim. Raises LeaseLost unless its lease is valid."""
        lane = self._lanes.get(claim.conversation)
        if lane is None or lane.share.lost or lane.fence != claim.fence:
            raise LeaseLost
        return lane

    def settle(self, lane: Lane, entries: list[Entry]) -> None:
        """Remove entries of a leased lane that are settled."""
        if not entries:
            return
        blame = lane.record.leases.get(lane.held, Blame.SUSPECT)
        for entry in entries:
            lane.entries.remove(entry)
            lane.share.entries -= 1
            lane.share.bodies -= entry.stored is not None
            lane.record.settle(entry.sequence)
            lane.settled.add(entry.number)
        if lane.entries:
            lane.hold(blame)

    def clear(self, lane: Lane) -> None:
        """Make a suspect that is leased an ordinary event: others may be claimed beside it."""
        if not lane.was_suspect or not lane.held:
            return
        lane.was_suspect = False
        lane.record.crashes.pop(lane.held, None)
        lane.record.leases[lane.held] = Blame.SUSPECT
        self._trial = None
        self._changed()

    def end(self, lane: Lane, *, first: bool = False) -> None:
        """End the lease of a lane, if it has one."""
        if not lane.fence:
            return
        if lane is self._trial:
            self._trial = None
        lane.let_go()
        lane.fence = lane.retried = 0
        lane.write = None
        lane.was_suspect = False
        lane.settled.clear()
        if lane.entries:
            self._open(lane, first=first)
        else:
            del self._lanes[lane.conversation], lane.share.lanes[lane.conversation]
        if self._suspects:
            self._changed()

    def forget(self, share: Share) -> None:
        """Forget the lanes of a partition that is not ours any more."""
        share.lost = True
        for lane in share.lanes.values():
            self._close(lane)
            self._lanes.pop(lane.conversation, None)
            lane.fence = 0
            if lane is self._trial:
                self._trial = None
        share.lanes.clear()

    def is_leased(self, share: Share) -> bool:
        """Whether a lane of a partition is leased."""
        return any(lane.fence for lane in share.lanes.values())
