"""What transports share when a lower layer raises, or writes a log of its own."""

from __future__ import annotations

import inspect
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rbim.http import Request

__all__ = ["LogRedactor", "redacted", "unframed", "untraced"]


def untraced(error: Exception, secrets: Iterable[str] = ()) -> Exception:
    """Return the exception, itself and what led to it without their frames and with the secrets blotted out of their words.

    The frames belong to an HTTP library whose locals hold the signed address; error trackers that record locals would keep
    it. The words may quote what the other side sent, and that may repeat the request.
    """
    secrets = tuple(secrets)
    for each in _led_to(error):
        each.__traceback__ = None
        each.args = tuple(redacted(arg, secrets) if isinstance(arg, str) else arg for arg in each.args)
    return error


def unframed(interruption: BaseException) -> None:
    """Take the frames, as of :func:`untraced`, off what is no failure of a request but ends it: a cancellation, for one.

    It stays the same in all else, since scopes know their own by what it is and by what led to it. To be called where it
    leaves the transport, and to be followed by a bare ``raise``.
    """
    for each in _led_to(interruption):
        each.__traceback__ = None
        if isinstance(each.__cause__, Exception):
            each.__cause__ = None
        if isinstance(each.__context__, Exception) and not _is_callers(each.__context__):
            each.__context__ = None  # a failure on the way, which may hold the request


def _led_to(error: BaseException) -> Iterator[BaseException]:
    """Give an exception and what led to it, as far as that came about in here."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        linked = (each.__cause__, each.__context__)
        yield each
        waiting += [one for one in linked if one is not None and not _is_callers(one)]
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions


def _is_callers(error: BaseException) -> bool:
    """Whether somebody who waits for us is about to handle an exception: where frames are that still run."""
    trace, frame = error.__traceback__, inspect.currentframe()
    while trace is not None and frame is not None:
        if trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return False


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret blotted out, in upper and lower case: servers take a ``sig`` in either."""
    lowered = text.lower()
    for secret in secrets:
        if secret.lower() in lowered:
            text = re.sub(re.escape(secret), "***", text, flags=re.IGNORECASE)
    return text


RECENT = 1024
"""Secrets remembered: those of all requests that may be in flight, where a signer makes new ones for each."""


class LogRedactor(logging.Filter):
    """Blots what signs requests out of the records of a library's loggers.

    An answer may repeat the signed address, in a redirect for one, and a library that logs what it reads would write it
    down. Nothing is remembered while these loggers are not enabled for DEBUG.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._loggers = [logging.getLogger(name) for name in names]
        self._recent: deque[str] = deque(maxlen=RECENT)

    def attach(self) -> None:
        """Begin."""
        for logger in self._loggers:
            logger.addFilter(self)

    def detach(self) -> None:
        """End."""
        for logger in self._loggers:
            logger.removeFilter(self)

    def mind(self, request: Request) -> None:
        """Remember what signs this request."""
        if self._loggers[0].isEnabledFor(logging.DEBUG):
            self._recent.extend(secret for secret in request.secrets if secret not in self._recent)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record through, without what signs."""
        said = record.getMessage()
        harmless = redacted(said, self._recent)
        if harmless != said:
            record.msg, record.args = harmless, ()
        return True
