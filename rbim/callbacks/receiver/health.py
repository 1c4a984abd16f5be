"""The health of a receiver, as a value and as an HTTP answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import asdict, frozen

from rbim._support.json import dumps
from rbim._support.text import one_line
from rbim.callbacks.receiver.replies import Reply

if TYPE_CHECKING:
    from rbim.callbacks.inbox.protocols import Counts
    from rbim.callbacks.observers import ReceiverLog
    from rbim.clock import Clock

__all__ = ["Health", "read_queue", "reply_of"]

READ_LIMIT = 1.0  # seconds for counting the waiting events
MOST_OF_LINE = 300


@frozen(kw_only=True)
class Health:
    """The health of a receiver now; see :meth:`Receiver.health`.

    ``accepting``: deliveries are stored. It is False outside the ``async with`` block, while the receiver restarts, and for
    10 seconds after a delivery was answered 503. ``handling``: the worker runs, and no handler blocks its own event loop
    (``own_thread=True``) for long; None without handlers. ``waiting``: events
    that wait for a handler, ``lag``: seconds since the oldest of them was received; both None if the sink does not count
    them, or not within a second. ``restarts``: of the worker and of the receiver, after they ended by themselves.
    ``error``: the last error that concerned all events, as one line ("" without one); it may be over.
    """

    accepting: bool
    handling: bool | None
    waiting: int | None
    lag: float | None
    restarts: int
    error: str

    @property
    def ok(self) -> bool:
        """Whether deliveries are stored and, with handlers, handled."""
        return self.accepting and self.handling is not False


@runtime_checkable
class _Counting(Protocol):
    async def counts(self) -> Counts: ...

    async def lag(self) -> float: ...


async def read_queue(sink: object, clock: Clock, log: ReceiverLog) -> tuple[int | None, float | None, str]:
    """Return the number of events that wait in a sink, the age of the oldest in seconds, and the error of reading them."""
    if not isinstance(sink, _Counting):
        return None, None, ""
    waiting: int | None = None
    lag: float | None = None
    try:
        with clock.scope(READ_LIMIT):
            waiting, lag = (await sink.counts()).waiting, await sink.lag()
    except Exception as error:
        log.warning("the waiting events could not be counted", exc_info=True)
        return None, None, one_line(f"{type(error).__name__}: {error}", MOST_OF_LINE)
    return waiting, lag, ""


def reply_of(health: Health) -> Reply:
    """Return the answer of the health door: 200 or 503, with JSON. It has no error text, since anyone may ask."""
    facts = {name: value for name, value in asdict(health).items() if name != "error"}
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    return Reply(200 if health.ok else 503, dumps({"ok": health.ok, **facts}), headers=headers)
