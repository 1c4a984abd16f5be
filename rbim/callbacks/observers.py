"""Observations of a receiver and its worker: frozen, without tokens or message texts, and their log.

Each has the ``receiver``'s name ("" without one). The text of a handler's exception is included, with whatever it quotes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, frozen

from rbim.callbacks.signature import Reason
from rbim.observers import LoggingObserver, Notifier, Observation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rbim.callbacks.signature import Key
    from rbim.observers import Observer

__all__ = [
    "Accepted",
    "DeadLettered",
    "DeliveryEnded",
    "DeliveryStarted",
    "Handled",
    "HandlingEnded",
    "HandlingFailed",
    "HandlingStarted",
    "HungHandler",
    "LoopBlocked",
    "NotEntered",
    "Observers",
    "OldToken",
    "PartEnded",
    "PartRestarted",
    "Quarantined",
    "ReceiverLog",
    "Refused",
    "RetriedAlone",
    "Skewed",
    "Spooled",
]

logger = logging.getLogger("rbim.callbacks")

SKEW_LOG_PAUSE = 60.0  # seconds between two records on skewed deliveries, at least: a wrong clock affects every delivery


@frozen(kw_only=True)
class _OfReceiver(Observation):
    """The field of all."""

    receiver: str = field(default="", repr=False)

    @property
    def source(self) -> str:
        return f"receiver {self.receiver}: " if self.receiver else ""


@frozen(kw_only=True)
class _OfEvent(_OfReceiver):
    """The fields of all that is about handling an event."""

    key: str
    attempt: int
    event: str = ""
    handler: str = ""
    app_id: str = ""


@frozen(kw_only=True)
class DeliveryStarted(_OfReceiver):
    """A delivery has begun to arrive. For observers only, like the three that follow: none of them is logged.

    Each is followed by its ``Ended``, also after errors and cancellation. Both are given in the task, and in the context,
    that runs the delivery or the handler: a context variable that an observer sets at the start is seen by the handler,
    also by a plain function in a thread, and can be reset at the end.
    """


@frozen(kw_only=True)
class DeliveryEnded(_OfReceiver):
    """The answer to a delivery is known, and is sent next.

    ``key`` is None if the delivery was refused or is a probe, ``status`` if there is no answer: cancelled, or the client has
    disconnected. ``elapsed`` is in seconds.
    """

    ENDS = True

    key: str | None
    status: int | None
    elapsed: float


@frozen(kw_only=True)
class HandlingStarted(_OfEvent):
    """A handler is called next. ``event``: the name of the event's class; ``handler``: the function's qualified name."""


@frozen(kw_only=True)
class HandlingEnded(_OfEvent):
    """A handler has ended; its result is recorded next. ``elapsed`` is in seconds. The other fields as at its start.

    ``error`` is None if it succeeded or was ``cancelled``, as by the end of the worker; then it is called again.
    """

    ENDS = True

    elapsed: float
    error: BaseException | None
    cancelled: bool


@frozen(kw_only=True)
class Accepted(_OfReceiver):
    """A delivery was answered 200; ``new`` is False if its event was accepted before. ``elapsed`` is in seconds."""

    LEVEL = logging.INFO

    key: str
    new: bool
    elapsed: float

    def __str__(self) -> str:
        return f"accepted{'' if self.new else ' again'}: {self.key}: {self.elapsed * 1000:.1f} ms"


@frozen(kw_only=True)
class Refused(_OfReceiver):
    """A delivery was refused; ``detail`` explains the ``reason`` without secrets."""

    LEVEL = logging.WARNING

    reason: Reason
    detail: str

    @property
    def level(self) -> int:
        """DEBUG if it is for the time alone: a :class:`Skewed` comes before."""
        return logging.DEBUG if self.reason in (Reason.STALE, Reason.FUTURE) else logging.WARNING

    def __str__(self) -> str:
        return f"refused: {self.reason}: {self.detail}"


@frozen(kw_only=True)
class Skewed(_OfReceiver):
    """The time of an authentic delivery is outside the limits: one of the two clocks is wrong, or it was held up.

    ``skew`` is the seconds by which this machine's clock is ahead of the delivery's ``CurTime`` (negative: behind it).
    ``accepted`` is whether the delivery passed this check all the same; if not, a :class:`Refused` follows.
    """

    LEVEL = logging.WARNING

    skew: float
    accepted: bool

    def __str__(self) -> str:
        direction = "ahead of" if self.skew > 0 else "behind"
        result = "accepted" if self.accepted else "refused"
        return (
            f"{result} for its time: this machine's clock is {abs(self.skew):.1f} s {direction} the CurTime of an authentic"
            " delivery; check this machine's clock"
        )


@frozen(kw_only=True)
class OldToken(_OfReceiver):
    """A delivery was signed with an older token of the application: the token rotation is not finished."""

    LEVEL = logging.WARNING

    key: Key

    def __str__(self) -> str:
        return f"signed with an older token: {self.key}"


@frozen(kw_only=True)
class Quarantined(_OfReceiver):
    """An authentic delivery is stored but will not be handled; ``problem`` is the reason.

    ``other_content``: it can be read, but its key is that of an event with other content.
    """

    LEVEL = logging.WARNING

    key: str
    problem: str
    other_content: bool = False

    def __str__(self) -> str:
        return f"in quarantine: {self.key}: {self.problem}"


@frozen(kw_only=True)
class Spooled(_OfReceiver):
    """The sink was too slow or failed (``why``). ``kept``: the spool stored the delivery; otherwise the answer was 503."""

    LEVEL = logging.WARNING

    key: str
    why: str
    kept: bool

    def __str__(self) -> str:
        return f"{'spooled' if self.kept else 'answered 503'}: {self.key}: {self.why}"


@frozen(kw_only=True)
class Handled(_OfReceiver):
    """A handler succeeded, and the success is recorded. ``elapsed`` is in seconds."""

    LEVEL = logging.DEBUG

    key: str
    attempt: int
    elapsed: float


@frozen(kw_only=True)
class _Failure(_OfEvent):
    """The fields of a failed attempt."""

    error: str
    trace: str = field(default="", repr=False)
    exception: BaseException | None = field(default=None, repr=False, eq=False)

    def following(self) -> str:
        """Return the traceback."""
        return self.trace

    @property
    def _facts(self) -> str:
        handler = f" of {self.handler}" if self.handler else ""
        return f"{self.key}: attempt {self.attempt}{handler}: {self.error}"


@frozen(kw_only=True)
class HandlingFailed(_Failure):
    """A handler failed; the next attempt follows after ``pause`` seconds.

    ``error`` is one line, ``trace`` the traceback, ``exception`` the exception if a log can show it. ``event``, ``handler``
    and ``app_id`` as in :class:`HandlingStarted`.
    """

    LEVEL = logging.WARNING

    pause: float

    def __str__(self) -> str:
        return f"failed: {self._facts}; again in {self.pause:.2g} s"


@frozen(kw_only=True)
class LoopBlocked(_OfReceiver):
    """An async handler has blocked the event loop for ``seconds`` in one step; answers and other handlers waited meanwhile.

    Make the handler a plain ``def``, which runs in a thread.
    """

    LEVEL = logging.ERROR

    handler: str
    seconds: float

    def __str__(self) -> str:
        return (
            f"the async handler {self.handler} has blocked the event loop for {self.seconds:.1f} s, and answers waited for"
            " it: make it a plain def, which runs in a thread"
        )


@frozen(kw_only=True)
class DeadLettered(_Failure):
    """An event became a dead letter after its last attempt. Fields as in :class:`HandlingFailed`.

    ``event`` and ``handler`` are empty if no handler could be called. ``crashes`` is above 0 if it was not for a failure:
    so many times its process died while it was handled.
    """

    LEVEL = logging.ERROR

    crashes: int = 0

    def __str__(self) -> str:
        return f"given up: {self._facts}"


@frozen(kw_only=True)
class RetriedAlone(_OfReceiver):
    """An event had begun when its process or its worker died, ``crashes`` times by now; it is handled again.

    ``alone``: nothing else is handled beside it. Otherwise other handlers did not end within the worker's ``timeout``.
    """

    LEVEL = logging.WARNING

    key: str
    crashes: int
    alone: bool
    app_id: str

    def __str__(self) -> str:
        beside = "with nothing else" if self.alone else "beside handlers that do not end"
        return (
            f"event {self.key}: its process or its worker ended while it was handled ({self.crashes} times by now); it is"
            f" handled again, {beside}"
        )


@frozen(kw_only=True)
class HungHandler(_OfEvent):
    """A plain function has run for longer than ``seconds``, the worker's ``timeout``, and cannot be stopped. Reported once.

    Its conversation waits, and it holds one of the worker's places until it ends. Give the calls in it time-outs of their
    own. ``event``, ``handler`` and ``app_id`` as in :class:`HandlingStarted`.
    """

    LEVEL = logging.ERROR

    seconds: float

    def __str__(self) -> str:
        return f"the function {self.handler} has run for more than {self.seconds:g} s and cannot be stopped: {self!r}"


@frozen(kw_only=True)
class PartEnded(_OfReceiver):
    """A part of the receiver ended by itself; it is started again after ``pause`` seconds.

    ``part``: "worker" (no event is handled meanwhile), "sink" (and deliveries go into the overflow file, or are answered
    503 without one) or "receiver" (no delivery is accepted). ``error`` is one line.
    """

    LEVEL = logging.ERROR

    part: Literal["worker", "sink", "receiver"]
    error: str
    pause: float
    exception: BaseException | None = field(default=None, repr=False, eq=False)

    def __str__(self) -> str:
        effect = {
            "worker": "no events are handled",
            "sink": "deliveries go into the overflow file (without one: are answered 503), and no events are handled",
            "receiver": "deliveries are answered 503",
        }[self.part]
        return (
            f"the {self.part} ended with an error: {effect} until it is started again, in {self.pause:.2g} s: {self.error}"
        )


@frozen(kw_only=True)
class PartRestarted(_OfReceiver):
    """A part that ended by itself runs again. ``part`` as in :class:`PartEnded`; ``restarts`` counts them."""

    LEVEL = logging.WARNING

    part: Literal["worker", "sink", "receiver"]
    restarts: int

    def __str__(self) -> str:
        return f"the {self.part} runs again (restarts: {self.restarts})"


@frozen(kw_only=True)
class NotEntered(_OfReceiver):
    """A delivery came to a receiver that was never entered, and was answered 503, as all others will be. Reported once."""

    LEVEL = logging.ERROR

    def __str__(self) -> str:
        return (
            "the receiver was not entered: it answers 503 to every delivery. Enter it in the lifespan of the application"
            " that mounts it (`async with receiver: yield`), or serve receiver.asgi by a server with lifespan events"
            " (uvicorn --lifespan on)"
        )


class ReceiverLog(logging.LoggerAdapter[logging.Logger]):
    """The logger ``rbim.callbacks``, with a receiver's name before the text and as ``rbim_receiver`` of each record."""

    def __init__(self, receiver: str) -> None:
        super().__init__(logger, {"rbim_receiver": receiver})
        self._receiver = receiver

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        """Log a record; ``extra`` is added to the receiver's."""
        if self.isEnabledFor(level):
            options["extra"] = {"rbim_receiver": self._receiver, **(options.get("extra") or {})}
            if self._receiver:
                msg, args = f"receiver %s: {msg}", (self._receiver, *args)
            options["stacklevel"] = options.get("stacklevel", 1) + 1
            self.logger.log(level, msg, *args, **options)


class _ReceiverLogging(LoggingObserver):
    """Logs to ``rbim.callbacks``; of :class:`Skewed` one record a minute, with the number of those left out."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__(logger)
        self._monotonic = monotonic
        self._skew_logged: float | None = None
        self._left_out = 0

    def __call__(self, observation: Observation, /) -> None:
        """Log an observation."""
        if not isinstance(observation, Skewed):
            super().__call__(observation)
            return
        now = self._monotonic()
        if self._skew_logged is not None and now - self._skew_logged < SKEW_LOG_PAUSE:
            self._left_out += 1
            return
        left_out, self._left_out, self._skew_logged = self._left_out, 0, now
        text = "%s%s (and %d more since the last record)"
        self.logger.log(logging.WARNING, text, observation.source, observation, left_out, extra=observation.record())


class Observers(Notifier):
    """The observers of a receiver and its worker; the first one is the log ``rbim.callbacks``.

    ``monotonic`` returns seconds; ``receiver`` is its name. Each observation has the name; those who notify do not give it.
    """

    def __init__(
        self, observers: Iterable[Observer] = (), monotonic: Callable[[], float] = time.monotonic, *, receiver: str = ""
    ) -> None:
        listed = (_ReceiverLogging(monotonic), *observers)
        super().__init__(listed, ReceiverLog(receiver), {"receiver": receiver})
