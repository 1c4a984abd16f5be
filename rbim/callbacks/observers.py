"""Observations for the observers of a receiver and its worker: frozen, without tokens or message texts.

Each has the ``receiver``'s name ("" without one). The text of a handler's exception is included, with whatever it quotes.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Literal

from attrs import field, fields, frozen

from rbim.callbacks.signature import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rbim.callbacks.signature import Key

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
    "Observation",
    "Observers",
    "OldToken",
    "PartEnded",
    "PartRestarted",
    "Quarantined",
    "ReceiverLog",
    "Refused",
    "Skewed",
    "Spooled",
    "SuspectedOfCrash",
]

logger = logging.getLogger("rbim.callbacks")

SKEW_LOG_PAUSE = 60.0
"""Seconds between two records on skewed deliveries, at least: a wrong clock affects every delivery."""


@frozen(kw_only=True)
class _Observed:
    """The fields of every observation."""

    receiver: str = field(default="", repr=False)  # records have it in front


@frozen(kw_only=True)
class DeliveryStarted(_Observed):
    """A delivery has begun to arrive. For observers only, like the three that follow: none of them is logged.

    Each is followed by its ``Ended``, also after errors and cancellation. Both are given in the task, and in the context,
    that runs the delivery or the handler: a context variable that an observer sets at the start is seen by the handler,
    also by a plain function in a thread, and can be reset at the end.
    """


@frozen(kw_only=True)
class DeliveryEnded(_Observed):
    """The answer to a delivery is known, and is sent next.

    ``key`` is None if the delivery was refused or is a probe, ``status`` if there is no answer: cancelled, or the client has
    disconnected. ``elapsed`` is in seconds.
    """

    key: str | None
    status: int | None
    elapsed: float


@frozen(kw_only=True)
class HandlingStarted(_Observed):
    """A handler is called next. ``event``: the name of the event's class; ``handler``: the function's qualified name.

    ``headers`` travelled with the event, if it was accepted on another machine: see ``JetStreamInbox(inject=...)``.
    """

    key: str
    attempt: int
    event: str
    handler: str
    app_id: str
    headers: Mapping[str, str] = field(factory=dict[str, str], repr=False)


@frozen(kw_only=True)
class HandlingEnded(_Observed):
    """A handler has ended; its result is recorded next. ``elapsed`` is in seconds.

    ``error`` is None if it succeeded or was ``cancelled``, as by the end of the worker; then it is called again.
    """

    key: str
    attempt: int
    elapsed: float
    error: BaseException | None
    cancelled: bool


@frozen(kw_only=True)
class Accepted(_Observed):
    """A delivery was answered 200; ``new`` is False if its event was accepted before. ``elapsed`` is in seconds."""

    key: str
    new: bool
    elapsed: float


@frozen(kw_only=True)
class Refused(_Observed):
    """A delivery was refused; ``detail`` explains the ``reason`` without secrets."""

    reason: Reason
    detail: str


@frozen(kw_only=True)
class Skewed(_Observed):
    """The time of an authentic delivery is outside the limits: one of the two clocks is wrong, or it was held up.

    ``skew`` is the seconds by which this machine's clock is ahead of the delivery's ``CurTime`` (negative: behind it).
    ``accepted`` is whether the delivery passed this check all the same; if not, a :class:`Refused` follows.
    """

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
class OldToken(_Observed):
    """A delivery was signed with an older token of the application: the token rotation is not finished."""

    key: Key


@frozen(kw_only=True)
class Quarantined(_Observed):
    """An authentic delivery is stored but will not be handled; ``problem`` is the reason.

    ``other_content``: it can be read, but its key is that of an event with other content.
    """

    key: str
    problem: str
    other_content: bool = False


@frozen(kw_only=True)
class Spooled(_Observed):
    """The sink was too slow or failed (``why``). ``kept``: the spool stored the delivery; otherwise the answer was 503."""

    key: str
    why: str
    kept: bool


@frozen(kw_only=True)
class Handled(_Observed):
    """A handler succeeded, and the success is recorded. ``elapsed`` is in seconds."""

    key: str
    attempt: int
    elapsed: float


@frozen(kw_only=True)
class HandlingFailed(_Observed):
    """A handler failed; the next attempt follows after ``pause`` seconds.

    ``error`` is one line, ``trace`` the traceback. ``event``, ``handler`` and ``app_id`` as in :class:`HandlingStarted`.
    """

    key: str
    attempt: int
    error: str
    pause: float
    event: str = ""
    handler: str = ""
    app_id: str = ""
    trace: str = field(default="", repr=False)


@frozen(kw_only=True)
class LoopBlocked(_Observed):
    """An async handler blocked the event loop of the receiver for ``seconds``; ``stack`` shows where (file, line, function).

    Answers waited meanwhile. Make the handler a plain ``def``, which runs in a thread, or set ``own_thread=True``. For
    observers, after the handler went on; the log has its record, with the stack, while the handler blocks. With
    ``own_thread=True`` other handlers waited, and a :class:`HungHandler` came before.
    """

    handler: str
    seconds: float
    stack: str = field(repr=False)


@frozen(kw_only=True)
class DeadLettered(_Observed):
    """An event became a dead letter after its last attempt. Fields as in :class:`HandlingFailed`.

    ``event`` and ``handler`` are empty if no handler could be called. ``crashes`` is above 0 if it was not for a failure:
    so many times its process died while it was handled.
    """

    key: str
    attempt: int
    error: str
    event: str = ""
    handler: str = ""
    app_id: str = ""
    crashes: int = 0
    trace: str = field(default="", repr=False)


@frozen(kw_only=True)
class SuspectedOfCrash(_Observed):
    """A process died while it handled an event, ``crashes`` times by now; it is handled again.

    ``alone``: nothing else is handled beside it. Otherwise other handlers did not end within the worker's ``timeout``.
    """

    key: str
    crashes: int
    alone: bool
    app_id: str

    def __str__(self) -> str:
        beside = "with nothing else" if self.alone else "beside handlers that do not end"
        return (
            f"event {self.key}: its process ended while it was handled ({self.crashes} times by now); it is handled again,"
            f" {beside}"
        )


@frozen(kw_only=True)
class HungHandler(_Observed):
    """A handler that cannot be stopped has run for longer than ``seconds``. Reported once for each call.

    A plain function, after the worker's ``timeout``: its conversation waits, and it holds one of the worker's places until
    it ends. Or an async handler that blocks the worker's own event loop (``own_thread=True``), after half a lease or the
    ``timeout``: nothing is handled until it goes on (then :class:`LoopBlocked` follows), and ``stack`` shows where it
    blocks. Give the calls in it time-outs of their own. ``event``, ``handler`` and ``app_id`` as in
    :class:`HandlingStarted`; they and ``key`` are empty if another task blocks the loop.
    """

    key: str
    attempt: int
    seconds: float
    event: str
    handler: str
    app_id: str
    stack: str = field(default="", repr=False)

    @property
    def summary(self) -> str:
        """The observation as one line."""
        if not self.stack:
            return f"the function {self.handler} has run for more than {self.seconds:g} s and cannot be stopped: {self!r}"
        what = f"the async handler {self.handler}" if self.handler else "a task beside the handlers"
        return f"{what} has blocked the event loop of the worker's thread for {self.seconds:g} s: no events are handled"

    def __str__(self) -> str:
        if not self.stack:
            return self.summary
        return (
            f"{self.summary} until it goes on. Make it a plain def, which runs in a thread; to end it now, restart the"
            " process. It blocks here:"
        )


@frozen(kw_only=True)
class PartEnded(_Observed):
    """A part of the receiver ended by itself; it is started again after ``pause`` seconds.

    ``part``: "worker" (no event is handled meanwhile) or "receiver" (no delivery is accepted either). ``error`` is one line.
    """

    part: Literal["worker", "receiver"]
    error: str
    pause: float

    def __str__(self) -> str:
        effect = "no events are handled" if self.part == "worker" else "deliveries are answered 503"
        return (
            f"the {self.part} ended with an error: {effect} until it is started again, in {self.pause:.2g} s: {self.error}"
        )


@frozen(kw_only=True)
class PartRestarted(_Observed):
    """A part that ended by itself runs again. ``part`` as in :class:`PartEnded`; ``restarts`` counts them."""

    part: Literal["worker", "receiver"]
    restarts: int

    def __str__(self) -> str:
        return f"the {self.part} runs again (restarts: {self.restarts})"


@frozen(kw_only=True)
class NotEntered(_Observed):
    """A delivery came to a receiver that was never entered, and was answered 503, as all others will be. Reported once."""

    def __str__(self) -> str:
        return (
            "the receiver was not entered: it answers 503 to every delivery. Enter it in the lifespan of the application"
            " that mounts it (`async with receiver: yield`), or serve receiver.asgi by a server with lifespan events"
            " (uvicorn --lifespan on)"
        )


Observation = (
    DeliveryStarted
    | DeliveryEnded
    | HandlingStarted
    | HandlingEnded
    | Accepted
    | Refused
    | Skewed
    | OldToken
    | Quarantined
    | Spooled
    | Handled
    | HandlingFailed
    | DeadLettered
    | SuspectedOfCrash
    | LoopBlocked
    | HungHandler
    | PartEnded
    | PartRestarted
    | NotEntered
)

_NOT_LOGGED = (DeliveryStarted, DeliveryEnded, HandlingStarted, HandlingEnded, LoopBlocked)

_LEVELS: dict[type[Observation], int] = {
    Accepted: logging.DEBUG,
    Handled: logging.DEBUG,
    Refused: logging.WARNING,
    Skewed: logging.WARNING,
    OldToken: logging.WARNING,
    Quarantined: logging.WARNING,
    Spooled: logging.WARNING,
    HandlingFailed: logging.WARNING,
    DeadLettered: logging.ERROR,
    SuspectedOfCrash: logging.WARNING,
    HungHandler: logging.ERROR,
    PartEnded: logging.ERROR,
    PartRestarted: logging.WARNING,
    NotEntered: logging.ERROR,
}


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


class Observers:
    """Logs each observation to the logger ``rbim.callbacks`` and passes it to the observers.

    An exception from an observer is logged and affects nothing else. A worker's observers are called in the worker's thread
    (of one that is blocked: in the receiver's). Of :class:`Skewed`, one record a minute is logged, with the number of those
    left out; a refusal for the time alone is logged at DEBUG beside it. Observers get all of them. ``monotonic`` returns
    seconds; ``receiver`` is its name.
    """

    def __init__(
        self,
        observers: Iterable[Callable[[Observation], object]] = (),
        monotonic: Callable[[], float] = time.monotonic,
        *,
        receiver: str = "",
    ) -> None:
        self._observers = tuple(observers)
        self._monotonic = monotonic
        self._skew_logged: float | None = None
        self._skews_left_out = 0
        self.receiver = receiver
        self.log = ReceiverLog(receiver)

    @property
    def present(self) -> bool:
        """Whether there are observers; if not, what is not logged need not be created."""
        return bool(self._observers)

    @property
    def wants_successes(self) -> bool:
        """Whether success observations are wanted; if not, they need not be created."""
        return bool(self._observers) or logger.isEnabledFor(logging.DEBUG)

    def notify(self, observation: Observation, error: BaseException | None = None) -> None:
        """Log one observation, with the traceback of ``error`` (or its ``trace``), and pass it to each observer."""
        if isinstance(observation, Skewed):
            self._log_skew(observation)
        elif not isinstance(observation, _NOT_LOGGED) and logger.isEnabledFor(level := _level(observation)):
            trace = "" if error is not None else getattr(observation, "trace", "") or getattr(observation, "stack", "")
            args = (observation, trace) if trace else (observation,)
            self.log.log(level, "\n".join("%s" for _ in args), *args, extra=_extra(observation), exc_info=error)
        ends = isinstance(observation, (DeliveryEnded, HandlingEnded))  # as context managers are left
        for observer in reversed(self._observers) if ends else self._observers:
            try:
                observer(observation)
            except Exception:
                self.log.exception("an observer failed")

    def _log_skew(self, skewed: Skewed) -> None:
        now = self._monotonic()
        if self._skew_logged is not None and now - self._skew_logged < SKEW_LOG_PAUSE:
            self._skews_left_out += 1
            return
        left_out, self._skews_left_out = self._skews_left_out, 0
        self._skew_logged = now
        text = "%s (and %d more since the last record)"
        self.log.log(_level(skewed), text, skewed, left_out, extra=_extra(skewed))


def _extra(observation: Observation) -> dict[str, object]:
    """Return the fields of a record, each with ``rbim_`` before its name: numbers and booleans, the rest as text."""
    found: dict[str, object] = {"rbim_observation": type(observation).__name__}
    for each in fields(type(observation)):
        value = getattr(observation, each.name)
        found[f"rbim_{each.name}"] = value if isinstance(value, (bool, int, float)) else str(value)
    return found


def _level(observation: Observation) -> int:
    if isinstance(observation, Refused) and observation.reason in (Reason.STALE, Reason.FUTURE):
        return logging.DEBUG  # Skewed is logged instead
    return _LEVELS[type(observation)]
