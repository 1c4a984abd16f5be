"""Observations for the observers of ``RemoteSender`` and ``serve``: frozen, without credentials, accounts or answers.

An observer is a function that takes one observation. It is called in the task, and in the context, of the request, and must
not block. What it raises is logged, and goes no further.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

__all__ = [
    "ClaimEnded",
    "ClaimGivenUp",
    "ClaimStarted",
    "Observation",
    "Observers",
    "RequestEnded",
    "RequestStarted",
    "RequestWithdrawn",
    "carried",
]

T = TypeVar("T")

logger = logging.getLogger("rbim.jetstream")

LONGEST = 2048
"""The most characters of a header that an observer adds."""

MOST = 8
"""The most headers that observers add to a message."""


@frozen(kw_only=True)
class _Observed:
    """The fields of every observation: the name of the queue, the operation's name on the wire, the request's key."""

    queue: str
    operation: str
    key: str


@frozen(kw_only=True)
class RequestStarted(_Observed):
    """An operation is handed over to the workers next. A :class:`RequestEnded` follows, also after errors.

    What an observer writes into ``headers`` travels with the message, as text in printable ASCII, to the worker. At most 8
    headers of 2,048 characters travel; others are left out.
    """

    headers: dict[str, str] = field(repr=False)


@frozen(kw_only=True)
class RequestEnded(_Observed):
    """The outcome of an operation that was handed over is known. ``elapsed`` is in seconds, with all waits.

    ``error`` is what the caller gets; None if it succeeded or was ``cancelled``.
    """

    elapsed: float
    error: Exception | None
    cancelled: bool


@frozen(kw_only=True)
class RequestWithdrawn(_Observed):
    """No worker took an operation, and none can take it any more: it was not sent, and NotTaken is raised."""


@frozen(kw_only=True)
class ClaimStarted(_Observed):
    """A worker has claimed an operation, and sends it next. A :class:`ClaimEnded` follows, also after errors.

    ``headers`` are those of the message.
    """

    headers: Mapping[str, str] = field(repr=False)


@frozen(kw_only=True)
class ClaimEnded(_Observed):
    """A worker knows the outcome of an operation that it claimed, and records it next. ``elapsed`` is in seconds.

    ``error`` is what its client raised; None if it succeeded or was ``cancelled``.
    """

    elapsed: float
    error: Exception | None
    cancelled: bool


@frozen(kw_only=True)
class ClaimGivenUp(_Observed):
    """The worker that claimed an operation was not heard of again: the operation is Unanswered."""


Observation = RequestStarted | RequestEnded | RequestWithdrawn | ClaimStarted | ClaimEnded | ClaimGivenUp


class Observers:
    """The observers of one sender or worker. An exception of one is logged, and affects nothing else."""

    def __init__(self, observers: Iterable[Callable[[Observation], object]]) -> None:
        self._first_to_last = tuple(observers)
        self._last_to_first = self._first_to_last[::-1]

    async def around(self, started: RequestStarted | ClaimStarted, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call between two observations: ``started`` and its end."""
        if not self._first_to_last:
            return await call()
        loop = asyncio.get_running_loop()
        began, error, cancelled = loop.time(), None, True
        self.notify(started)
        try:
            result = await call()
            cancelled = False
        except Exception as raised:
            error, cancelled = raised, False
            raise
        finally:
            ended = RequestEnded if isinstance(started, RequestStarted) else ClaimEnded
            about = {"queue": started.queue, "operation": started.operation, "key": started.key}
            self.notify(ended(**about, elapsed=loop.time() - began, error=error, cancelled=cancelled))
        return result

    def notify(self, observation: Observation) -> None:
        """Pass an observation to each observer; an end in reverse order, as context managers are left."""
        ends = isinstance(observation, (RequestEnded, ClaimEnded))
        for observer in self._last_to_first if ends else self._first_to_last:
            try:
                observer(observation)
            except Exception:
                logger.exception("an observer failed")


def carried(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those headers of observers that a message can have."""
    fitting = [(name, value) for name, value in headers.items() if _fits(name) and _fits(value) and ":" not in name]
    return dict(fitting[:MOST])


def _fits(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= LONGEST and text.isascii() and text.isprintable()
