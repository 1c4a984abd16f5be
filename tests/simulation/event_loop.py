"""An asyncio event loop on virtual time.

A turn runs what is ready. While nothing is, time jumps to the next timer. Between tasks that are ready in one turn the order
is drawn, and sometimes one of them waits for a turn: any program must bear both. All else is asyncio's own code.
"""

import asyncio
import hashlib
import heapq
import itertools
from collections.abc import MutableSet
from contextvars import Context
from typing import Any

from anyio._backends import _asyncio as anyio_backend

from rbim.callbacks.inbox.stored import _StoredBacklog
from rbim.callbacks.worker.worker import _Run
from rbim.client.shared import SharedState
from rbim.emulator.copies.copier import Copier

from .process import current_process
from .virtual_time import TIME, Stuck

TURN = 2e-6
"""Seconds that a turn takes in which something ran."""

IDLE_TURNS = 3
"""Turns in which only anyio's repeated cancellations run, after which time jumps."""

SLOW = 0.1
"""Share of the mixed turns in which one task has to wait for the next turn."""


class OrderedSet(MutableSet[Any]):
    """A set in the order of insertion: the order of a plain one depends on addresses and on the hash seed."""

    def __init__(self):
        self._members = {}

    def __contains__(self, member):
        return member in self._members

    def __iter__(self):
        return iter(tuple(self._members))

    def __len__(self):
        return len(self._members)

    def add(self, value):
        self._members[value] = None

    def discard(self, value):
        self._members.pop(value, None)


class SimulatedTask(asyncio.Task[Any]):
    """A task with a number, which is its hash: asyncio and anyio keep tasks in sets."""

    numbers = itertools.count()

    def __init__(self, *args, **options):
        self.number = next(SimulatedTask.numbers)
        super().__init__(*args, **options)

    def __hash__(self):
        return self.number


class Loop(asyncio.BaseEventLoop):
    """asyncio without a selector.

    ``mixing`` is the share of turns whose tasks are put into another order, drawn from ``order``. The run is :class:`Stuck`
    when nothing can ever run again, after ``most_steps``, or when virtual time is past ``until``.
    """

    def __init__(self, order, *, mixing, until=1e6, most_steps=20_000_000):
        super().__init__()
        self._order, self._mixing = order, mixing
        self._until, self._most_steps = until, most_steps
        self._idle_turns = 0
        self.steps = 0
        self.digest = hashlib.blake2b(digest_size=8)
        self._buried = []
        self.set_task_factory(self._make_task)

    @staticmethod
    def _make_task(loop, coroutine, **options):
        task = SimulatedTask(coroutine, loop=loop, **options)
        context = options.get("context")
        process = current_process.get() if context is None else context.get(current_process)
        if process is not None:
            process.keep(task)
        return task

    def trace(self, *facts):
        """Make facts part of the run's digest, by which two runs are compared."""
        self.digest.update(repr((round(TIME.now, 9), *facts)).encode())

    def time(self):
        return TIME.now

    def _write_to_self(self):
        """Wake the selector: there is none."""

    def _process_events(self, event_list):
        """Handle the selector's events: there are none."""

    def _run_once(self):
        ready, timers = self._ready, self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        self._pass_time(ready, timers)
        if TIME.now > self._until or self.steps > self._most_steps:
            raise Stuck(f"not at its end after {TIME.now:.1f} s and {self.steps} steps")
        while timers and timers[0]._when <= TIME.now:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        turn = list(ready)
        ready.clear()
        if len(turn) > 1 and self._mixing and self._order.random() < self._mixing:
            self._mix(turn)
        TIME.sleeps = 0
        for handle in turn:
            self._step(handle)

    def _pass_time(self, ready, timers):
        # anyio calls `_deliver_cancellation` at every turn while something shielded goes on: that is no work
        deliver = anyio_backend.CancelScope._deliver_cancellation
        idle = all(each._cancelled or getattr(each._callback, "__func__", None) is deliver for each in ready)
        self._idle_turns = self._idle_turns + 1 if idle else 0
        if not idle or (ready and self._idle_turns <= IDLE_TURNS):
            TIME.now += TURN
        elif timers:
            TIME.now = max(TIME.now, timers[0]._when)
        else:
            raise Stuck(f"at {TIME.now:.3f} s nothing can run and nothing waits for a time")

    def _step(self, handle):
        if handle._cancelled:
            return
        process = handle._context.get(current_process)
        if process is not None and not process.may_step():
            self._buried.append(handle)  # kept: a coroutine that nobody refers to is closed, which would run its `finally`
            return
        if process is not None and process.frozen_until > TIME.now:
            self.call_at(process.frozen_until, self._ready.append, handle, context=Context())
            return
        self.steps += 1
        handle._run()

    def _mix(self, turn):
        """Let the steps of tasks change places; what is no task's step stays where it is."""
        places = [at for at, each in enumerate(turn) if isinstance(getattr(each._callback, "__self__", None), asyncio.Task)]
        if len(places) < 2:
            return
        steps = [turn[at] for at in places]
        self._order.shuffle(steps)
        for at, step in zip(places, steps, strict=True):
            turn[at] = step
        if self._order.random() < SLOW:
            self._ready.append(turn.pop(self._order.choice(places)))


def install():
    """Make the order of sets over which anyio and rbim iterate independent of addresses."""
    for owner, name in (
        (anyio_backend.CancelScope, "_child_scopes"),
        (SharedState, "scopes"),
        (Copier, "_active"),
        (_StoredBacklog, "_waiting"),
        (_Run, "_leased"),
    ):
        _order(owner, name)


def _order(owner, name):
    init = owner.__init__

    def ordered(self, *args, **options):
        init(self, *args, **options)
        if not isinstance(getattr(self, name), MutableSet):
            raise TypeError(f"{owner.__name__}.{name} is no set any more: take it out of this list")
        setattr(self, name, OrderedSet())

    owner.__init__ = ordered
