"""Admission: when a call may send its request. Rates, congestion and places in flight are decided together.

A call that need not wait passes :meth:`Admission.enter_at_once`. The others wait in :meth:`Admission.enter` and are woken
when they may leave. They take their tokens at that moment, when their task runs again, so that rates hold by the time of
sending even if the event loop was blocked in between. A call that is cancelled leaves nothing behind.

States of a waiting call (``Waiter.state``):

- ``waiting``: it stands in the queue and holds nothing.
- ``granted``: it has a place, and its tokens are granted; its task has not run since. From here it sends, or gives
  everything back: if it was cancelled, or if it is too late now.
- ``refused``: its answer cannot come in time any more, or the client is closed; its task raises.
- ``left``: it sends.

On asyncio with the system's clock, one timer fires when the next call may leave, and another one at the next deadline.
Elsewhere (trio, emulated time) each call waits in a scope until its deadline, and one of them sleeps until the next call may
leave (``_sleeper``); if it leaves the queue, another one is woken to do so.
"""

from __future__ import annotations

import sys
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from rbim._support.lazy_names import late_anyio
from rbim.client.congestion import Congestion
from rbim.client.limits import LEAST, LEAST_MARGIN, NORMAL, RECENT, ROUNDING, SPACING, AttemptTimes, Demands, ready_at
from rbim.client.queue import Queue, Room, Waiter
from rbim.clock import monotonic_of

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle
    from collections.abc import Callable

    from rbim.client.limits import Kind, Limits, Rate, SharedBucket
    from rbim.clock import Clock
    from rbim.operations.base import Operation
    from rbim.postgres.shared_rate import SlotSource
    from rbim.timeouts import Deadlines

__all__ = ["Admission", "NotAdmitted"]

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


class NotAdmitted(Exception):
    """The limits do not let the request leave in time, or the client is closed; nothing was sent for it now."""


class Admission:
    """Decides which call sends its request next."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.deadlines: Deadlines | None = None
        """The client's timer on asyncio, if it may be used: the client sets it."""
        self.places = limits.concurrency
        self.free = limits.concurrency
        """Places in flight that are not taken."""
        self.refused = 0
        """The number of calls that could not be sent in time."""
        self._closed = False
        self.times = AttemptTimes()
        self._clock = clock
        self._monotonic = monotonic_of(clock)
        self._unlimited = not limits.rates
        self._at_once = self._unlimited
        """Whether a free place is all that a call needs: no rates, no waiting calls, no congestion."""
        self._congestion = Congestion()
        self._demands = Demands(limits.rates, self._congestion.flows)
        self._shared = self._demands.shared
        self._sources = [_source_of(bucket.rate) for bucket in self._shared]
        self._queue = Queue()
        self._learns = False
        """Whether times of attempts are noted: calls wait, or have waited or were refused lately."""
        self._learns_until = -inf
        self._next_at = inf
        """The earliest time at which a waiting call may leave, as far as rates and congestion are concerned."""
        self._waits_since = -inf
        """The time since which every call has had to wait, while any waits."""
        self._sleeper: Waiter | None = None
        self._timer: TimerHandle | None = None
        self._alarm = inf
        """The time at which the timer fires, or the sleeper wakes up."""

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return self._queue.size

    @property
    def oldest(self) -> float:
        """Seconds that the oldest waiting call has waited; 0 if none waits."""
        return self._monotonic() - self._queue.oldest.since if self._queue.size else 0.0

    def away(self, op: Operation[Any]) -> str:
        """Return which shared rate of an operation cannot be asked now, and why; an empty text if all can."""
        rates = self._demands.kind_of(op, self._monotonic()).rates
        for bucket, source in zip(self._shared, self._sources, strict=True):
            if bucket in rates and bucket.failure:
                return f"the shared rate {source.name!r} of {source.place} cannot be asked: {bucket.failure}"
        return ""

    def open(self) -> None:
        """Begin to ask for the slots of shared rates, from the caller's event loop."""
        if self._shared:
            from rbim._support.event_loops import waker

            schedule = waker()
            for bucket, source in zip(self._shared, self._sources, strict=True):
                source.start(partial(self._tell, schedule, bucket))
                bucket.ask = source.ask

    def close(self) -> None:
        """End the timer, and ask for no more slots."""
        self.end_watch()
        for bucket, source in zip(self._shared, self._sources, strict=True):
            bucket.ask = None
            source.close()

    def _tell(
        self, schedule: Callable[[Callable[[], object]], None], bucket: SharedBucket, slots: list[float], failure: str
    ) -> None:
        schedule(partial(self._told, bucket, slots, failure))

    def _told(self, bucket: SharedBucket, slots: list[float], failure: str) -> None:
        now = self._monotonic()
        bucket.told(slots, failure, now)
        self._next_at = -inf
        self._grant(now)
        self._keep_watch()

    def enter_at_once(self, op: Operation[Any], latest: float) -> float | None:
        """Take a place and tokens if the request may leave now, and return the time; None if it must wait."""
        if self._at_once and self.free:
            self.free -= 1
            return self._monotonic()
        if not self.free or self._queue.size:
            return None
        now = self._monotonic()
        if self._congestion.flows and self._congestion.sweep(now):
            self._demands.flows_changed()
        demand = self._demands.of(op, now)
        if now >= latest or ready_at(demand.buckets, now) > now:
            return None
        self.free -= 1
        demand.take(now)
        self._at_once = self._unlimited and not self._congestion.flows
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
        """Wait until the request may leave, take a place and tokens, and return the time. Raises NotAdmitted.

        It must be answered before ``latest``. ``deadline`` is the seconds of its call, ``attempt`` those of one attempt.
        ``now``: the time, if it is known; exactly this is returned if the request need not wait.
        """
        now = self._monotonic() if now is None else now
        demand = self._demands.of(op, now)
        self._learns, self._learns_until = True, now + RECENT
        if not self._queue.size:
            self.times.expire(now)
            demand.kind.times.expire(now)
        waiter = Waiter(demand, now=now, latest=latest, deadline=deadline, attempt=attempt, level=level)
        if self._is_hopeless(waiter, now) and not self._makes_way(waiter, now):
            self.refused += 1
            raise NotAdmitted
        self._add(waiter, now)
        try:
            if self._admitted(waiter, now):
                self._waits_since = now  # what waits beside it, waits for its own group or operation
            while waiter.state != "left":
                await self._wait(waiter, now)
                now = self._monotonic()
                if not self._admitted(waiter, now) and now >= latest:
                    raise NotAdmitted  # noqa: TRY301  # it is withdrawn below, as any other that ends here
        except BaseException:
            self._withdraw(waiter)
            raise
        self._keep_watch()
        return now

    def leave(self, op: Operation[Any], started: float, *, answered: bool, asked: float | None = None) -> None:
        """Give a place back: an attempt that started then has ended, with or without an answer.

        ``asked``: it was throttled, and the platform asks for a pause of so many seconds (0: it says nothing of one).
        """
        self.free += 1
        if self._learns or asked is not None or self._congestion.flows:
            now = self._monotonic()
            kind = self._demands.kind_of(op, now)
            if answered and (asked is not None or self._congestion.flows):
                narrow = kind.narrow_of(getattr(op, "group_id", None))
                if self._congestion.answered(narrow, kind.wide, sent_at=started, now=now, asked=asked):
                    self._flows_changed(now)
            if self._learns:
                for times in (self.times, kind.times):
                    times.add(now - started, now=now, answered=answered)
                self._learns = self._queue.size > 0 or now < self._learns_until
            self._grant(now)
            self._keep_watch()

    def _flows_changed(self, now: float) -> None:
        """Let the waiting calls wait for the flows that there are now; refuse those that cannot leave in time."""
        self._demands.flows_changed()
        self._at_once, self._next_at = False, -inf
        waiting = list(self._queue)
        for waiter in waiting:  # first all, so that lines begin anew: theirs is the demand of the call that begins them
            self._queue.remove(waiter)
        for waiter in waiting:
            waiter.demand = self._demands.demand(waiter.demand.kind, waiter.demand.group, now)
            if ready_at(waiter.demand.buckets, now) >= self._last_start(waiter, now):
                self._refuse(waiter)
            else:
                self._queue.add(waiter)

    def give_back(self, op: Operation[Any]) -> None:
        """Give back the tokens of a request that has taken them just now and does not leave; then :meth:`leave`."""
        for bucket in self._demands.of(op, self._monotonic()).buckets:
            bucket.give_back()
        self._next_at = -inf

    def gave_up(self, began: float, started: float) -> None:
        """Note that a call which had waited was cancelled in its attempt; they began and started at those times.

        If the attempt had all the time that it needs, the call did not wait too long: its answer did not come.
        """
        now = self._monotonic()
        if now - started < self.times.need:
            self._queue.gave_up(now - began, now)

    def need(self, op: Operation[Any], *, deadline: float, attempt: float) -> float:
        """Return the seconds that an attempt of such a call needs, as far as known; see :meth:`enter`."""
        now = self._monotonic()
        return self._need(self._demands.kind_of(op, now), deadline, attempt, now)

    def _need(self, kind: Kind, deadline: float, attempt: float, now: float) -> float:
        times = kind.times if len(kind.times.last) >= LEAST else self.times
        most = LONGEST_NEED * deadline
        if not self._queue.size or now - self._waits_since < deadline:
            most = min(most, max(LEAST_MARGIN * times.typical, LONGEST_MARGIN * deadline))
        return min(times.need, attempt, most)

    def _last_start(self, waiter: Waiter, now: float) -> float:
        return waiter.latest - self._need(waiter.demand.kind, waiter.deadline, waiter.attempt, now)

    def _is_hopeless(self, waiter: Waiter, now: float) -> bool:
        """Return whether a new call cannot leave in time, if none of the calls ahead of it gives up.

        In overload the queue is just as long as calls can wait, and the least difference of what their attempts need would
        refuse all calls of one operation: what differs by less than ``ALIKE`` times counts as equal here.
        """
        if waiter.latest == inf:
            return False
        room = Room(self.places, self.free, self.times.typical, self.times.need)
        need = self._need(waiter.demand.kind, waiter.deadline, waiter.attempt, now)
        start = self._queue.earliest_start(waiter, now, room, exact=False)
        if start < waiter.latest - ALIKE * need:
            return False
        last = waiter.latest - max(need, min(ALIKE * need, self._demands.most_need))
        return start >= last and self._queue.earliest_start(waiter, now, room, exact=True) >= last

    def _makes_way(self, waiter: Waiter, now: float) -> bool:
        """Refuse the last call of the group with most waiting calls, if that lets a call of another group leave in time."""
        last = self._queue.last_of_most(waiter)
        if last is None:
            return False
        self._queue.remove(last)
        if self._is_hopeless(waiter, now):
            self._queue.add(last)
            return False
        self._refuse(last)
        return True

    def _grant(self, now: float) -> None:
        """Give places and tokens to the waiting calls that may leave now, and wake them."""
        for shared in self._shared:
            shared.reserve(now)
        while self.free and now + ROUNDING >= self._next_at:
            waiter = self._queue.next(now)
            if waiter is None:
                self._next_at = self._queue.due(now)
                return
            self._queue.remove(waiter)
            waiter.state = "granted"
            self.free -= 1
            for bucket in waiter.demand.buckets:
                bucket.granted += 1
            waiter.cancel()

    @staticmethod
    def _refuse(waiter: Waiter) -> None:
        waiter.state = "refused"
        waiter.cancel()

    def refuse_all(self) -> None:
        """Refuse all waiting calls: the client is closed."""
        self._closed = True
        for waiter in self._queue:
            self._queue.remove(waiter)
            self._refuse(waiter)

    def _admitted(self, waiter: Waiter, now: float) -> bool:
        """Return whether a waiting call leaves now; then it has its place and its tokens. Raises NotAdmitted."""
        while True:
            self._grant(now)
            if waiter.state == "refused":
                self.refused += not self._closed
                raise NotAdmitted
            if waiter.state != "granted":
                return False
            next_at = self._next_at
            self._release(waiter)
            waiter.demand = self._demands.demand(waiter.demand.kind, waiter.demand.group, now)  # flows may have changed
            ready = max(now, ready_at(waiter.demand.buckets, now))
            if ready >= self._last_start(waiter, now) or (self._closed and ready > now + ROUNDING):
                # the loop was blocked, or a pause came, and nothing waits any more
                self.free += 1
                waiter.state = "refused"
                self._queue.settled(waiter.demand)
            elif ready > now + ROUNDING:  # a pause came
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
        if not self._queue.size:
            self._waits_since = now
        self._queue.add(waiter)
        self._next_at = min(self._next_at, ready_at(waiter.demand.buckets, now))

    def _withdraw(self, waiter: Waiter) -> None:
        """Give back everything that a call holds which will not be sent."""
        now = self._monotonic()
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
        self._keep_watch()

    def _release(self, waiter: Waiter) -> None:
        """Give the granted tokens back."""
        for bucket in waiter.demand.buckets:
            bucket.granted -= 1
        self._next_at = -inf

    async def _wait(self, waiter: Waiter, now: float) -> None:
        """Wait until the call is woken, or until its deadline."""
        if self.deadlines is not None:
            future = self.deadlines.loop.create_future()
            waiter.wake = partial(_set_done, future)
            self._keep_watch()
            self.deadlines.add(waiter, waiter.latest)
            try:
                await future
            finally:
                del self.deadlines.scopes[waiter]
            if "anyio" not in sys.modules:
                return
        else:
            with self._clock.scope(waiter.latest - now) as scope:
                waiter.wake = scope.cancel
                if self.free and self._next_at < self._alarm:
                    self._sleeper, self._alarm = waiter, self._next_at
                    await self._clock.sleep(max(LEAST_SLEEP, self._next_at - now))
                else:
                    await late_anyio().sleep_forever()
            if self._sleeper is waiter:
                self._sleeper, self._alarm = None, inf
        # a call that is woken and cancelled at once, by a scope of anyio, does not leave
        await late_anyio().lowlevel.checkpoint_if_cancelled()

    def _keep_watch(self) -> None:
        """See to it that somebody looks at the queue when the next call may leave: the timer, or a call that sleeps."""
        if not self._queue.size:
            self._at_once = self._unlimited and not self._congestion.flows
            self.end_watch()
        elif self.free and self._next_at < self._alarm:
            self.end_watch()
            self._alarm = self._next_at
            if self.deadlines is not None:
                delay = max(LEAST_SLEEP, self._next_at - self._monotonic())
                self._timer = self.deadlines.loop.call_later(delay, self._watched)
            else:
                self._sleeper = self._queue.oldest
                self._sleeper.cancel()

    def end_watch(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._alarm = None, inf

    def _watched(self) -> None:
        self._timer, self._alarm = None, inf
        self._grant(self._monotonic())
        self._keep_watch()


def _source_of(rate: Rate) -> SlotSource:
    from rbim.postgres.shared_rate import SlotSource

    return SlotSource(str(rate.shared), spacing=SPACING * rate.per / rate.limit)


def _set_done(future: Future[None]) -> None:
    if not future.done():  # it was cancelled
        future.set_result(None)
