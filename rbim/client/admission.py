"""Admission: when a call may send its request. Rates, halts and places in flight are decided together.

A call that need not wait passes :meth:`Admission.take` or :meth:`Admission.enter_at_once`. The others wait in
:meth:`Admission.enter` and are woken when they may leave. They take their tokens at that moment, when their task runs
again, so that rates hold by the time of sending even if the event loop was blocked in between. A call that is cancelled
leaves nothing behind.

States of a waiting call (``Waiter.state``):

- ``waiting``: it stands in the queue and holds nothing.
- ``granted``: it has a place, and its tokens are granted; its task has not run since. From here it sends, or gives
  everything back: if it was cancelled, or if it is too late now.
- ``refused``: its answer cannot come in time any more; its task raises.
- ``left``: it sends.

No task and no timer of its own watches the queue: one of the waiting calls sleeps until the next call may leave
(``_sleeper``). If it leaves the queue, another one is woken to do so.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from rbim._support.lazy_names import late_anyio
from rbim.client.demands import LEAST, LEAST_MARGIN, RECENT, AttemptTimes, Demands
from rbim.client.halts import Halts
from rbim.client.lanes import Waiter
from rbim.client.limits import NORMAL, ROUNDING
from rbim.client.queue import Queue, Room

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from anyio import Event

    from rbim.client.demands import Kind
    from rbim.client.limits import Limits
    from rbim.clock import Clock, Scope
    from rbim.operations.base import Operation

__all__ = ["Admission", "Refused"]

LONGEST_NEED = 0.9
"""Share of a call's deadline that an attempt is expected to take at most: a call that need not wait is always sent."""

LONGEST_MARGIN = 0.4
"""Share of a call's deadline that is kept at most for an attempt slower than usual, unless calls always wait.

Where few attempts take many times as long as most, their time says little of the next one: to refuse each call of a burst
that has less than that would refuse nearly all, of which most would be answered in time. In overload it is right: then
other calls, which have more time, leave instead.
"""

ALIKE = 1.5

LEAST_SLEEP = 0.001
"""Seconds; some event loops wake up a little too early again and again when they are to sleep for less."""


class Refused(Exception):
    """The limits do not let the request leave in time (``at``: this was known then); nothing was sent for it now."""

    def __init__(self, at: float) -> None:
        super().__init__(at)
        self.at = at


class Admission:
    """Decides which call sends its request next. ``scope`` makes a cancel scope that ends after so many seconds."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.scope: Callable[[float], AbstractContextManager[Scope]] = clock.scope
        self.places = limits.concurrency
        self.free = limits.concurrency
        """Places in flight that are not taken."""
        self.refused = 0
        """The number of calls that could not be sent in time."""
        self.times = AttemptTimes()
        self._clock = clock
        self._unlimited = not limits.rates
        self._at_once = self._unlimited
        """Whether a free place is all that a call needs: no rates, no waiting calls, no halts."""
        self._halts = Halts()
        self._demands = Demands(limits.rates, self._halts)
        self._queue = Queue()
        self._learns = False
        """Whether times of attempts are noted: calls wait, or have waited or were refused lately."""
        self._learns_until = -inf
        self._next_at = inf
        """The earliest time at which a waiting call may leave, as far as rates and halts are concerned."""
        self._waits_since = -inf
        """The time since which every call has had to wait, while any waits."""
        self._sleeper: Waiter | None = None
        self._alarm = inf
        """The time at which the sleeper wakes up."""

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._queue)

    @property
    def oldest(self) -> float:
        """Seconds that the oldest waiting call has waited; 0 if none waits."""
        return self._clock.monotonic() - self._queue.oldest.since if self._queue else 0.0

    @property
    def halted(self) -> float:
        """Seconds until the last halt ends; 0 if nothing is halted."""
        return max(0.0, self._halts.last_end - self._clock.monotonic())

    def take(self) -> bool:
        """Take a place if that is all that a call needs, and one is free; return whether it was taken."""
        if self._at_once and self.free:
            self.free -= 1
            return True
        return False

    def enter_at_once(self, op: Operation[Any], latest: float) -> float | None:
        """Take a place and tokens if the request may leave now, and return the time; None if it must wait."""
        if not self.free or self._queue:
            return None
        now = self._clock.monotonic()
        demand = self._demands.of(op, now)
        if now >= latest or demand.ready_at(now) > now:
            return None
        self.free -= 1
        demand.take(now)
        self._at_once = self._unlimited and not self._halts.watching(now)
        return now

    async def enter(  # noqa: PLR0913  # what is known of a call, by keyword
        self,
        op: Operation[Any],
        *,
        latest: float,
        deadline: float,
        attempt: float,
        level: int = NORMAL,
        now: float | None = None,
    ) -> float:
        """Wait until the request may leave, take a place and tokens, and return the time. Raises Refused.

        It must be answered before ``latest``. ``deadline`` is the seconds of its call, ``attempt`` those of one attempt.
        ``now``: the time, if it is known; exactly this is returned if the request need not wait.
        """
        now = self._clock.monotonic() if now is None else now
        demand = self._demands.of(op, now)
        self._learns, self._learns_until = True, now + RECENT
        self.times.expire(now)
        demand.kind.times.expire(now)
        waiter = Waiter(demand, now=now, latest=latest, deadline=deadline, attempt=attempt, level=level)
        if self._is_hopeless(waiter, now):
            self.refused += 1
            raise Refused(now)
        self._add(waiter, now)
        try:
            if self._admitted(waiter, now):
                self._waits_since = now  # what waits beside it, waits for its own group or operation
            else:
                await self._wait(waiter, now)
                while not self._admitted(waiter, now := self._clock.monotonic()):
                    await self._wait(waiter, now)
        except BaseException:
            self._withdraw(waiter)
            raise
        self._keep_watch(now)
        return now

    def leave(self, op: Operation[Any], started: float, *, answered: bool) -> None:
        """Give a place back: an attempt that started then has ended, with or without an answer."""
        self.free += 1
        if self._learns:
            now = self._clock.monotonic()
            for times in (self.times, self._demands.kind_of(op, now).times):
                times.add(now - started, now=now, answered=answered)
            self._learns = bool(self._queue) or now < self._learns_until
            self._grant(now)
            self._keep_watch(now)

    def give_back(self, op: Operation[Any]) -> None:
        """Give back the tokens of a request that has taken them just now and does not leave; then :meth:`leave`."""
        self._demands.of(op, self._clock.monotonic()).give_back()
        self._next_at = -inf

    def gave_up(self, began: float, started: float) -> None:
        """Note that a call which had waited was cancelled in its attempt; they began and started at those times.

        If the attempt had all the time that it needs, the call did not wait too long: its answer did not come.
        """
        now = self._clock.monotonic()
        if now - started < self.times.need:
            self._queue.gave_up(now - began, now)

    def throttled(self, op: Operation[Any], seconds: float, *, calls: int) -> None:
        """Note that a request was throttled, and that the platform asks for a pause; ``calls`` have begun so far."""
        now = self._clock.monotonic()
        demand = self._demands.of(op, now)
        self._halts.throttled(demand.narrow, demand.kind.wide, seconds=seconds, now=now, calls=calls)
        self._at_once = False
        for waiter in self._queue:
            if waiter.demand.halted_until >= self._last_start(waiter):
                self._queue.remove(waiter)
                self._refuse(waiter)

    def need(self, op: Operation[Any], *, deadline: float, attempt: float) -> float:
        """Return the seconds that an attempt of such a call needs, as far as known; see :meth:`enter`."""
        return self._need(self._demands.kind_of(op, self._clock.monotonic()), deadline, attempt)

    def _need(self, kind: Kind, deadline: float, attempt: float) -> float:
        times = kind.times if len(kind.times) >= LEAST else self.times
        most = LONGEST_NEED * deadline
        if not self._queue or self._clock.monotonic() - self._waits_since < deadline:
            most = min(most, max(LEAST_MARGIN * times.typical, LONGEST_MARGIN * deadline))
        return min(times.need, attempt, most)

    def _last_start(self, waiter: Waiter) -> float:
        return waiter.latest - self._need(waiter.demand.kind, waiter.deadline, waiter.attempt)

    def _is_hopeless(self, waiter: Waiter, now: float) -> bool:
        """Return whether a new call cannot leave in time, if none of the calls ahead of it gives up.

        In overload the queue is just as long as calls can wait, and the least difference of what their attempts need would
        refuse all calls of one operation: what differs by less than ``ALIKE`` times counts as equal here.
        """
        if waiter.latest == inf:
            return False
        room = Room(self.places, self.free, self.times.typical, self.times.need)
        need = self._need(waiter.demand.kind, waiter.deadline, waiter.attempt)
        last = waiter.latest - max(need, min(ALIKE * need, self._demands.most_need))
        return (
            self._queue.earliest_start(waiter, now, room, exact=False) >= last
            and self._queue.earliest_start(waiter, now, room, exact=True) >= last
        )

    def _grant(self, now: float) -> None:
        """Give places and tokens to the waiting calls that may leave now, and wake them."""
        while self.free and now + ROUNDING >= self._next_at:
            waiter = self._queue.next(now)
            if waiter is None:
                self._next_at = self._queue.due(now)
                return
            self._queue.remove(waiter)
            if now >= self._last_start(waiter):
                self._refuse(waiter)
                continue
            waiter.state = "granted"
            self.free -= 1
            for bucket in waiter.demand.buckets:
                bucket.granted += 1
            if waiter.wake is not None:
                waiter.wake()

    @staticmethod
    def _refuse(waiter: Waiter) -> None:
        waiter.state = "refused"
        if waiter.wake is not None:
            waiter.wake()

    def _admitted(self, waiter: Waiter, now: float) -> bool:
        """Return whether a waiting call leaves now; then it has its place and its tokens. Raises Refused."""
        while True:
            self._grant(now)
            if waiter.state == "refused":
                self.refused += 1
                raise Refused(now)
            if waiter.state != "granted":
                return False
            next_at = self._next_at
            self._release(waiter)
            if max(now, waiter.demand.halted_until) >= self._last_start(waiter):  # the loop was blocked, or a long halt came
                self.free += 1
                waiter.state = "refused"
                self._queue.settled(waiter.demand)
            elif waiter.demand.ready_at(now) > now + ROUNDING:  # a halt came
                self.free += 1
                self._queue.settled(waiter.demand)
                self._add(waiter, now)
            else:
                waiter.demand.take(now)
                waiter.state = "left"
                if not self._queue.settled(waiter.demand):
                    self._next_at = next_at  # the granted tokens are taken
                return True

    def _add(self, waiter: Waiter, now: float) -> None:
        self._at_once = False
        if not self._queue:
            self._waits_since = now
        self._queue.add(waiter)
        self._next_at = min(self._next_at, waiter.demand.ready_at(now))

    def _withdraw(self, waiter: Waiter) -> None:
        """Give back everything that a call holds which will not be sent."""
        now = self._clock.monotonic()
        if waiter.state == "granted":
            self._release(waiter)
            self._queue.settled(waiter.demand)
            self.free += 1
        elif waiter.state == "waiting":
            self._queue.remove(waiter)
            if now >= waiter.latest:
                self.refused += 1
            elif waiter.level == NORMAL and waiter.latest < inf:
                self._queue.gave_up(now - waiter.since, now)
        if self._sleeper is waiter:
            self._sleeper, self._alarm = None, inf
        self._grant(now)
        self._keep_watch(now)

    def _release(self, waiter: Waiter) -> None:
        """Give the granted tokens back."""
        for bucket in waiter.demand.buckets:
            bucket.granted -= 1
        self._next_at = -inf

    async def _wait(self, waiter: Waiter, now: float) -> None:
        """Wait until the call is woken; sleep until the next call may leave, if no other one does."""
        if self.free and self._next_at < self._alarm:
            self._sleeper, self._alarm = waiter, self._next_at
            with self.scope(inf) as scope:
                waiter.wake = scope.cancel
                await self._clock.sleep(max(LEAST_SLEEP, self._next_at - now))
        else:
            event: Event = late_anyio().Event()
            waiter.wake = event.set
            await event.wait()
        if self._sleeper is waiter:
            self._sleeper, self._alarm = None, inf
        await late_anyio().lowlevel.checkpoint_if_cancelled()  # a call that is woken and cancelled at once does not leave

    def _keep_watch(self, now: float) -> None:
        """See to it that a call sleeps until the next one may leave."""
        if not self._queue:
            self._at_once = self._unlimited and not self._halts.watching(now)
        elif self.free and self._next_at < self._alarm:
            self._sleeper, self._alarm = self._queue.oldest, self._next_at
            if self._sleeper.wake is not None:
                self._sleeper.wake()
