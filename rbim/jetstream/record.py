"""The record of a partition: who owns it, and what is known of its events. Pure: no input or output."""

from __future__ import annotations

import json
from bisect import bisect_left
from enum import StrEnum
from math import inf
from operator import itemgetter
from typing import Any

from attrs import define, field

from rbim.errors import InvalidRequest

__all__ = ["SCHEMA", "Blame", "Owner", "Record", "owner_of"]

# Theory of operation: what a record says of a message of its partition, by the message's sequence.
#
#   settled   at or below ``floor``, or in a range of ``done``. It is not handled again.
#   waiting   All others.
#   leased    waiting, and the oldest of a conversation that a worker has: in ``leases``, with what a death of the owner
#             would mean for it (Blame).
#   failed    waiting, with a number of attempts in ``failures`` and the epoch time of the next one in ``pauses``.
#   suspect   waiting, and an owner died while it was handled: in ``crashes``, with their number.
#
# The record's only writer is its owner, by compare-and-set on its revision. Another worker writes it to take the partition
# over (``taken``), which ends all leases and adds the crashes.
#
# What must always hold:
# - ``floor`` and ``done`` grow: what is settled stays settled. A range of ``done`` holds settled messages of this partition
#   only, and any messages of others.
# - ``writes`` grows with every write of one owner, so that a write whose acknowledgement was lost is recognised.
# - ``marks`` are pairs of an epoch time and the floor at that time: messages up to a mark that is older than the retention
#   may be deleted.

SCHEMA = 1
"""The version of records and headers."""


class Blame(StrEnum):
    """What a death of the owner means for the oldest event of a lease."""

    SUSPECT = "suspect"
    """It is suspected from now on: it crashed for the first time."""

    TRIAL = "trial"
    """It is a suspect that was handled alone: one more crash."""

    NONE = "none"
    """Nothing: a suspect that has not begun, or an event whose worker was being stopped."""


@define
class Owner:
    """Who wrote a record: the boot id of a worker (empty: the partition has no owner) and the number of the write.

    ``takeover`` is the time that its record may stand still, in seconds.
    """

    boot: str
    writes: int
    takeover: float


@define
class Record:
    """What is known of a partition's events. ``read`` is the last sequence that its owner has read."""

    floor: int = 0
    read: int = 0
    failures: dict[int, int] = field(factory=dict[int, int])
    pauses: dict[int, float] = field(factory=dict[int, float])
    crashes: dict[int, int] = field(factory=dict[int, int])
    leases: dict[int, Blame] = field(factory=dict[int, Blame])
    marks: list[tuple[float, int]] = field(factory=list[tuple[float, int]])
    # the ranges that were done when the record was read: first, last, and number of messages
    _old: list[tuple[int, int, int]] = field(factory=list[tuple[int, int, int]], alias="old")
    _waiting: list[int] = field(factory=list[int])  # what was read and waits, in order
    # what was read and is settled, above the floor: ranges as in _old, with a waiting message between any two
    _done: list[tuple[int, int, int]] = field(factory=list[tuple[int, int, int]])

    @classmethod
    def parse(cls, value: bytes | None) -> Record:
        """Return the record in a value. Raises InvalidRequest for a record of a newer rbim."""
        content = _content(value)
        floor = content.get("floor", 0)
        return cls(
            floor=floor,
            read=floor,
            failures=_by_sequence(content.get("failures")),
            pauses=_by_sequence(content.get("pauses")),
            crashes=_by_sequence(content.get("crashes")),
            leases={sequence: Blame(blame) for sequence, blame in _by_sequence(content.get("leases")).items()},
            marks=[(time, at) for time, at in content.get("marks", ())],
            old=[(first, last, number) for first, last, number in content.get("done", ())],
        )

    def value(self, owner: Owner) -> bytes:
        """Return the record as a value, written by this owner."""
        unread = ((max(first, self.read + 1), last, number) for first, last, number in self._old if last > self.read)
        content = {
            "schema": SCHEMA,
            "owner": owner.boot,
            "writes": owner.writes,
            "takeover": owner.takeover,
            "floor": self.floor,
            "done": [*self._done, *unread],
            "failures": self.failures,
            "pauses": self.pauses,
            "crashes": self.crashes,
            "leases": self.leases,
            "marks": self.marks,
        }
        return json.dumps({name: value for name, value in content.items() if value or name in KEPT}).encode()

    def taken(self) -> None:
        """End the leases of an owner that is gone, and suspect what it handled."""
        for sequence, blame in self.leases.items():
            if blame is Blame.TRIAL:
                self.crashes[sequence] = self.crashes.get(sequence, 0) + 1
            elif blame is Blame.SUSPECT:
                self.crashes[sequence] = 1
        self.leases.clear()

    def add(self, sequence: int) -> bool:
        """Note the next message that was read; return whether it waits."""
        self.read = sequence
        while self._old and self._old[0][1] < sequence:
            del self._old[0]
        if not self._old or sequence < self._old[0][0]:
            self._waiting.append(sequence)
            return True
        first, last, number = self._old[0]
        self._old[0] = first, last, number - 1
        self._settled(sequence)
        return False

    def settle(self, sequence: int) -> None:
        """Note that a message is settled, and forget the rest that is known of it."""
        self.forgive(sequence)
        self.leases.pop(sequence, None)
        place = bisect_left(self._waiting, sequence)
        if self._waiting[place : place + 1] == [sequence]:
            del self._waiting[place]
            self._settled(sequence)

    def _settled(self, sequence: int) -> None:
        """Add a message to the settled ranges, and raise the floor to the last one before all that wait."""
        waiting, done = self._waiting, self._done
        place = bisect_left(waiting, sequence)
        before = waiting[place - 1] if place else 0
        behind = waiting[place] if place < len(waiting) else inf
        first, last, number = sequence, sequence, 1
        at = bisect_left(done, sequence, key=itemgetter(0))
        if at < len(done) and done[at][0] < behind:
            _, last, more = done.pop(at)
            number += more
        if at and done[at - 1][1] > before:
            at -= 1
            first, _, more = done.pop(at)
            number += more
        if before:
            done.insert(at, (first, last, number))
        else:
            self.floor = last

    def forgive(self, sequence: int) -> None:
        """Forget failures and crashes of a message."""
        self.failures.pop(sequence, None)
        self.pauses.pop(sequence, None)
        self.crashes.pop(sequence, None)

    @property
    def settled_above(self) -> int:
        """The number of messages above the floor that are settled."""
        return sum(number for _, _, number in (*self._done, *self._old))

    def is_settled(self, sequence: int) -> bool:
        """Return whether a message is settled, also one that was not read."""
        return sequence <= self.floor or any(first <= sequence <= last for first, last, _ in (*self._done, *self._old))

    def next_waiting(self, sequence: int) -> int:
        """Return a sequence, or the one behind the range in which it is settled."""
        return next((last + 1 for first, last, _ in self._old if first <= sequence <= last), sequence)

    def mark(self, now: float, every: float) -> None:
        """Note the floor at this time, at most once in ``every`` seconds, if it has changed."""
        if not self.floor or (self.marks and (now - self.marks[-1][0] < every or self.marks[-1][1] == self.floor)):
            return
        self.marks.append((now, self.floor))

    def old(self, before: float) -> int:
        """Return the floor of the last mark before an epoch time, and forget the marks up to it; 0 without one."""
        up_to = 0
        while self.marks and self.marks[0][0] < before:
            up_to = self.marks.pop(0)[1]
        return up_to


KEPT = {"schema", "owner", "writes", "takeover", "floor"}


def owner_of(value: bytes) -> Owner:
    """Return who wrote a record."""
    content = _content(value)
    return Owner(boot=content["owner"], writes=content["writes"], takeover=content["takeover"])


def _content(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {}
    content: dict[str, Any] = json.loads(value)
    if content["schema"] != SCHEMA:
        raise InvalidRequest(f"the inbox was written by another version of rbim (schema {content['schema']}): update rbim")
    return content


def _by_sequence(given: dict[str, Any] | None) -> dict[int, Any]:  # JSON has no other keys
    return {int(sequence): value for sequence, value in (given or {}).items()}
