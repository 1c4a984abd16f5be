"""Carrying out what waits to be copied: attempts within their limit, what follows a failure, how many at once.

Nothing here runs by itself: :meth:`Dispatch.running` delivers while its block runs. How time passes meanwhile is told in
:mod:`rbim.emulator.copies.copier`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint
from attrs import define

from rbim._support import json as jsontext
from rbim.emulator.clock import ROUNDS, SLEEPERS, EmulatedClock
from rbim.emulator.copies.log import OK, DeliveryAttempt, DeliveryLog
from rbim.emulator.copies.messages import milliseconds
from rbim.emulator.copies.queue import DeliveryQueues, QueuedDelivery
from rbim.emulator.copies.targets import NoAnswer, open_sender, signed
from rbim.emulator.faults.copies import CopyInjection, injection_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from rbim.clock import Clock
    from rbim.credentials import Credentials
    from rbim.dialect import Dialect
    from rbim.emulator.copies.targets import Courier, Destination, Headers

__all__ = ["LIMIT", "Dispatch"]

LIMIT = 5.0
"""The seconds in which a receiver must answer (Limits, callback answer time)."""

LEEWAY = 1.0  # seconds by which a transport's own time-out is longer than the limit, so that the limit is what counts
RESENT = {"resendFlag": "1"}


class _Sleepers(set[object]):
    """Who waits for emulated time; says when there is one more."""

    def __init__(self, say: Callable[[], None]) -> None:
        super().__init__()
        self._say = say

    def add(self, element: object, /) -> None:
        super().add(element)
        self._say()


@define(eq=False)
class _Flight:
    """An attempt under way; ``others`` are those of the same block, ``sleepers`` who of it waits for emulated time."""

    parcel: QueuedDelivery
    courier: Courier
    others: set[_Flight]
    sleepers: _Sleepers


class Dispatch:
    """Delivers the parcels of its ``lanes`` to what it aims at; ``deliveries`` tells what became of them."""

    def __init__(self, clock: Clock, dialect: Dialect, credentials: Credentials) -> None:
        self.lanes = DeliveryQueues()
        self.deliveries = DeliveryLog()
        self._clock = clock
        self._dialect = dialect
        self._credentials = credentials
        self._aim: Destination | None = None
        self._patience = 0.0
        self._flights: set[_Flight] = set()
        self._changes = 0
        self._waiting: set[anyio.Event] = set()

    @property
    def aim(self) -> Destination | None:
        """Where copies go; None: nowhere, and what waits is dropped."""
        return self._aim

    @aim.setter
    def aim(self, aim: Destination | None) -> None:
        self._aim = aim
        if aim is None:
            self.lanes.clear()
        else:
            self._patience = aim.patience
        self.changed()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Deliver while the block runs; at its end, what is due then. An error in the block leaves the rest waiting."""
        flights: set[_Flight] = set()
        failure: BaseException | None = None
        try:
            async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
                tasks.start_soon(self._pump, tasks, stack, flights)
                yield
                await self._finish()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            failure = _bare(group)
        finally:
            for flight in flights:  # cut off: its parcel waits as before
                self._again(flight.parcel, 0.0)
            self._flights -= flights
            self.changed()
        if failure is not None:
            raise failure

    async def advance(self, clock: EmulatedClock, seconds: float) -> None:
        """Let time pass on an emulated clock and deliver what falls due, each at its own time."""
        until = clock.after(seconds)
        async with self.running():
            while True:
                await self._calm()
                due = clock.next_due()
                if due is None or due > until:
                    break
                await clock.advance(max(0.0, due - clock.elapsed))
            await clock.advance(max(0.0, until - clock.elapsed))

    async def _pump(self, tasks: TaskGroup, stack: AsyncExitStack, flights: set[_Flight]) -> None:
        """Send out what is due, as many at once as may be, until cancelled."""
        aimed: tuple[Destination, Courier] | None = None
        while True:
            aim, now = self._aim, self._clock.monotonic()
            due = self.lanes.next_due()
            if aim is None or due is None or len(self._flights) >= aim.concurrency:
                await self._change(None)
            elif due > now:
                await self._change(due - now)
            elif aimed is None or aimed[0] is not aim:
                aimed = aim, await open_sender(aim, stack, timeout=LIMIT + LEEWAY)
            else:
                flight = _Flight(self.lanes.take(), aimed[1], flights, _Sleepers(self.changed))
                flights.add(flight)
                self._flights.add(flight)
                self.changed()
                await tasks.start(self._fly, flight)  # one by one: receivers are called in this order

    async def _fly(self, flight: _Flight, *, task_status: TaskStatus[None]) -> None:
        """Make one attempt, and decide whether there will be another."""
        SLEEPERS.set(flight.sleepers)
        task_status.started()
        parcel = flight.parcel
        verdict = injection_of(parcel.picked, parcel.attempt)
        headers, body = self._signed(parcel, verdict)
        taken = await self._carry(flight, headers, body, verdict)
        for duplicate in range(verdict.duplicates):
            await self._carry(flight, headers, body, verdict, duplicate=duplicate + 1)
        pauses = self._dialect.resend_after if self._aim is not None and self._aim.high else ()
        if taken or parcel.attempt > len(pauses):
            self.lanes.done(parcel)
        else:
            pause = pauses[parcel.attempt - 1]
            parcel.attempt += 1
            self._again(parcel, pause + injection_of(parcel.picked, parcel.attempt).delay)
        flight.others.remove(flight)
        self._flights.remove(flight)
        self.changed()

    def _again(self, parcel: QueuedDelivery, pause: float) -> None:
        if self._aim is None:
            self.lanes.done(parcel)
        else:
            self.lanes.back(parcel, self._clock.monotonic() + pause)

    def _signed(self, parcel: QueuedDelivery, verdict: CopyInjection) -> tuple[Headers, bytes]:
        body = parcel.content
        if parcel.attempt > 1 and parcel.document is not None:
            body = jsontext.dumps({**parcel.document, **RESENT})
        if parcel.stamp is None or self._dialect.resend_signed_anew:
            parcel.stamp = milliseconds(self._clock.now())
        headers = signed(body, self._credentials, parcel.stamp - round(verdict.stale * 1000))
        if verdict.tampered is not None:
            at = int(verdict.tampered * len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if body else b" "
        return headers, body

    async def _carry(
        self, flight: _Flight, headers: Headers, body: bytes, verdict: CopyInjection, *, duplicate: int = 0
    ) -> bool:
        """Carry one delivery, write it down, and tell whether it was taken."""
        parcel = flight.parcel
        began = self._clock.monotonic()
        status, reason = None, "cut off"
        try:
            with self._clock.scope(LIMIT) as scope:
                try:
                    status = await flight.courier(dict(headers), body)
                    reason = "" if status == OK else f"status {status}"
                except NoAnswer as error:
                    reason = str(error)
                except Exception as error:  # a receiver's own: a server would answer 500
                    reason = f"{type(error).__name__}: {error}"
            if scope.cancelled_caught:
                reason = f"timed out: no answer within {LIMIT:g} s"
        finally:
            self.deliveries.note(
                DeliveryAttempt(
                    at=began,
                    took=self._clock.monotonic() - began,
                    key=parcel.key,
                    number=parcel.number,
                    message_id=parcel.message_id,
                    attempt=parcel.attempt,
                    duplicate=duplicate,
                    status=status,
                    reason=reason,
                    trouble=verdict.names,
                    headers=headers,
                    body=body,
                )
            )
        return status == OK

    # Waiting.

    def changed(self) -> None:
        """Wake whoever waits for something to come, to go or to be done."""
        self._changes += 1
        for event in self._waiting:
            event.set()

    async def _change(self, seconds: float | None) -> None:
        """Wait until something comes, goes or is done, at most so many seconds of the emulator's clock."""
        event = anyio.Event()
        self._waiting.add(event)
        try:
            if seconds is None:
                await event.wait()
            else:
                with self._clock.scope(seconds):
                    await event.wait()
        finally:
            self._waiting.remove(event)

    def _is_busy(self) -> bool:
        """Tell whether something is under way, or due."""
        due = self.lanes.next_due()
        return bool(self._flights) or (self._aim is not None and due is not None and due <= self._clock.monotonic())

    async def _finish(self) -> None:
        """Wait until nothing is under way or due. Emulated time passes where what is under way waits for it."""
        while True:
            if isinstance(self._clock, EmulatedClock):
                await self._calm()
            if not self._is_busy():
                return
            if isinstance(self._clock, EmulatedClock):
                due = self._clock.next_due()
                await self._clock.advance(0 if due is None else max(0.0, due - self._clock.elapsed))
            else:
                await self._change(None)

    async def _calm(self) -> None:
        """Wait until nothing is under way, or all that is waits for emulated time; but no longer than ``patience``."""
        while True:
            changes = self._changes
            for _ in range(ROUNDS):
                await checkpoint()
            if changes != self._changes:
                continue
            if not self._is_busy() or (self._flights and all(flight.sleepers for flight in self._flights)):
                return
            with anyio.move_on_after(self._patience) as real:
                await self._change(None)
            if real.cancelled_caught:
                return


def _bare(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return what a task group's group is about: what is no cancellation, if anything is."""
    rest = group.split(anyio.get_cancelled_exc_class())[1]
    return (rest or group).exceptions[0]
