"""Metrics of callbacks: the results and durations of a receiver's responses and of its worker's handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.callbacks.observers import (
    Accepted,
    DeadLettered,
    Handled,
    HandlingFailed,
    LoopBlocked,
    OldToken,
    Quarantined,
    Refused,
    Skewed,
    Spooled,
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
        dead = meter.create_counter("rbim.worker.dead_letters", "{event}", "Events that became dead letters.")
        blocked = meter.create_counter(
            "rbim.worker.blocked", "{step}", "Steps of async handlers that blocked the event loop for too long."
        )
        self._of_handlers = {HandlingFailed: (failed,), DeadLettered: (failed, dead), LoopBlocked: (blocked,)}

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
            case Quarantined() | OldToken():
                (self._old if isinstance(observation, OldToken) else self._quarantined).add(1, about)
            case Handled(elapsed=elapsed):
                self._handled.record(elapsed, about)
            case HandlingFailed(handler=handler) | DeadLettered(handler=handler) | LoopBlocked(handler=handler):
                for counter in self._of_handlers[type(observation)]:
                    counter.add(1, _by_handler(about, handler))
            case _:
                pass  # starts and ends: they have spans only


def _by_handler(about: Attributes, handler: str) -> Attributes:
    return {**about, "rbim.handler": handler} if handler else about
