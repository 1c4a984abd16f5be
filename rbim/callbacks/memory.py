"""An inbox in memory: for tests, and for what may be lost with the process."""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf
from threading import Lock
from typing import TYPE_CHECKING

import anyio
from attrs import define, frozen

from rbim.callbacks.delivery import LeaseLost
from rbim.callbacks.lanes import Lanes
from rbim.callbacks.wake import waker
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.delivery import Backlog, Claim, Delivery
    from rbim.callbacks.events import Event
    from rbim.message import Clock

__all__ = ["DeadLetter", "MemorySink"]


@frozen
class DeadLetter:
    """An event after its last attempt, and the traceback of that."""

    claim: Claim
    error: str


@define(eq=False)
class _Entrant:
    """A delivery that waits for room; ``new`` is None until that is decided."""

    delivery: Delivery
    wake: Callable[[], None]
    new: bool | None = None


class MemorySink:
    """Keeps at most ``capacity`` events that wait or are being handled; who brings another waits for room.

    It knows the last ``remember`` keys. ``quarantined`` has the last ``kept`` deliveries that cannot be handled, ``dead`` as
    many dead letters. ``clock`` measures the pauses before retries. Nothing survives the process: a receiver that must not
    lose what it answered 200 needs another sink.
    """

    durable = False
    retention = 0.0
    lease = inf
    """Leases do not run out: who had one and is gone has left its backlog, or ended with the process."""

    def __init__(
        self, *, capacity: int = 1000, remember: int = 10_000, kept: int = 1000, clock: Clock | None = None
    ) -> None:
        for name, value in (("capacity", capacity), ("remember", remember), ("kept", kept)):
            if value < 1:
                reason = f"{name}: at least 1, not {value!r}"
                raise InvalidRequest(reason, field=name, limit=1)
        self.quarantined: deque[Delivery] = deque(maxlen=kept)
        self.dead: deque[DeadLetter] = deque(maxlen=kept)
        self._lock = Lock()
        self._lanes = Lanes(capacity, remember, clock or SystemClock())
        self._entrants: deque[_Entrant] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Keep everything as it is."""

    @property
    def events(self) -> tuple[Event, ...]:
        """The events that wait or are being handled, in the order in which they were accepted."""
        with self._lock:
            entries = self._lanes.entries()
        return tuple(entry.delivery.event for entry in entries if entry.delivery.event is not None)

    def accept_now(self, delivery: Delivery, /) -> bool | None:
        """Take a delivery if there is room, and say whether it is new; None where it has to wait."""
        with self._lock:
            return self._admit(delivery, waited=not self._entrants)

    async def accept(self, delivery: Delivery, /) -> bool:
        """Take a delivery as soon as there is room. Returns False where its key is known."""
        with self._lock:
            new = self._admit(delivery, waited=not self._entrants)
            if new is not None:
                return new
            call_soon, decided = waker(), anyio.Event()
            entrant = _Entrant(delivery, lambda: call_soon(decided.set))
            self._entrants.append(entrant)
        try:
            await decided.wait()
        except BaseException:
            with self._lock:
                if entrant.new is None:
                    self._entrants.remove(entrant)
            raise
        return bool(entrant.new)

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it. What it still holds when it is left goes back."""
        return _Backlog(self._lock, self._lanes, self.dead, self._let_in)

    def _let_in(self) -> None:
        """Take what waits for room, in the order in which it came."""
        while self._entrants:
            entrant = self._entrants[0]
            entrant.new = self._admit(entrant.delivery, waited=True)
            if entrant.new is None:
                return
            self._entrants.popleft()
            entrant.wake()

    def _admit(self, delivery: Delivery, *, waited: bool) -> bool | None:
        """Return whether a delivery is new, and take it if so; None where there is no room for it."""
        lanes = self._lanes
        if delivery.key in lanes.keys:
            return False
        if delivery.problem is not None:
            self.quarantined.append(delivery)
        elif waited and lanes.count < lanes.capacity:
            lanes.add(delivery)
        else:
            return None
        lanes.know(delivery.key)
        return True


class _Backlog:
    """The events of a MemorySink, for one worker."""

    def __init__(self, lock: Lock, lanes: Lanes, dead: deque[DeadLetter], let_in: Callable[[], None]) -> None:
        self._lock = lock
        self._lanes = lanes
        self._dead = dead
        self._let_in = let_in
        self._held: dict[str, Claim] = {}

    async def __aenter__(self) -> Self:
        self._call_soon = waker()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with self._lock:
            for claim in tuple(self._held.values()):
                self._lanes.give_back(claim)
            self._held.clear()

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        with self._lock:
            self._lanes.due()
            claims = [self._lanes.lease() for _ in range(min(limit, len(self._lanes.ready)))]
            self._held.update((claim.conversation, claim) for claim in claims)
        return claims

    async def done(self, claim: Claim, /, *, more: bool) -> Claim | None:
        with self._lock:
            self._check(claim)
            return self._settle(claim, more=more)

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        del error
        with self._lock:
            self._check(claim)
            self._lanes.rest(claim, pause)
            del self._held[claim.conversation]

    async def bury(self, claim: Claim, /, *, error: str, more: bool) -> Claim | None:
        with self._lock:
            self._check(claim)
            self._dead.append(DeadLetter(claim, error))
            return self._settle(claim, more=more)

    async def release(self, claim: Claim, /) -> None:
        with self._lock:
            if self._lanes.holds(claim):
                self._lanes.give_back(claim)
                del self._held[claim.conversation]

    async def renew(self, claims: Sequence[Claim], /) -> None:
        del claims

    async def wait(self) -> None:
        with anyio.CancelScope() as scope:
            with self._lock:
                due = self._lanes.due()
                if self._lanes.ready:
                    return
                wake = partial(self._call_soon, scope.cancel)
                self._lanes.waiting.add(wake)
            try:
                await (anyio.sleep_forever() if due is None else self._lanes.clock.sleep(due))
            finally:
                with self._lock:
                    self._lanes.waiting.discard(wake)

    def _check(self, claim: Claim) -> None:
        if not self._lanes.holds(claim):
            raise LeaseLost

    def _settle(self, claim: Claim, *, more: bool) -> Claim | None:
        self._lanes.settle(claim)
        self._let_in()
        following = self._lanes.following(claim, more=more)
        if following is None:
            del self._held[claim.conversation]
        else:
            self._held[claim.conversation] = following
        return following
