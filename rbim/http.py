"""HTTP requests and responses as values; the protocols of transports and signers.

No HTTP library's type appears here. A :class:`Transport` takes a :class:`Request` and returns a :class:`Response`; a
:class:`Signer` turns an unsigned request into a signed one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from attrs import field, fields, frozen

from rbim._support.text import empty

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self


__all__ = ["Request", "Response", "Signer", "Transport", "answered", "filled"]


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
