"""All exceptions of rbim.

::

    RbimError
    ├── InvalidRequest (also ValueError)    rejected by rbim before anything was sent
    ├── TransportError                      no answer, or an incomplete one
    │   ├── NotSent                         the request cannot have reached the platform
    │   ├── Unanswered                      bytes were sent, no complete answer came back
    │   └── AnswerTooLarge                  the answer exceeds the size limit
    ├── ProtocolError                       the answer cannot be read
    │   └── IntermediaryError               something in between answered, not the platform
    ├── ApiError                            the platform refused the request
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

Each has the ``operation``, the ``attempts`` that were made and the ``outcome``: the platform cannot have seen the request,
refused it, or may have acted on it. Retries and bulk jobs decide by the outcome. ``docs`` is the place of the class in the
documentation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from attrs import frozen

from rbim._support.json_values import ToDict, json_values
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
    "IntermediaryError",
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


MESSAGE = 500  # characters that an error message has at most if it quotes the platform or a value


class Outcome(StrEnum):
    """The known effect of a request whose call failed."""

    NOT_SENT = "not sent"
    """The platform cannot have seen the request: it is safe to send it again."""

    REFUSED = "refused"
    """The platform refused the request: it did nothing."""

    UNKNOWN = "unknown"
    """Bytes were sent and no readable answer came: the platform may have acted."""

    def __or__(self, other: Outcome) -> Outcome:
        """Return the combined outcome of two attempts: the less certain one."""
        return max(self, other, key=_CERTAINTY.index)


_CERTAINTY = (Outcome.NOT_SENT, Outcome.REFUSED, Outcome.UNKNOWN)


class RbimError(Exception, ToDict):
    """The base class of all errors that rbim raises.

    ``operation`` is the operation's name on the wire (None without an operation), ``client`` the name of the client that
    made the call (empty without one). ``attempts`` are the attempts in order.
    ``outcome`` is the outcome of the whole call: if one attempt has an unknown outcome, so has the call, whatever a later
    attempt returned. ``docs`` is the section of the documentation about the class: ``errors#throttled``, which
    ``rbim help`` shows; for a class of your own it is that of its base. Errors survive ``pickle`` and ``copy``; none holds a
    token, a ``sig`` or an ``Authorization``.
    """

    outcome: Outcome = Outcome.NOT_SENT

    def __init__(self, message: str = "", *, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.operation: str | None = None
        self.client = ""
        self.attempts: tuple[Attempt, ...] = ()
        if outcome is not None:
            self.outcome = outcome

    @property
    def docs(self) -> str:
        """The section of the documentation about this error, which ``rbim help`` shows."""
        known = next(kind for kind in type(self).__mro__ if kind.__module__ == __name__)
        return f"errors#{known.__name__.lower()}"

    def to_dict(self) -> dict[str, Any]:
        """Return the ``class`` by name, ``docs``, ``outcome`` and all other attributes as JSON values, like an answer's."""
        facts = {name: each for name, each in vars(self).items() if not name.startswith("_")}
        found = {"class": type(self).__name__, **facts, "outcome": self.outcome, "docs": self.docs}
        return {name: json_values(each) for name, each in found.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return _revived, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.client, self.operation, self.message) if part)
        if not self.attempts:
            return text
        made = "1 attempt" if len(self.attempts) == 1 else f"{len(self.attempts)} attempts"
        return f"{text} ({made}, outcome {self.outcome})"


def _revived(kind: type[RbimError], args: tuple[Any, ...]) -> RbimError:
    """Return an error made without its constructor, whose parameters differ from ``args``."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InvalidRequest(RbimError, ValueError):
    """A value that breaks a rule; raised before anything is sent.

    ``field`` is the Python name of the field. ``limit`` and ``length`` are set if a length or a count is the cause
    (in characters or entries).
    """

    def __init__(self, message: str = "", *, field: str = "", limit: int | None = None, length: int | None = None) -> None:
        super().__init__(one_line(message, MESSAGE))  # the message may quote a value of any length
        self.field = field
        self.limit = limit
        self.length = length


class TransportError(RbimError):
    """The request or its answer was lost; ``__cause__`` is the exception of the HTTP layer."""

    outcome = Outcome.UNKNOWN


class NotSent(TransportError):
    """No connection was made (DNS, refused, TLS, connect timeout): the platform cannot have seen the request."""

    outcome = Outcome.NOT_SENT


class Unanswered(TransportError):
    """The request was sent, at least in part, but no complete answer came: reset, read timeout, truncated answer."""


class AnswerTooLarge(TransportError):
    """The body of the answer exceeds ``limit`` bytes; the rest was not read."""

    def __init__(self, message: str = "", *, limit: int = 0) -> None:
        super().__init__(message)
        self.limit = limit


class ProtocolError(RbimError):
    """An answer that cannot be read.

    ``status`` is the HTTP status, ``body`` the raw bytes (a ``sig`` or ``Authorization`` in it is replaced by ``***``).
    ``reason`` is the cause, with the field's path on the wire: ``required field missing @ $.groupId``. ``retry_after`` is
    the seconds to wait from a ``Retry-After`` header, or None.
    """

    outcome = Outcome.UNKNOWN

    def __init__(self, reason: str = "", *, status: int = 0, body: bytes = b"", retry_after: float | None = None) -> None:
        shown = f"HTTP {status}, {reason}" if status else reason
        super().__init__(f"{shown}: {excerpt(body)}" if body else shown)
        self.retry_after = retry_after
        self.reason = reason
        self.status = status
        self.body = body


class IntermediaryError(ProtocolError):
    """An answer of something between this program and the platform: a proxy, a firewall, a gateway, a load balancer.

    It is a page in place of a JSON object with a status code of six digits, or a redirect, which is never followed.
    ``server`` is its ``Server`` header (empty without one); ``status``, ``reason``, ``body`` and ``retry_after`` are as in
    ProtocolError. The outcome is "refused" for HTTP 3xx and 4xx, but for 403, 408 and 451: filters send these in place of
    an answer, too. For any other status it is "unknown".
    """

    def __init__(  # noqa: PLR0913  # the parts of an answer, all by keyword
        self,
        reason: str = "",
        *,
        status: int = 0,
        body: bytes = b"",
        server: str = "",
        retry_after: float | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        RbimError.__init__(self, f"HTTP {status} {reason}", outcome=outcome)
        self.reason = reason
        self.status = status
        self.body = body
        self.server = server
        self.retry_after = retry_after


class ApiError(RbimError):
    """The platform refused the request.

    ``code`` is the six-digit status code as text (empty if HTTP 429 alone shows that it throttles), ``platform_message``
    the platform's message unchanged (the message of this error shows at most 500 characters of it, on one line),
    ``status`` the HTTP status, ``body`` the raw answer, ``retry_after`` the seconds to wait from a ``Retry-After`` header,
    or None. Codes that are not in the dialect's table are plain ``ApiError``.
    """

    outcome = Outcome.REFUSED

    def __init__(  # noqa: PLR0913  # the parts of an answer, all by keyword
        self,
        platform_message: str = "",
        *,
        code: str = "",
        status: int = 200,
        body: bytes = b"",
        retry_after: float | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        code_text = f"code {code}" if code else "no code"
        status_text = "" if status == _OK else f"HTTP {status}, "
        shown = f"{status_text}{code_text}: {platform_message}" if platform_message else f"{status_text}{code_text}"
        super().__init__(one_line(shown, MESSAGE), outcome=outcome)
        self.code = code
        self.platform_message = platform_message
        self.status = status
        self.body = body
        self.retry_after = retry_after


_OK = 200


class AuthenticationError(ApiError):
    """The platform refused the signature or the credentials: further requests would fail too."""


class TimestampExpired(AuthenticationError):
    """The signature's timestamp is too old or in the future: check this machine's clock and the dialect's zone."""


class Throttled(ApiError):
    """The platform limits the request rate; ``retry_after`` is the seconds to wait, or None if it gives none."""


class NotFound(ApiError):
    """The group does not exist."""


class AlreadyMember(ApiError):
    """The account is already in the group."""


class NotMember(ApiError):
    """The account is not in the group."""


class ServerTrouble(ApiError):
    """The platform reports an error on its side; it may have acted."""

    outcome = Outcome.UNKNOWN


class DeadlineExceeded(RbimError, TimeoutError):
    """The call's deadline passed, or the client's limits would not let the request start before it."""


class ClientClosed(RbimError):
    """The client was closed during this call, or used before it was entered or after it was left."""


class CallbackRejected(RbimError):
    """A delivery that is not authentic or cannot be read.

    ``reason`` is the text of a :class:`~rbim.callbacks.Reason`; ``body`` is the raw bytes if they cannot be read.
    """

    def __init__(self, message: str = "", *, reason: str = "", body: bytes = b"") -> None:
        super().__init__(one_line(message, MESSAGE))
        self.reason = reason
        self.body = body


@frozen(kw_only=True)
class Attempt:
    """One attempt of a call, with its number from 1.

    ``elapsed`` is in seconds since the request was handed to the transport. ``status`` is None without an answer, ``code``
    without a code in it. ``outcome`` and ``error`` (the name of the exception's class) are None for a successful attempt.
    """

    number: int
    elapsed: float
    status: int | None = None
    code: str | None = None
    outcome: Outcome | None = None
    error: str | None = None
