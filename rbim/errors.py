"""Every exception of rbim.

::

    RbimError
    ├── InvalidRequest (also ValueError)    refused here, before anything was sent
    ├── TransportError                      no answer, or not a whole one
    │   ├── NotSent                         the request cannot have reached the platform
    │   ├── Unanswered                      bytes left, no whole answer came back
    │   └── AnswerTooLarge                  the answer went past the size limit
    ├── ProtocolError                       an answer came that cannot be read
    ├── ApiError                            the platform answered no
    │   ├── AuthenticationError
    │   │   └── TimestampExpired
    │   ├── Throttled
    │   ├── NotFound
    │   ├── AlreadyMember
    │   ├── NotMember
    │   └── ServerTrouble
    ├── DeadlineExceeded (also TimeoutError)
    ├── ClientClosed
    └── CallbackRejected

Each carries the ``operation`` it belongs to, the ``attempts`` that were made and, above all, the ``outcome``: whether the
platform cannot have seen the request, refused it, or may have acted on it. Retries and bulk jobs read nothing else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from attrs import frozen

from rbim._support.text import excerpt, one_line

__all__ = [
    "AlreadyMember",
    "AnswerTooLarge",
    "ApiError",
    "Attempt",
    "AuthenticationError",
    "CallbackRejected",
    "ClientClosed",
    "DeadlineExceeded",
    "InvalidRequest",
    "NotFound",
    "NotMember",
    "NotSent",
    "Outcome",
    "ProtocolError",
    "RbimError",
    "ServerTrouble",
    "Throttled",
    "TimestampExpired",
    "TransportError",
    "Unanswered",
]


MESSAGE = 500
"""Characters of the platform's own message, or of one that quotes a value, that an error message shows."""


class Outcome(StrEnum):
    """What is known of a request's effect once its call has failed."""

    NOT_SENT = "not sent"
    """The platform cannot have seen the request: it may be sent again whatever it does."""

    REFUSED = "refused"
    """The platform answered no: nothing was done."""

    UNKNOWN = "unknown"
    """Bytes left and no readable answer came: the platform may have acted."""

    def __or__(self, other: Outcome) -> Outcome:
        """Return the outcome of a call of which these are two attempts: the less certain of both."""
        return max(self, other, key=_CERTAINTY.index)


_CERTAINTY = (Outcome.NOT_SENT, Outcome.REFUSED, Outcome.UNKNOWN)


class RbimError(Exception):
    """The root of every error that rbim raises.

    ``operation`` is the wire's name of the operation (None where there is none), ``attempts`` the attempts in order, and
    ``outcome`` what is known of the whole call: one attempt of unknown outcome makes the call's outcome unknown, whatever
    a later attempt was told. Errors survive ``pickle`` and ``copy``; none of them holds a token, a ``sig`` or an
    ``Authorization``.
    """

    outcome: Outcome = Outcome.NOT_SENT

    def __init__(self, message: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.operation: str | None = None
        self.attempts: tuple[Attempt, ...] = ()
        if outcome is not None:
            self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return _revived, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        text = f"{self.operation}: {self.message}" if self.operation else self.message
        if not self.attempts:
            return text
        made = "1 attempt" if len(self.attempts) == 1 else f"{len(self.attempts)} attempts"
        return f"{text} ({made}, outcome {self.outcome})"


def _revived(kind: type[RbimError], args: tuple[Any, ...]) -> RbimError:
    """Make an error without its constructor, whose parameters are not what ``args`` holds."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InvalidRequest(RbimError, ValueError):
    """A value that breaks a written rule, refused before sending.

    ``field`` is the Python name of the field. ``limit`` and ``length`` are there where a length or a count was the reason
    (characters, or entries).
    """

    def __init__(self, message: str = "", *, field: str = "", limit: int | None = None, length: int | None = None) -> None:
        super().__init__(one_line(message, MESSAGE))  # which may quote a value of any length
        self.field = field
        self.limit = limit
        self.length = length


class TransportError(RbimError):
    """The request or its answer was lost on the way; the lower layer's exception is the ``__cause__``."""

    outcome = Outcome.UNKNOWN


class NotSent(TransportError):
    """No connection came about (DNS, refused, TLS, connect time-out): the platform cannot have seen the request."""

    outcome = Outcome.NOT_SENT


class Unanswered(TransportError):
    """The request was on its way and no whole answer came back: reset, read time-out, half an answer."""


class AnswerTooLarge(TransportError):
    """The answer's body is longer than ``limit`` bytes; the rest was not read."""

    def __init__(self, message: str = "", *, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


class ProtocolError(RbimError):
    """An answer that cannot be read.

    ``status`` is the HTTP status, ``body`` the raw bytes (a ``sig`` or ``Authorization`` that the answer repeats is blotted
    out), ``reason`` says what is wrong, naming the field as the wire does: ``required field missing @ $.groupId``.
    ``retry_after`` is the seconds that a ``Retry-After`` header asks to wait (or None).
    """

    outcome = Outcome.UNKNOWN

    def __init__(self, reason: str = "", *, status: int = 0, body: bytes = b"", retry_after: float | None = None) -> None:
        shown = f"HTTP {status}, {reason}" if status else reason
        super().__init__(f"{shown}: {excerpt(body)}" if body else shown)
        self.retry_after = retry_after
        self.reason = reason
        self.status = status
        self.body = body


class ApiError(RbimError):
    """The platform answered no.

    ``code`` is its six-digit text (empty where only the HTTP status says no), ``platform_message`` its words as they came
    (the error's own message shows at most 500 characters of them, on one line), ``status`` the HTTP status, ``body`` the raw
    answer, ``retry_after`` the seconds that a ``Retry-After`` header asks to wait (or None).
    Codes that the dialect's table does not know are plain ``ApiError``.
    """

    outcome = Outcome.REFUSED

    def __init__(  # noqa: PLR0913  # the facts of an answer, all by keyword
        self,
        platform_message: str = "",
        *,
        code: str = "",
        status: int = 200,
        body: bytes = b"",
        retry_after: float | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        said = f"code {code}" if code else "no code"
        where = "" if status == _OK else f"HTTP {status}, "
        shown = f"{where}{said}: {platform_message}" if platform_message else f"{where}{said}"
        super().__init__(one_line(shown, MESSAGE), outcome=outcome)
        self.code = code
        self.platform_message = platform_message
        self.status = status
        self.body = body
        self.retry_after = retry_after


_OK = 200


class AuthenticationError(ApiError):
    """The signature or the credentials were refused: every further request would be, too."""


class TimestampExpired(AuthenticationError):
    """The signature's timestamp is too old or too far ahead: compare this machine's clock and the dialect's zone."""


class Throttled(ApiError):
    """The platform wants fewer requests; ``retry_after`` says for how long, where it said so."""


class NotFound(ApiError):
    """There is no such address or no such group."""


class AlreadyMember(ApiError):
    """The account is in the group already."""


class NotMember(ApiError):
    """The account is not in the group."""


class ServerTrouble(ApiError):
    """The platform reports trouble of its own; it may have acted."""

    outcome = Outcome.UNKNOWN


class DeadlineExceeded(RbimError, TimeoutError):
    """The call's deadline passed, or would have passed before a limit let the call go."""


class ClientClosed(RbimError):
    """The client was closed under this call, or was used before it was entered or after it was left."""


class CallbackRejected(RbimError):
    """A message copy delivery that is not authentic, or one that cannot be read.

    ``reason`` is the text of a :class:`~rbim.callbacks.Reason`; ``body`` the raw bytes where they cannot be read.
    """

    def __init__(self, message: str = "", *, reason: str = "", body: bytes = b"") -> None:
        super().__init__(one_line(message, MESSAGE))
        self.reason = reason
        self.body = body


@frozen(kw_only=True)
class Attempt:
    """What happened to one attempt of a call.

    ``elapsed`` counts seconds from handing the request to the transport; ``status`` and ``code`` are None where no answer
    (or none with a code) came; ``outcome`` and ``error`` are None for the attempt that was answered well. ``error`` is the
    name of the exception's class.
    """

    number: int
    elapsed: float
    status: int | None = None
    code: str | None = None
    outcome: Outcome | None = None
    error: str | None = None
