"""The state that a client and its views share, and the settings in which views differ.

States of a client: ``new`` -> ``opening`` -> ``open`` -> ``closing`` -> ``closed``.

- ``async with`` moves it from new to opening; then to open, or back to new if the transport cannot be entered.
- Leaving moves it from open to closing, cancels the scopes in which calls wait, and waits for the calls (``GRACE`` seconds
  at most); then to closed, even if the transport raises. The transport is left after the calls; other clients may use it.
- A call starts only in open; in any other state it raises ClientClosed before anything is sent. A call that is ended by
  closing raises ClientClosed too.
- A client is entered once: there is no way from closed back to new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from attrs import Attribute, field, frozen

from rbim._support.text import quoted
from rbim.client.admission import Admission
from rbim.client.limits import LOW, NORMAL
from rbim.client.retry import Retry, RetryBudget
from rbim.clock import monotonic_of
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, or_none, text

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from anyio import Event

    from rbim.client.limits import Limits
    from rbim.client.observers import Observers
    from rbim.clock import Clock, Scope
    from rbim.http import Signer, Transport
    from rbim.wire.codec import Codec

__all__ = ["CallSettings", "Load", "Priority", "SharedState", "Wait"]

T = TypeVar("T")


def _retry(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, Retry):
        raise InvalidRequest(f"{attribute.name}: Retry(attempts=...) is needed, not {quoted(value)}", field=attribute.name)


def _priority(_: object, attribute: Attribute[Any], value: object) -> None:
    if value is not None and value not in get_args(Priority):
        raise InvalidRequest(f"{attribute.name}: use 'normal' or 'low', not {quoted(value)}", field=attribute.name)


Priority = Literal["normal", "low"]

BACKSTOP = 0.05
"""Seconds after the deadline at which a transport that ignores its timeout is cancelled."""


@frozen(kw_only=True)
class CallSettings:
    """The settings of one view: acting account, seconds per attempt, seconds per call, retry policy, priority."""

    user_name: str | None = field(validator=or_none(text()))
    timeout: float = field(validator=above_zero)
    deadline: float = field(validator=above_zero)
    retry: Retry = field(validator=_retry)
    priority: Priority | None = field(default=None, validator=_priority)

    @property
    def level(self) -> int:
        """The level of its waiting calls."""
        return LOW if self.priority == "low" else NORMAL


@frozen(kw_only=True)
class Load:
    """The load of a client at one moment.

    ``in_flight`` of the ``places`` for requests are taken. ``waiting`` calls (also requests of jobs) wait for a place, a
    rate or congestion, the oldest of them for ``oldest`` seconds. ``calls`` is the number of running calls, also those that
    wait for their next attempt. ``refused`` calls have ended so far because their request could not leave in time.
    ``attempt_time`` is the seconds that an attempt takes, usually (the median of recent attempts, noted while calls wait or
    are refused; 0 before).
    ``retries_left`` is the rest of the retry budget (of 50).
    """

    places: int
    in_flight: int
    waiting: int
    oldest: float
    calls: int
    refused: int
    attempt_time: float
    retries_left: float


class Wait(Protocol):
    """Awaits a coroutine until it is ``due``, or until the client is closed; then raises what ``ended`` returns."""

    async def __call__(self, waiting: Coroutine[Any, Any, T], due: float, ended: Callable[[], Exception], /) -> T:
        """Return the result of ``waiting``; ``due`` is a time of the monotonic clock."""
        ...


class SharedState:
    """The state that a client shares with its views: admission, retry budget, transport, running calls."""

    def __init__(  # noqa: PLR0913  # the parts of a client, by keyword
        self,
        *,
        transport: Transport,
        signer: Signer,
        codec: Codec,
        clock: Clock,
        limits: Limits,
        observers: Observers | None,
        name: str = "",
    ) -> None:
        self.name = name
        self.transport = transport
        self.signer = signer
        self.codec = codec
        self.clock = clock
        self.monotonic = monotonic_of(clock)
        self.admission = Admission(limits, clock)
        self.budget = RetryBudget()
        self.observers = observers
        self.running = 0
        """The number of running calls."""
        self.scopes: set[Scope] = set()
        """The scopes of the client's clock in which calls wait; closing the client cancels them."""
        self.wait: Wait = self._wait_in_scope
        """Awaits until a time, or until the client is closed; on asyncio the client sets a faster one."""
        self.renewed: Callable[[Signer], Coroutine[Any, Any, bool]] | None = None
        """If the credentials may change: asks for other ones than a signer's, and returns whether there are any."""
        self.state = "new"  # then "opening", "open", "closing", "closed"
        self.calls = 0
        self.all_ended: Event | None = None
        """Set by the last call that ends, while the client closes."""
        self.backstop = BACKSTOP

    async def _wait_in_scope(self, waiting: Coroutine[Any, Any, T], due: float, ended: Callable[[], Exception], /) -> T:
        with self.clock.scope(due - self.monotonic()) as scope:
            self.scopes.add(scope)
            try:
                return await waiting
            finally:
                self.scopes.discard(scope)
        raise ended()

    @property
    def load(self) -> Load:
        """The load at this moment."""
        admission = self.admission
        return Load(
            places=admission.places,
            in_flight=admission.places - admission.free,
            waiting=admission.waiting,
            oldest=admission.oldest,
            calls=self.running,
            refused=admission.refused,
            attempt_time=admission.times.typical,
            retries_left=self.budget.left,
        )
