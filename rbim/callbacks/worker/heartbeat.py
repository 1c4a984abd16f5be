"""The heartbeat of a worker's event loop in a thread of its own: a handler that blocks it for long is seen from outside."""

from __future__ import annotations

import sys
import traceback
from math import isfinite
from time import monotonic
from typing import TYPE_CHECKING, Any

from rbim._support.event_loops import later
from rbim.callbacks.observers import HungHandler, LoopBlocked
from rbim.callbacks.worker.conversation import ConversationRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.callbacks.observers import Observers
    from rbim.callbacks.worker.supervision import Supervision

__all__ = ["Heartbeat"]

# Theory of operation: the worker's loop, as the loop of the receiver sees it. A timer here asks the loop there to call back.
#
#   beating   The last question was answered, or its answer is not late yet.
#   blocked   The answer is late: something in the loop does not let it go on. Reported once, with its stack.
#
# beating -> blocked   there is no answer after ``limit`` seconds of real time
# blocked -> beating   the answer came: reported with the time that it took
#
# What must always hold:
# - While it is blocked, no second worker begins beside it. Its leases expire, because only its loop renews them: workers of
#   other processes take its conversations over.
# - No lock is shared with the blocked thread.

LOOKS = 4  # at one question before it is late
SHORTEST_LIMIT = 1.0  # seconds: a busy machine holds up a loop for less


class Heartbeat:
    """Watches the loop of a worker's thread, from the event loop that calls :meth:`start`.

    A loop that does not go on for ``limit`` seconds (at least 1) is reported to ``supervision`` and ``observers``.
    """

    def __init__(self, limit: float, *, supervision: Supervision, observers: Observers) -> None:
        self._limit = max(limit, SHORTEST_LIMIT)
        self._supervision = supervision
        self._observers = observers
        self._cancel: Callable[[], object] = _nothing
        self._thread = 0
        self._call_soon: Callable[[Callable[[], object]], None] = _nothing
        self._asked = 0.0
        self._answered: float | None = None
        self._reported: HungHandler | None = None

    def start(self, thread: int, call_soon: Callable[[Callable[[], object]], None]) -> None:
        """Watch a thread, with the function that schedules a call in its loop."""
        self._thread, self._call_soon = thread, call_soon
        if isfinite(self._limit):
            self._ask()

    def stop(self) -> None:
        """Watch it no more."""
        self._cancel()
        self._cancel = _nothing
        self._supervision.blocked = False

    def _ask(self) -> None:
        self._asked, self._answered, self._reported = monotonic(), None, None
        self._call_soon(self._answer)
        self._cancel = later(self._limit / LOOKS, self._look)

    def _answer(self) -> None:
        self._answered = monotonic()  # in the other thread

    def _look(self) -> None:
        answered = self._answered
        if answered is not None:
            if self._reported is not None:
                self._goes_on(self._reported, answered - self._asked)
            self._ask()
            return
        if self._reported is None and monotonic() - self._asked >= self._limit:
            self._reported = self._hung()
            self._supervision.blocked, self._supervision.error = True, self._reported.summary
            self._observers.notify(self._reported)
        self._cancel = later(self._limit / LOOKS, self._look)

    def _goes_on(self, hung: HungHandler, seconds: float) -> None:
        self._supervision.blocked = False
        self._observers.log.warning("the event loop of the worker's thread goes on, after %.1f s", seconds)
        self._observers.notify(LoopBlocked(receiver=hung.receiver, handler=hung.handler, seconds=seconds, stack=hung.stack))

    def _hung(self) -> HungHandler:
        """Return the observation on what runs in the thread now; its handler is unknown if it is a task beside one."""
        frame: Any = sys._current_frames().get(self._thread)  # noqa: SLF001  # the documented way to another thread's frames
        stack = "".join(traceback.format_list(traceback.extract_stack(frame)))
        while frame is not None and frame.f_code is not ConversationRunner.attempt.__code__:
            frame = frame.f_back
        facts: dict[str, Any] = {"key": "", "attempt": 0, "event": "", "handler": "", "app_id": ""}
        if frame is not None:
            claim, call = frame.f_locals["claim"], frame.f_locals["call"]
            facts = {"key": claim.key, "attempt": claim.attempt, "event": call.event, "handler": call.handler}
            facts["app_id"] = claim.app_id
        return HungHandler(receiver=self._observers.receiver, seconds=self._limit, stack=stack, **facts)


def _nothing(*_: object) -> None:
    pass
