"""What crosses the border between the core and the outside: messages of standard types, and the protocols around them.

No HTTP library's type appears here. A transport takes a :class:`Request` and gives a :class:`Response`; a signer turns an
unsigned request into a signed one; a clock tells the time and waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from attrs import field, fields, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rbim.errors import Outcome

__all__ = [
    "Attempt",
    "Clock",
    "Request",
    "Response",
    "Scope",
    "Signer",
    "Transport",
    "answered",
    "empty",
    "excerpt",
    "filled",
    "one_line",
]

EXCERPT = 120
"""Characters of an unreadable answer that an error message shows."""


def empty() -> dict[str, Any]:
    """Return a dictionary with nothing in it: the default of fields, at a third of what ``dict[str, str]()`` costs."""
    return {}


def _names(values: Mapping[str, str]) -> str:
    return f"<{', '.join(values)}>"


def _length(body: bytes) -> str:
    return f"<{len(body)} bytes>"


@frozen(kw_only=True, weakref_slot=False)
class Request:
    """One HTTP request, before or after signing.

    ``origin`` is scheme, host and port (``https://host:8883``), with any path prefix of the installation; ``path`` begins
    with a slash and carries no query. ``repeatable`` is False where the request must not be sent twice: a transport then
    takes no connection that has been idle for long. The repr shows no value of a query, a header or the body.
    """

    method: str = "POST"
    origin: str
    path: str
    query: Mapping[str, str] = field(factory=empty, repr=_names)
    headers: Mapping[str, str] = field(factory=empty, repr=_names)
    body: bytes = field(default=b"", repr=_length)
    repeatable: bool = False

    def signed(self, query: Mapping[str, str], headers: Mapping[str, str]) -> Request:
        """Return the request with this query and these headers in the place of its own."""
        return filled(self.method, self.origin, self.path, query, headers, self.body, repeatable=self.repeatable)

    @property
    def target(self) -> str:
        """The path with its query, as the request line carries it."""
        if not self.query:
            return self.path
        return f"{self.path}?{'&'.join(f'{_quoted(k)}={_quoted(v)}' for k, v in self.query.items())}"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that must not be shown: every query value and the ``Authorization``."""
        signing = (value for name, value in self.headers.items() if name.lower() == "authorization")
        return tuple(value for value in (*self.query.values(), *signing) if value)


class _Draft:
    """A request while it is filled: attributes of a frozen class take five times as long to set."""

    __slots__ = tuple(attribute.name for attribute in fields(Request))


class _AnswerDraft:
    """A response while it is filled."""

    __slots__ = ("body", "headers", "status")


def filled(  # noqa: PLR0913, PLR0917  # the fields of a request
    method: str,
    origin: str,
    path: str,
    query: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    repeatable: bool,
) -> Request:
    """Return a request, as ``Request(...)`` does at three times the cost."""
    made: Any = _Draft()
    made.method = method
    made.origin = origin
    made.path = path
    made.query = query
    made.headers = headers
    made.body = body
    made.repeatable = repeatable
    made.__class__ = Request
    request: Request = made
    return request


def answered(status: int, headers: Mapping[str, str], body: bytes) -> Response:
    """Return a response, as ``Response(...)`` does at three times the cost."""
    made: Any = _AnswerDraft()
    made.status = status
    made.headers = headers
    made.body = body
    made.__class__ = Response
    response: Response = made
    return response


def _quoted(text: str) -> str:
    return text if text.isalnum() and text.isascii() else quote(text, safe="")


@frozen(weakref_slot=False)
class Response:
    """One HTTP response: ``status``, ``headers`` (names in lower case, repeated ones joined by a comma), raw ``body``.

    The repr shows no value of a header: the ``Location`` of a redirect repeats the signed address.
    """

    status: int
    headers: Mapping[str, str] = field(factory=empty, repr=_names)
    body: bytes = b""


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


class Transport(Protocol):
    """What carries requests: an async context manager that serves many origins and queues nothing.

    ``send`` raises ``NotSent``, ``Unanswered`` or ``AnswerTooLarge`` and nothing else, and lets a cancellation through. It
    reads the whole answer, whatever its status, and follows no redirect.
    """

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # the transport's to keep
        """Carry one signed request; ``timeout`` is in seconds, for the whole attempt, and enforced here."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


class Signer(Protocol):
    """What signs requests, afresh for each attempt."""

    @property
    def app_id(self) -> str:
        """The application identifier, which the path of every operation carries."""
        ...

    def sign(self, request: Request, /) -> Request:
        """Return the request with whatever proves who sends it."""
        ...


class Scope(Protocol):
    """A cancel scope, as anyio's: what runs inside is cancelled when the scope is, or when its time is over."""

    @property
    def cancelled_caught(self) -> bool:
        """Whether the scope ended what ran inside it."""
        ...

    def cancel(self) -> Any:  # anyio returns an awaitable in one version and None in the next
        """End what runs inside."""
        ...


class Clock(Protocol):
    """What tells the time and waits, so that tests run on emulated time."""

    def now(self) -> datetime:
        """Return the wall-clock time, with a time zone."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait."""
        ...

    def scope(self, seconds: float, /) -> AbstractContextManager[Scope]:
        """Return a cancel scope whose time is over after so many seconds."""
        ...


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer as one printable line."""
    shown = one_line(body[: EXCERPT * 4].decode("utf-8", "replace"), EXCERPT)
    cut = len(body) > EXCERPT * 4 and not shown.endswith("...")
    return f"'{shown}...'" if cut else f"'{shown}'"


def one_line(text: str, at_most: int) -> str:
    """Return what somebody else wrote as one printable line, so that a log has no line of theirs."""
    line = " ".join(text[: at_most * 4].split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:at_most])
    return f"{shown}..." if len(line) > at_most or len(text) > at_most * 4 else shown
