"""The dead letters and the quarantine of an inbox in memory."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from threading import Lock

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.arguments import EventFilter
    from rbim.callbacks.inbox.protocols import Claim
    from rbim.callbacks.inbox.queues import ConversationQueues, QueuedEvent

    T = TypeVar("T")

__all__ = ["DeadEvent", "Letters"]


@frozen
class DeadEvent:
    """A dead letter in memory: the claim of its last attempt, and the traceback."""

    claim: Claim
    error: str


class Letters:
    """The last ``kept`` dead letters and events in quarantine. Each method takes ``lock``, ``dead`` and ``held`` do not."""

    def __init__(self, kept: int, lock: Lock, queues: ConversationQueues) -> None:
        self.dead: deque[DeadEvent] = deque(maxlen=kept)
        self.held: deque[QueuedEvent] = deque(maxlen=kept)  # in quarantine
        self._lock = lock
        self._queues = queues

    def dead_letters(self, wanted: EventFilter, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` dead letters with numbers above ``after``."""
        return _page(map(_dead_letter, self._snapshot(self.dead)), wanted, limit, after)

    def quarantined(self, wanted: EventFilter, limit: int, after: int) -> list[DeadLetter]:
        """Return at most ``limit`` events in quarantine with numbers above ``after``."""
        return _page(map(_quarantined, self._snapshot(self.held)), wanted, limit, after)

    def _snapshot(self, kept: deque[T]) -> tuple[T, ...]:
        with self._lock:
            return tuple(kept)

    def requeue(self, wanted: Callable[[DeadLetter, Delivery], bool], *, dead: bool = True, quarantined: bool = True) -> int:
        """Let those wait again that are wanted and can be read; return their number."""
        with self._lock:
            chosen = self._readable(wanted, dead=dead, quarantined=quarantined)
            for number in sorted(chosen):
                self._queues.put_back(number, chosen[number])
            self._forget(chosen)
        return len(chosen)

    def readable(self, wanted: Callable[[DeadLetter, Delivery], bool], *, quarantined: bool) -> dict[int, Delivery]:
        """Return, by number, those that are wanted and can be read."""
        with self._lock:
            return self._readable(wanted, dead=True, quarantined=quarantined)

    def _readable(
        self, wanted: Callable[[DeadLetter, Delivery], bool], *, dead: bool, quarantined: bool
    ) -> dict[int, Delivery]:
        deliveries = {letter.number: (letter, _delivery(letter)) for letter in self._all(dead=dead, quarantined=quarantined)}
        return {
            number: delivery
            for number, (letter, delivery) in deliveries.items()
            if wanted(letter, delivery) and delivery.problem is None
        }

    def _all(self, *, dead: bool, quarantined: bool) -> list[DeadLetter]:
        letters = [_dead_letter(each) for each in self.dead] if dead else []
        return letters + ([_quarantined(each) for each in self.held] if quarantined else [])

    def remove(self, wanted: Callable[[DeadLetter], bool], *, dead: bool = True, quarantined: bool = True) -> int:
        """Delete those that are wanted, and forget their keys; return their number."""
        with self._lock:
            letters = self._all(dead=dead, quarantined=quarantined)
            keys = {letter.number: letter.key for letter in letters if wanted(letter)}
            self._forget(keys)
            for key in keys.values():
                self._queues.forget_key(key)
        return len(keys)

    def _forget(self, numbers: Collection[int]) -> None:
        for each in tuple(self.dead):
            if each.claim.number in numbers:
                self.dead.remove(each)
        for entry in tuple(self.held):
            if entry.number in numbers:
                self.held.remove(entry)


def _dead_letter(dead: DeadEvent) -> DeadLetter:
    claim = dead.claim
    delivery = delivery_of(claim.body, app_id=claim.app_id, received=claim.received)
    return _letter(claim.number, delivery, dead.error, attempts=claim.attempt)


def _quarantined(entry: QueuedEvent) -> DeadLetter:
    return _letter(entry.number, entry.delivery, entry.delivery.problem or "", quarantined=True)


def _delivery(letter: DeadLetter) -> Delivery:
    return delivery_of(letter.body, app_id=letter.app_id, received=letter.received)


def _letter(number: int, delivery: Delivery, error: str, attempts: int = 0, *, quarantined: bool = False) -> DeadLetter:
    return DeadLetter(
        number=number,
        key=delivery.key,
        conversation=delivery.conversation,
        app_id=delivery.app_id,
        body=delivery.body,
        received=delivery.received,
        attempts=attempts,
        error=error,
        msg_type=delivery.msg_type,
        quarantined=quarantined,
    )


def _page(letters: Iterable[DeadLetter], wanted: EventFilter, limit: int, after: int) -> list[DeadLetter]:
    found = sorted((letter for letter in letters if letter.number > after), key=lambda letter: letter.number)
    return list(islice((letter for letter in found if wanted.matches(_delivery(letter))), limit))
