"""The keys of a receiver: given once, or asked of a provider again and again, so that tokens change without a restart."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, cast

import anyio

from rbim.callbacks.signature import Keys, keys_of
from rbim.callbacks.worker.attempt import ForeignCode, outcome
from rbim.callbacks.worker.router import is_async
from rbim.credentials import Credentials
from rbim.errors import InvalidRequest, RbimError
from rbim.validators import require, require_methods

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.observers import ReceiverLog
    from rbim.clock import Clock

__all__ = ["CallbackCredentials", "CallbackCredentialsProvider", "KeyRing", "key_ring"]

CallbackCredentials = Credentials | Iterable[Credentials]
"""Credentials of one application or several, the current token of each first."""

CallbackCredentialsProvider = Callable[[], CallbackCredentials | Awaitable[CallbackCredentials]]
"""A function, plain or async, that returns the credentials of now. A plain one runs in a thread and may block."""

# Theory of operation: asking a provider.
#
#   idle     No delivery wants an answer.
#   pausing  One does; the last question was asked less than `pause` seconds ago.
#   asking   The provider runs, once at a time, for at most ASK_LIMIT seconds.
#
# idle -> pausing    a delivery matches no key, or the keys are OLD and a delivery arrives
# pausing -> asking  the pause is over
# asking -> idle     an answer, an error, or the limit; pausing again if a delivery wants a later answer meanwhile
#
# What must always hold:
# - Whatever a provider raises, also an exit or a stray cancellation, is a failed question; Ctrl-C is not.
# - A plain provider is in one thread at most: while one runs that took too long, questions fail at once.
# - However many forged deliveries arrive, the provider is asked once in `pause` seconds.
# - A delivery that matches no key is refused only after an answer that was asked for after it arrived, or at the end of its
#   budget: a token may have changed while the provider was asked.
# - After a failure the keys stay. A key that is in no answer any more is accepted for `grace` seconds, as an older one.

OLD = 300.0
"""Seconds after which a delivery lets the provider be asked again, even though it matches a key."""

ASK_LIMIT = 10.0  # seconds
LOG_PAUSE = 60.0  # seconds between two records of a provider that goes on failing

FORM = "Credentials(app_id=..., app_token=...), a list of them, or a function that returns them,"


class KeyRing:
    """The keys of now. Enter it before use, in the event loop of the receiver."""

    def __init__(
        self, provider: CallbackCredentialsProvider | Keys, *, clock: Clock, log: ReceiverLog, grace: float, pause: float
    ) -> None:
        self._keys = provider if isinstance(provider, Keys) else None
        self._provider = None if isinstance(provider, Keys) else provider
        self._clock = clock
        self._log = log
        self._grace = grace
        self._pause = pause
        self._current: tuple[Credentials, ...] = ()
        self._retired: dict[Credentials, float] = {}  # to the time when they are refused
        self._next_refused = inf
        self._asked_at = -inf
        self._logged_at = -inf
        self._begun = self._ended = 0  # questions
        self._changes = 0
        self._tasks: anyio.abc.TaskGroup | None = None
        self._in_its_thread = False

    async def __aenter__(self) -> Self:
        """Ask the provider. Raises its error."""
        if self._provider is None:
            return self
        self._wanted, self._answered = anyio.Event(), anyio.Event()
        self._use(await self._ask(self._provider))
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._answer_questions, self._provider)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)  # without the block's error: a task group would wrap it

    @property
    def keys(self) -> Keys | None:
        """The keys to accept now; None before the provider was asked for the first time."""
        if self._retired and self._clock.monotonic() >= self._next_refused:
            self._make()
        return self._keys

    def arrived(self) -> int | None:
        """Note that a delivery has arrived; return the number of the question whose answer counts for it, or None."""
        if self._tasks is None:
            return None
        if self._clock.monotonic() - self._asked_at > OLD:
            self._wanted.set()
        return self._begun + 1

    async def changed(self, question: int) -> bool:
        """Wait until the keys have changed (True), or a question is answered without that (False)."""
        changes = self._changes
        while self._ended < question:
            self._wanted.set()
            await self._answered.wait()
            if self._changes > changes:
                return True
        return False

    async def _answer_questions(self, provider: CallbackCredentialsProvider) -> None:
        while True:
            await self._wanted.wait()
            if (pause := self._asked_at + self._pause - self._clock.monotonic()) > 0:
                await self._clock.sleep(pause)
            self._wanted = anyio.Event()
            self._begun += 1
            try:
                self._use(await self._ask(provider))
            except Exception as error:
                self._failed(error)
            self._ended = self._begun
            answered, self._answered = self._answered, anyio.Event()
            answered.set()

    async def _ask(self, provider: CallbackCredentialsProvider) -> tuple[Credentials, ...]:
        self._asked_at = self._clock.monotonic()
        code = ForeignCode()
        try:
            with self._clock.scope(ASK_LIMIT):
                answer: object = provider() if is_async(provider) else await self._in_thread(provider)
                return _listed(await answer if inspect.isawaitable(answer) else answer)
        except Exception:
            raise
        except BaseException as error:
            if not code.failed(error):
                raise
            raise InvalidRequest(f"credentials: the provider raised {type(error).__name__}", field="credentials") from error
        raise TimeoutError(f"it took longer than {ASK_LIMIT:g} s")

    async def _in_thread(self, provider: CallbackCredentialsProvider) -> object:
        if self._in_its_thread:
            raise TimeoutError("it has not ended since the last question")
        answer, error = await anyio.to_thread.run_sync(
            self._call, provider, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
        if error is not None:
            raise error
        return answer

    def _call(self, provider: CallbackCredentialsProvider) -> tuple[object, GeneratorExit | None]:
        self._in_its_thread = True
        try:
            return outcome(provider)
        finally:
            self._in_its_thread = False

    def _use(self, current: tuple[Credentials, ...]) -> None:
        self._logged_at = -inf
        if current == self._current:
            return
        until = self._clock.monotonic() + self._grace
        dropped = dict.fromkeys((each for each in self._current if each not in current), until)
        self._retired = {each: end for each, end in (dropped | self._retired).items() if each not in current}
        self._current = current
        self._make()

    def _make(self) -> None:
        now = self._clock.monotonic()
        self._retired = {each: end for each, end in self._retired.items() if now < end}
        self._next_refused = min(self._retired.values(), default=inf)
        self._keys = Keys(*self._current, retired=self._retired)
        self._changes += 1

    def _failed(self, error: Exception) -> None:
        """Log an error once a minute, without its text unless it is one of rbim's: others may quote a token."""
        now = self._clock.monotonic()
        if now - self._logged_at >= LOG_PAUSE:
            self._logged_at = now
            text = str(error) if isinstance(error, RbimError) else type(error).__name__
            self._log.error("the credentials provider failed (%s); the keys that it returned before go on", text)


def key_ring(
    credentials: CallbackCredentials | Keys | CallbackCredentialsProvider,
    *,
    clock: Clock,
    log: ReceiverLog,
    grace: float,
    pause: float,
) -> KeyRing:
    """Return the keys of a receiver. No message shows credentials of a wrong type: they may be a token."""
    ring = partial(KeyRing, clock=clock, log=log, grace=grace, pause=pause)
    if isinstance(credentials, Keys):
        return ring(credentials)
    if callable(credentials) and not isinstance(credentials, (type, Credentials)):
        return ring(credentials)
    return ring(keys_of(_listed(credentials)))


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
