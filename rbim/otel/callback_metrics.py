"""Metrics of callbacks: the results and durations of a receiver's responses and of its worker's handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.callbacks.observers import (
    Accepted,
    DeadLettered,
    Handled,
    HandlingFailed,
    HungHandler,
    LoopBlocked,
    NotEntered,
    OldToken,
    PartEnded,
    PartRestarted,
    Quarantined,
    Refused,
    Skewed,
    Spooled,
    SuspectedOfCrash,
)
from rbim.otel.metrics import CALL_BUCKETS

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from rbim.callbacks.observers import Observation
    from rbim.otel.attributes import Attributes, CommonAttributes

__all__ = ["PLATFORM_TIMEOUT", "CallbackMetrics"]

PLATFORM_TIMEOUT = 5.0
"""Seconds after which the platform gives up a delivery (Delivery rules, 4)."""

HEADROOM_BUCKETS = (0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 4.75, 4.9, 4.95, 5.0)


class CallbackMetrics:
    """Records observations; called in the receiver's and in the worker's thread."""

    def __init__(self, meter: Meter, common: CommonAttributes) -> None:
        self._common = common
        self._deliveries = meter.create_counter("rbim.receiver.deliveries", "{delivery}", "Deliveries by result.")
        self._headroom = meter.create_histogram(
            "rbim.receiver.headroom",
            "s",
            "Time left of the platform's 5 seconds when a delivery was accepted.",
            explicit_bucket_boundaries_advisory=HEADROOM_BUCKETS,
        )
        self._spooled = meter.create_counter(
            "rbim.receiver.spooled", "{delivery}", "Deliveries saved in the overflow file only."
        )
        self._quarantined = meter.create_counter(
            "rbim.receiver.quarantined", "{delivery}", "Deliveries stored but not handled."
        )
        self._old = meter.create_counter("rbim.receiver.old_tokens", "{delivery}", "Deliveries signed with an older token.")
        self._skewed = meter.create_counter(
            "rbim.receiver.skewed", "{delivery}", "Authentic deliveries whose time is outside the limits."
        )
        self._handled = meter.create_histogram(
            "rbim.worker.handling.duration",
            "s",
            "Duration of successful attempts to handle an event.",
            explicit_bucket_boundaries_advisory=CALL_BUCKETS,
        )
        failed = meter.create_counter("rbim.worker.failures", "{attempt}", "Failed attempts to handle an event.")
        blocked = meter.create_counter(
            "rbim.worker.blocked", "{step}", "Steps of async handlers that blocked the event loop for too long."
        )
        hung = meter.create_counter("rbim.worker.hung", "{handler}", "Handlers that ran too long and cannot be stopped.")
        self._of_handlers = {HandlingFailed: failed, DeadLettered: failed, LoopBlocked: blocked, HungHandler: hung}
        self._dead = meter.create_counter("rbim.worker.dead_letters", "{event}", "Events that became dead letters.")
        self._crashes = meter.create_counter(
            "rbim.worker.crashes", "{event}", "Events that are handled again because a process died while it handled them."
        )
        self._ends = meter.create_counter(
            "rbim.receiver.ends", "{end}", "Times that the worker or the receiver ended by itself."
        )
        self._restarts = meter.create_counter(
            "rbim.receiver.restarts", "{restart}", "Times that the worker or the receiver was started again."
        )
        self._not_entered = meter.create_counter(
            "rbim.receiver.not_entered", "{receiver}", "Receivers that answer 503 because they were never entered."
        )

    def record(self, observation: Observation) -> None:
        """Record one observation."""
        about = self._common.of_metric("rbim.receiver", observation.receiver)
        match observation:
            case Accepted(new=new, elapsed=elapsed):
                self._deliveries.add(1, {**about, "rbim.result": "accepted" if new else "known"})
                self._headroom.record(max(0.0, PLATFORM_TIMEOUT - elapsed), about)  # 0: the platform has given up
            case Refused(reason=reason):
                self._deliveries.add(1, {**about, "rbim.result": "refused", "error.type": str(reason)})
            case Spooled(kept=True):
                self._spooled.add(1, about)
            case Spooled():
                self._deliveries.add(1, {**about, "rbim.result": "unavailable"})
            case Skewed(accepted=accepted):
                self._skewed.add(1, {**about, "rbim.result": "accepted" if accepted else "refused"})
            case Quarantined(other_content=other):
                self._quarantined.add(1, {**about, "rbim.reason": "other content" if other else "unreadable"})
            case OldToken():
                self._old.add(1, about)
            case _:
                self._record_of_parts(observation, about)

    def _record_of_parts(self, observation: Observation, about: Attributes) -> None:
        match observation:
            case Handled(elapsed=elapsed):
                self._handled.record(elapsed, about)
            case SuspectedOfCrash():
                self._crashes.add(1, about)
            case PartEnded(part=part) | PartRestarted(part=part):
                counter = self._ends if isinstance(observation, PartEnded) else self._restarts
                counter.add(1, {**about, "rbim.part": part})
            case NotEntered():
                self._not_entered.add(1, about)
            case _:
                self._record_of_handler(observation, about)

    def _record_of_handler(self, observation: Observation, about: Attributes) -> None:
        match observation:
            case DeadLettered(handler=handler, crashes=crashes):
                attributes = _by_handler(about, handler)
                self._dead.add(1, {**attributes, "rbim.reason": "crash" if crashes else "failure"})
                if not crashes:
                    self._of_handlers[DeadLettered].add(1, attributes)
            case HandlingFailed(handler=handler) | LoopBlocked(handler=handler) | HungHandler(handler=handler):
                self._of_handlers[type(observation)].add(1, _by_handler(about, handler))
            case _:
                pass  # starts and ends: they have spans only


def _by_handler(about: Attributes, handler: str) -> Attributes:
    return {**about, "rbim.handler": handler} if handler else about
