"""Remove secrets from exceptions and log records of the HTTP libraries."""

from __future__ import annotations

import inspect
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rbim.http import Request

__all__ = ["LogRedactor", "chained", "redacted", "sanitized", "strip_frames"]


def sanitized(error: Exception, secrets: Iterable[str] = ()) -> Exception:
    """Return the exception without frames and secrets; its causes and contexts are sanitized too.

    The frames belong to an HTTP library whose locals hold the signed address, and error trackers record locals. The
    messages may quote bytes from the server, which may repeat the request.
    """
    secrets = tuple(secrets)
    for each in chained(error):
        each.__traceback__ = None
        each.args = tuple(redacted(arg, secrets) if isinstance(arg, str) else arg for arg in each.args)
    return error


def strip_frames(interruption: BaseException) -> None:
    """Remove the frames from an exception that interrupts a request, such as a cancellation (see :func:`sanitized`).

    Nothing else changes: a cancel scope recognises its own exception by identity and by its chain. Call this where the
    exception leaves the transport, then ``raise`` without an argument.
    """
    for each in chained(interruption):
        each.__traceback__ = None
        if isinstance(each.__cause__, Exception):
            each.__cause__ = None
        if isinstance(each.__context__, Exception) and not _is_being_handled(each.__context__):
            each.__context__ = None  # an earlier failure, which may hold the request


def chained(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and contexts, and those of groups, except those that a caller is handling."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        linked = (each.__cause__, each.__context__)
        yield each
        waiting += [one for one in linked if one is not None and not _is_being_handled(one)]
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions


def _is_being_handled(error: BaseException) -> bool:
    """Whether a caller is handling this exception: one of its frames is still running."""
    trace, frame = error.__traceback__, inspect.currentframe()
    while trace is not None and frame is not None:
        if trace.tb_frame is frame:
            return True
        frame = frame.f_back
    return False


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret replaced by ``***``, ignoring case: servers accept a ``sig`` in either case."""
    lowered = text.lower()
    for secret in secrets:
        if secret.lower() in lowered:
            text = re.sub(re.escape(secret), "***", text, flags=re.IGNORECASE)
    return text


MAX_SECRETS = 1024  # the number of secrets remembered: enough for all requests in flight, if each has its own


class LogRedactor(logging.Filter):
    """A log filter that removes the secrets of requests from the records of a library's loggers.

    A response may repeat the signed address, for example in a redirect, and a library may log what it reads.
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.loggers = [logging.getLogger(name) for name in names]
        self._recent: deque[str] = deque(maxlen=MAX_SECRETS)

    def attach(self) -> None:
        """Add this filter to the loggers."""
        for logger in self.loggers:
            logger.addFilter(self)

    def detach(self) -> None:
        """Remove this filter from the loggers."""
        for logger in self.loggers:
            logger.removeFilter(self)

    def remember(self, request: Request) -> None:
        """Remember the secrets of this request, which the library may log."""
        self._recent.extend(secret for secret in request.secrets if secret not in self._recent)

    def filter(self, record: logging.LogRecord) -> bool:
        """Remove secrets from the record; never drop it."""
        text = record.getMessage()
        harmless_text = redacted(text, self._recent)
        if harmless_text != text:
            record.msg, record.args = harmless_text, ()
        return True
