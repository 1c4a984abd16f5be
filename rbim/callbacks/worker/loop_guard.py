"""Async handlers in the event loop of the application: one that blocks must not hold up answers for longer than it must."""

from __future__ import annotations

import sys
import traceback
from math import isfinite
from threading import Event, Thread, get_ident
from typing import TYPE_CHECKING, Any

import anyio

from rbim._support.event_loops import backend, waker
from rbim.callbacks.observers import LoopBlocked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.observers import Observers
    from rbim.clock import Clock

__all__ = ["LoopGuard"]

# Theory of operation: the steps of async handlers. A step is what a handler does from one `await` that waits to the next;
# nothing else runs in the loop meanwhile.
#
#   open     Steps run as they come.
#   resting  Steps wait; answers and everything else in the loop go on. One step at a time follows.
#
# open -> resting   the steps of one turn of the loop took more than SHORT seconds together
# resting -> open   as much time has passed as they took, at most the budget
#
# What must always hold:
# - An answer waits for one step that is longer than SHORT, not for several in a row: after each the loop has as much time.
# - Nothing else makes a handler slower: while it waits, others run. Calls wait before they begin, where no timeout runs.
# - A cancellation ends a rest at once. What the handler has waited for is not lost: on trio it gets that first, and the
#   cancellation at its next checkpoint. On asyncio a wait that has succeeded can be cancelled, and its code expects that.

SHORT = 0.05
"""Seconds for which handlers may hold the loop in one turn without a rest."""

COUNTED = 0.001  # seconds of a step that counts: to measure turns for shorter ones would cost more than they do
POLLS = 3  # looks of the watch at one step before it reports it
LONGEST_LIMIT = 1.0  # seconds of a step that is not reported
SHORTEST_POLL = 0.01  # seconds


class LoopGuard:
    """Paces the steps of async handlers, and reports those that block for more than a quarter of ``budget`` seconds.

    Enter it in the event loop of the handlers; a thread of its own watches them until it is left.
    """

    def __init__(self, *, clock: Clock, observers: Observers, budget: float) -> None:
        self._clock = clock
        self._observers = observers
        self._budget = budget if isfinite(budget) else LONGEST_LIMIT * 4
        self._spent = 0.0  # seconds that the steps of this turn took
        self._open_at = 0.0
        self._queue = anyio.Lock()
        self.late_cancellations = False  # whether no wait that has succeeded may be cancelled
        self._call_soon: Callable[[Callable[[], object]], None] = _not_entered
        self._watch = _Watch(observers, min(self._budget / 4, LONGEST_LIMIT))

    async def __aenter__(self) -> Self:
        self._call_soon = waker()
        self.late_cancellations = backend() == "trio"
        self._watch.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._watch.stop()

    def steps_of(self, run: Callable[[], Awaitable[Any]], handler: str) -> Awaitable[Any]:
        """Return an awaitable that does what ``run()`` does, with a look at each step."""
        return _Steps(self, run, handler)

    @property
    def resting(self) -> bool:
        """Whether the next step must wait."""
        return self._clock.monotonic() < self._open_at

    async def rested(self) -> None:
        """Wait until a step may run."""
        async with self._queue:
            while (pause := self._open_at - self._clock.monotonic()) > 0:
                await self._clock.sleep(pause)

    def begin(self, handler: str) -> float:
        """Begin a step, and return the time."""
        self._watch.begin(handler)
        return self._clock.monotonic()

    def end(self, handler: str, began: float) -> None:
        """End the step."""
        stack = self._watch.end()
        now = self._clock.monotonic()
        took = now - began
        if took < COUNTED:
            return
        if not self._spent:
            self._call_soon(self._next_turn)
        self._spent += took
        if self._spent > SHORT:
            self._open_at, self._spent = now + min(self._spent, self._budget), 0.0
        if stack is not None:
            self._observers.notify(
                LoopBlocked(receiver=self._observers.receiver, handler=handler, seconds=took, stack=stack)
            )

    def _next_turn(self) -> None:
        self._spent = 0.0


class _Steps:
    """An awaitable that passes on what another one waits for, and everything that it is sent."""

    def __init__(self, guard: LoopGuard, run: Callable[[], Awaitable[Any]], handler: str) -> None:
        self._guard = guard
        self._run = run
        self._handler = handler

    def __await__(self) -> Generator[Any, Any, Any]:
        guard, handler = self._guard, self._handler
        steps = _called(self._run).__await__()
        value: Any = None
        error: BaseException | None = None
        begun = False
        while True:
            if guard.resting and error is None:
                try:
                    yield from guard.rested().__await__()
                except BaseException as raised:
                    if not (begun and guard.late_cancellations):
                        error = raised
            begun = True
            began = guard.begin(handler)
            try:
                wait = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as done:
                return done.value
            finally:
                error = None
                guard.end(handler, began)
            try:
                value = yield wait
            except BaseException as raised:  # for the handler
                error = raised


async def _called(run: Callable[[], Awaitable[Any]]) -> Any:
    return await run()


class _Watch:
    """A thread that sees a step which blocks, by its number, and logs where it blocks while it does."""

    def __init__(self, observers: Observers, limit: float) -> None:
        self._log = observers.log
        self._pause = max(limit / POLLS, SHORTEST_POLL)
        self._loop_thread = 0
        self._number = 0
        self._handler: str | None = None  # of the step that runs
        self._reported: tuple[int, str] | None = None  # number and stack
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        self._loop_thread = get_ident()
        self._stopped.clear()
        self._thread = Thread(target=self._run, name="rbim-loop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(1)

    def begin(self, handler: str) -> None:
        self._number += 1
        self._handler = handler

    def end(self) -> str | None:
        """Return the stack, if the step has been reported."""
        self._handler = None
        reported = self._reported
        return reported[1] if reported is not None and reported[0] == self._number else None

    def _run(self) -> None:
        seen, looks = 0, 0
        while not self._stopped.wait(self._pause):
            number, handler = self._number, self._handler
            looks = looks + 1 if handler is not None and number == seen else 0
            seen = number
            if handler is not None and looks == POLLS:
                self._report(number, handler)

    def _report(self, number: int, handler: str) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # noqa: SLF001  # the documented way to another thread's frames
        stack = traceback.extract_stack(frame)
        if number != self._number or self._handler is None:
            return  # it has just gone on
        inner = max((index + 1 for index, each in enumerate(stack) if each.filename == __file__), default=0)
        text = "".join(traceback.format_list(stack[inner:]))
        self._reported = (number, text)
        self._log.error(
            "the async handler %s has blocked the event loop for %.1f s, and answers wait for it: make it a plain def, which"
            " runs in a thread, or set Receiver(own_thread=True). It blocks here:\n%s",
            handler,
            self._pause * POLLS,
            text.rstrip(),
            extra={"rbim_observation": LoopBlocked.__name__, "rbim_handler": handler},
        )


def _not_entered(_: Callable[[], object]) -> None:
    raise RuntimeError("the guard is not entered")
