"""Credentials that change while a client or a receiver runs: the questions to a provider."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from rbim._support.event_loops import spawn
from rbim._support.lazy_names import late_anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio import Event

    from rbim.clock import Clock

__all__ = ["PROVIDER_TIMEOUT", "CredentialSource"]

T = TypeVar("T")

PROVIDER_TIMEOUT = 10.0  # seconds that the provider has for an answer

# Theory of operation: the questions to a provider.
#
#   idle     Nothing wants an answer.
#   pausing  Something does; less than `pause` seconds ago the provider had nothing new.
#   asking   The provider runs, once at a time, for at most PROVIDER_TIMEOUT seconds.
#
# idle -> pausing    wake(), answer()
# pausing -> asking  the pause is over
# asking -> idle     an answer, an error, or the limit
#
# What must always hold:
# - A question has a task of its own: one who stops waiting leaves the answer to the others.
# - Whatever a provider raises, also an exit or a stray cancellation, is a failed question; the credentials stay.
# - However many want an answer, the provider is asked once in `pause` seconds, unless it has just had something new.


class CredentialSource(Generic[T]):
    """Asks for credentials: ``ask`` returns them, ``use`` takes them and returns whether they are new.

    ``failed`` gets the error of a question. ``scopes`` has the scope of the one that runs: to cancel it ends the question.
    """

    def __init__(  # noqa: PLR0913  # the three ends, and options by keyword
        self,
        ask: Callable[[], Awaitable[T]],
        use: Callable[[T], bool],
        failed: Callable[[BaseException], object],
        *,
        clock: Clock,
        pause: float,
        scopes: set[Any] | None = None,
    ) -> None:
        self.begun = self.ended = 0  # questions
        self.asked_at = -inf
        self._ask = ask
        self._use = use
        self._failed = failed
        self._clock = clock
        self._pause = pause
        self._scopes = set[Any]() if scopes is None else scopes
        self._pause_until = -inf
        self._answered: Event | None = None
        self._task: object = None

    async def begin(self) -> None:
        """Ask for the first time. Raises what the provider raises."""
        self.asked_at = self._clock.monotonic()
        self._use(await self._ask())

    def end(self) -> None:
        """End the question that runs."""
        for scope in tuple(self._scopes):
            scope.cancel()

    @property
    def pausing(self) -> bool:
        """Whether no question runs, and none would begin at once."""
        return self._answered is None and self._clock.monotonic() < self._pause_until

    def wake(self) -> Event:
        """Begin a question, after the pause, unless one runs; return the event of its end."""
        if self._answered is None:
            self._answered = cast("Event", late_anyio().Event())
            self._task = spawn(self._question, name="rbim-credentials")
        return self._answered

    async def answer(self) -> None:
        """Wait until the question that runs, or a new one, has ended."""
        await self.wake().wait()

    async def _question(self) -> None:
        clock, answered, new = self._clock, self._answered, False
        wait = max(0.0, self._pause_until - clock.monotonic())
        limit = clock.monotonic() + wait + PROVIDER_TIMEOUT
        try:
            with clock.scope(wait + PROVIDER_TIMEOUT) as scope:
                self._scopes.add(scope)
                try:
                    if wait:
                        await clock.sleep(wait)
                    self.begun += 1
                    self.asked_at = clock.monotonic()
                    new = self._use(await self._ask())
                finally:
                    self._scopes.discard(scope)
            if scope.cancelled_caught and clock.monotonic() >= limit:
                self._failed(TimeoutError(f"it took longer than {PROVIDER_TIMEOUT:g} s"))
        except BaseException as error:
            self._failed(error)
        self._pause_until = -inf if new else self.asked_at + self._pause
        self.ended = self.begun
        self._answered = None
        if answered is not None:
            answered.set()
