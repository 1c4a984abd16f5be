"""The keys of a receiver: given once, or asked of a provider again and again, so that tokens change without a restart."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import TYPE_CHECKING, cast

import anyio

from rbim.callbacks.signature import Keys, keys_of
from rbim.callbacks.worker.attempt import ForeignCode, result_of
from rbim.callbacks.worker.router import is_async
from rbim.credential_source import CredentialSource
from rbim.credentials import Credentials
from rbim.errors import InvalidRequest, RbimError
from rbim.validators import require, require_methods

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rbim.clock import Clock
    from rbim.observers import Log

__all__ = ["CallbackCredentials", "CallbackCredentialsProvider", "KeyRing"]

CallbackCredentials = Credentials | Iterable[Credentials]
"""Credentials of one application or several, the current token of each first."""

CallbackCredentialsProvider = Callable[[], CallbackCredentials | Awaitable[CallbackCredentials]]
"""A function, plain or async, that returns the credentials of now. A plain one runs in a thread and may block."""

# What must always hold:
# - A plain provider is in one thread at most: while one runs that took too long, questions fail at once.
# - A delivery that matches no key is refused only after an answer that was asked for after it arrived, or at the end of its
#   budget: a token may have changed while the provider was asked.
# - After a failure the keys stay. A key that is in no answer any more is accepted for `grace` seconds, as an older one.
# How a provider is asked: rbim.credential_source.

OLD = 300.0  # seconds after which a delivery lets the provider be asked again, even though it matches a key
LOG_PAUSE = 60.0  # seconds between two records of a provider that goes on failing

FORM = "Credentials(app_id=..., app_token=...), a list of them, or a function that returns them,"


class KeyRing:
    """The ``keys`` of now; None before a provider was asked for the first time. Enter it in the receiver's event loop.

    While it ``asks`` a provider, each delivery begins with :meth:`arrived`. No message shows credentials of a wrong type:
    they may be a token.
    """

    def __init__(
        self,
        credentials: CallbackCredentials | Keys | CallbackCredentialsProvider,
        *,
        clock: Clock,
        log: Log,
        grace: float,
        pause: float,
    ) -> None:
        self.keys: Keys | None = None
        self.asks = False
        self._provider: CallbackCredentialsProvider | None = None
        if isinstance(credentials, Keys):
            self.keys = credentials
        elif callable(credentials) and not isinstance(credentials, (type, Credentials)):
            self._provider = credentials
        else:
            self.keys = keys_of(_listed(credentials))
        self._clock = clock
        self._log = log
        self._grace = grace
        self._source = CredentialSource(self._ask, self._use, self._failed, clock=clock, pause=pause)
        self._current: tuple[Credentials, ...] = ()
        self._retired: dict[Credentials, float] = {}  # to the time when they are refused
        self._next_refused = inf
        self._logged_at = -inf
        self._changes = 0
        self._in_its_thread = False

    async def __aenter__(self) -> Self:
        """Ask the provider. Raises its error."""
        if self._provider is not None:
            await self._source.begin()
            self.asks = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.asks = False
        self._source.end()

    def arrived(self) -> int:
        """Note that a delivery has arrived; return the number of the question whose answer counts for it."""
        now = self._clock.monotonic()
        if now >= self._next_refused:
            self._make()
        if now - self._source.asked_at > OLD:
            self._source.wake()
        return self._source.begun + 1

    async def changed(self, question: int) -> bool:
        """Wait until the keys have changed (True), or a question is answered without that (False)."""
        changes = self._changes
        while self._source.ended < question:
            await self._source.answer()
            if self._changes > changes:
                return True
        return False

    async def _ask(self) -> tuple[Credentials, ...]:
        """Ask the provider, a plain one in a thread; an exit or a stray cancellation of it becomes an InvalidRequest."""
        provider = cast("CallbackCredentialsProvider", self._provider)

        def call() -> tuple[object]:
            self._in_its_thread = True
            try:
                return result_of(provider)
            finally:
                self._in_its_thread = False

        code = ForeignCode()
        try:
            if is_async(provider):
                answer: object = provider()
            elif self._in_its_thread:
                raise TimeoutError("it has not ended since the last question")  # noqa: TRY301
            else:
                (answer,) = await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
            return _listed(await answer if inspect.isawaitable(answer) else answer)
        except BaseException as error:
            if isinstance(error, Exception) or not code.failed(error):
                raise
            raise InvalidRequest(f"credentials: the provider raised {type(error).__name__}", field="credentials") from error

    def _use(self, current: tuple[Credentials, ...]) -> bool:
        self._logged_at = -inf
        if current == self._current:
            return False
        until = self._clock.monotonic() + self._grace
        dropped = dict.fromkeys((each for each in self._current if each not in current), until)
        self._retired = {each: end for each, end in (dropped | self._retired).items() if each not in current}
        self._current = current
        self._make()
        return True

    def _make(self) -> None:
        now = self._clock.monotonic()
        self._retired = {each: end for each, end in self._retired.items() if now < end}
        self._next_refused = min(self._retired.values(), default=inf)
        self.keys = Keys(*self._current, retired=self._retired)
        self._changes += 1

    def _failed(self, error: BaseException) -> None:
        """Log an error once a minute, without its text unless it is one of rbim's: others may quote a token."""
        now = self._clock.monotonic()
        if now - self._logged_at >= LOG_PAUSE:
            self._logged_at = now
            text = str(error) if isinstance(error, RbimError) else type(error).__name__
            self._log.error("the credentials provider failed (%s); the keys that it returned before go on", text)


def _listed(credentials: object) -> tuple[Credentials, ...]:
    if isinstance(credentials, Credentials):
        return (credentials,)
    require_methods("credentials", credentials, ("__iter__",), FORM)
    listed = tuple(cast("Iterable[Credentials]", credentials))
    for each in listed:
        require("credentials", each, Credentials, FORM)
    if not listed:
        raise InvalidRequest("credentials: none given; pass at least one application's Credentials", field="credentials")
    return tuple(dict.fromkeys(listed))
