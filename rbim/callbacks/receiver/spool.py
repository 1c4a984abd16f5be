"""The spool: a local overflow file for deliveries that the sink did not store in time, forwarded to it later."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import LeaseLost, OtherContent
from rbim.callbacks.inbox.sqlite import WEEK, SqliteInbox
from rbim.callbacks.inbox.tables import SPOOL
from rbim.callbacks.observers import Observers, Quarantined
from rbim.callbacks.worker.attempt import ForeignCode, failure_of
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.conversation import FIRST_PAUSE, LONGEST_PAUSE
from rbim.callbacks.worker.shared_run import GRACE
from rbim.storage.group_commit import Chain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from anyio.abc import TaskGroup

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Backlog, Claim, Sink
    from rbim.clock import Clock

__all__ = ["Spool"]

FOREVER = Backoff(attempts=sys.maxsize, crashes=sys.maxsize, first=0.5, factor=2.0, most=5.0)
MOST_CONVERSATIONS = 10_000  # that are tracked one by one
POLL = 0.25  # seconds of real time between two reads of the file's conversations
TOGETHER = 256  # deliveries that are claimed in one transaction
AT_HAND = 2 * TOGETHER  # deliveries in memory, at most
IN_A_ROW = 8  # times that a conversation is offered before others go first
LONGEST_TURN = 10.0  # seconds after which a turn offers no further delivery: a third of its lease

T = TypeVar("T")


class _SpoolInbox(SqliteInbox):
    """An inbox file with another mark, so that no other code opens it as an inbox."""

    kind = SPOOL


class Spool:
    """Keeps deliveries in its own file until ``sink`` has stored them, in order within a conversation.

    It never drops a delivery. If the sink was only slow and has the delivery already, it recognises the key. While a
    conversation has deliveries here, :meth:`holds` returns True, and later ones must come here too. Deliveries that other
    processes add to the same file are seen within 0.25 seconds. ``budget`` is the sink's limit for one try, in seconds.
    ``observers`` get a delivery that the sink puts in quarantine for its other content.
    """

    def __init__(self, path: Path, sink: Sink, *, clock: Clock, budget: float, observers: Observers | None = None) -> None:
        # forwarded deliveries are known to the sink: keep them no longer than the sink does
        self._inbox = _SpoolInbox(path, retention=min(sink.retention or WEEK, WEEK), clock=clock)
        self._sink = sink
        self._clock = clock
        self._budget = budget
        self._observers = observers or Observers()
        self._held: set[str] = set()
        self._all_held = False  # too many conversations to track each
        self._writing: Counter[str] = Counter()
        self._entering: dict[str, dict[int, anyio.Event]] = {}
        self._changes = 0
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._inbox)
            await self._refresh()
            backlog = await stack.enter_async_context(self._inbox.backlog())
            drain = _Drain(backlog, self._sink, clock=self._clock, budget=self._budget, observers=self._observers)
            tasks = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._keep_refreshing)
            tasks.start_soon(drain.run)
            self._entered = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._entered.__aexit__(None, None, None)  # a task group would wrap the error

    async def waiting(self) -> int:
        """Return the number of deliveries that wait here."""
        return (await self._inbox.counts()).waiting

    def holds(self, conversation: str) -> bool:
        """Whether deliveries of the conversation wait here."""
        return self._all_held or conversation in self._held or conversation in self._writing

    async def accept(self, delivery: Delivery, order: int) -> None:
        """Return once the delivery is durable.

        Deliveries of one conversation that come at the same moment are stored by their ``order``: trio resumes tasks whose
        time is over together in any order.
        """
        conversation = delivery.conversation
        self._writing[conversation] += 1
        try:
            await self._in_turn(conversation, order)
            await self._inbox.accept(delivery._replace(problem=None))  # the sink determines the problem again
        finally:
            self._changes += 1
            self._held.add(conversation)
            self._writing[conversation] -= 1
            if not self._writing[conversation]:
                del self._writing[conversation]

    async def _in_turn(self, conversation: str, order: int) -> None:
        """Wait until those with a lower order that came at the same moment have gone."""
        entering = self._entering.setdefault(conversation, {})
        turn = entering[order] = anyio.Event()
        try:
            await checkpoint()
            if order != min(entering):
                await turn.wait()
        finally:
            del entering[order]
            if entering:
                entering[min(entering)].set()
            else:
                del self._entering[conversation]

    async def _refresh(self) -> None:
        changes = self._changes
        found = await self._inbox.conversations(MOST_CONVERSATIONS + 1)
        self._all_held = len(found) > MOST_CONVERSATIONS
        self._held = found if changes == self._changes else found | self._held

    async def _keep_refreshing(self) -> None:
        """Keep the set of held conversations current."""
        while True:
            await anyio.sleep(POLL)
            try:
                await self._refresh()
            except Exception:  # until the next read succeeds, the last known conversations count as held
                self._observers.log.warning("the spool cannot be read; next try in %g s", POLL, exc_info=True)


# Theory of operation: a conversation in the spool's file, while the drain runs.
#
#   waiting   Deliveries of it wait, and no turn has its lease.
#   offered   A turn has the lease, and offers its oldest deliveries to the sink: all at once, as one chain, to a sink with
#             chains; one after the other to another sink. After a failure it offers the first one alone.
#   settling  The sink has stored the first of them, or all; the file learns it, in one transaction.
#   pausing   The sink did not store one: the conversation waits, longer after each failure.
#   (absent)  No delivery of it waits.
#
# waiting -> offered     claimed, with those of other conversations, TOGETHER at most
# offered -> settling    the sink stored at least the first
# offered -> pausing     it did not
# settling -> offered    all that were offered are stored, and others wait: they are next, under the same lease
# settling -> waiting    the same after IN_A_ROW times: other conversations go first
# settling -> pausing    one was not stored
# settling -> absent     none is left
# offered -> waiting     the spool is left: the lease is given back
#
# What must always hold:
# - A delivery is settled only after the sink has stored it, and after those before it are settled: none is dropped.
# - One turn offers in order, and the sink stores none before those in front of it. Two turns of one conversation at a time,
#   after a lease that expired, do no harm: each begins with the oldest that is not settled, and the sink recognises keys.
# - AT_HAND deliveries are in memory at most, however many the file has.


class _Drain:
    """Forwards the deliveries in a spool's file to the sink, several conversations at once, each in order."""

    def __init__(self, backlog: Backlog, sink: Sink, *, clock: Clock, budget: float, observers: Observers) -> None:
        self._backlog = backlog
        self._accept: Callable[..., Awaitable[bool | OtherContent]] = sink.accept
        self._chained = "chain" in signature(sink.accept).parameters
        self._clock = clock
        self._budget = budget
        self._observers = observers
        self._log = observers.log
        self._at_hand = 0
        self._turn_ended = anyio.Event()

    async def run(self) -> None:
        """Forward deliveries until cancelled."""
        pause = FIRST_PAUSE
        async with anyio.create_task_group() as turns:
            while True:
                try:
                    await self._claim(turns)
                    pause = FIRST_PAUSE
                except Exception:
                    self._log.exception("no deliveries could be read from the spool; next try in %g s", pause)
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    async def _claim(self, turns: TaskGroup) -> None:
        """Begin turns of conversations that are ready; unless all are begun, wait until more may be."""
        while self._at_hand > AT_HAND - TOGETHER:
            self._turn_ended = anyio.Event()
            await self._turn_ended.wait()
        conversations: dict[str, list[Claim]] = {}
        claims = await self._backlog.claim(TOGETHER)
        self._at_hand += len(claims)
        for claim in claims:
            conversations.setdefault(claim.conversation, []).append(claim)
        for of_one in conversations.values():
            turns.start_soon(self._turn, of_one)
        if len(claims) < TOGETHER:
            await self._backlog.wait()

    async def _turn(self, claims: Sequence[Claim]) -> None:
        """Offer the claimed deliveries of one conversation, then the next ones; settle those that are stored."""
        try:
            for left in reversed(range(IN_A_ROW)):
                stored, error = await self._offer(claims)
                more = 1 if error is not None else len(claims) if left else 0
                following: Sequence[Claim] = claims
                if stored:
                    following = await self._record(partial(self._backlog.done, claims[:stored], more=more))
                if error is not None:
                    await self._pause(claims[stored], error)
                    break
                if not following:
                    break
                self._at_hand += len(following) - len(claims)
                claims = following
        except LeaseLost:
            pass  # another turn, or another process, forwards them
        except Exception:
            self._log.exception("deliveries in the spool could not be forwarded; next try when their lease has expired")
        except BaseException:
            with anyio.CancelScope(shield=True), self._clock.scope(GRACE), suppress(Exception):
                await self._backlog.release(claims[0])
            raise
        finally:
            self._at_hand -= len(claims)
            self._turn_ended.set()

    async def _pause(self, claim: Claim, error: BaseException) -> None:
        pause = FOREVER.pause(claim.attempt) or FOREVER.most
        failure = failure_of(error)
        await self._record(lambda: self._backlog.retry(claim, error=failure.trace, pause=pause))
        text = "event %s stays in the spool, and is offered to the sink again in %.2g s: %s"
        extra = {"rbim_key": claim.key}
        self._log.warning(text, claim.key, pause, failure.line, exc_info=failure.shown, extra=extra)

    async def _offer(self, claims: Sequence[Claim]) -> tuple[int, BaseException | None]:
        """Offer deliveries to the sink; return how many of the first ones it has stored, and why it has not the next."""
        if not self._chained:
            return await self._offer_one_by_one(claims, self._accept)
        if len(claims) == 1 or claims[0].attempt > 1:
            return await self._offer_one_by_one(claims[:1], partial(self._accept, chain=Chain()))
        return await self._offer_at_once(claims)

    async def _offer_at_once(self, claims: Sequence[Claim]) -> tuple[int, BaseException | None]:
        chain, following = Chain(), iter(range(len(claims)))
        stored: set[int] = set()
        errors: dict[int, BaseException] = {}

        async def offer_next() -> None:
            number = next(following)  # in order, whichever task begins first
            code = ForeignCode()
            try:
                self._stored(await self._accept(_delivery(claims[number]), chain=chain))
                stored.add(number)
            except BaseException as error:
                if not code.failed(error):
                    raise
                chain.fail(error)
                errors[number] = error

        with self._clock.scope(self._budget):
            async with anyio.create_task_group() as tasks:
                for _ in claims:
                    tasks.start_soon(offer_next)
        first = next((number for number in range(len(claims)) if number not in stored), None)
        return (len(claims), None) if first is None else (first, errors.get(first) or self._too_slow())

    async def _offer_one_by_one(
        self, claims: Sequence[Claim], accept: Callable[[Delivery], Awaitable[object]]
    ) -> tuple[int, BaseException | None]:
        until = self._clock.monotonic() + LONGEST_TURN
        for number, claim in enumerate(claims):
            if number and self._clock.monotonic() >= until:
                return number, None
            code = ForeignCode()
            try:
                with self._clock.scope(self._budget) as scope:
                    self._stored(await accept(_delivery(claim)))
            except BaseException as error:
                if not code.failed(error):
                    raise
                return number, error
            if scope.cancelled_caught:
                return number, self._too_slow()
        return len(claims), None

    def _stored(self, result: object) -> None:
        if isinstance(result, OtherContent):
            receiver, key, problem = self._observers.receiver, result.key, result.problem
            self._observers.notify(Quarantined(receiver=receiver, key=key, problem=problem, other_content=True))

    def _too_slow(self) -> TimeoutError:
        return TimeoutError(f"the sink took longer than {self._budget:g} s")

    async def _record(self, record: Callable[[], Awaitable[T]]) -> T:
        """Record a result in the file, with retries until that succeeds. Raises LeaseLost."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await record()
            except LeaseLost:
                raise
            except Exception:
                self._log.exception("what the sink stored could not be recorded in the spool; next try in %g s", pause)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _delivery(claim: Claim) -> Delivery:
    return delivery_of(claim.body, app_id=claim.app_id, received=claim.received)
