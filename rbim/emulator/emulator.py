"""The emulator itself: a request in, a response out, over one state; as a transport and as an ASGI app."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from rbim import catalogue, jsontext
from rbim.clock import SystemClock
from rbim.codec import SUCCESS, Converters
from rbim.dialect import Dialect
from rbim.emulator.asgi import App
from rbim.emulator.rules import MALFORMED, RULES, UNKNOWN_OPERATION, Refusal, World
from rbim.emulator.signature import Gatekeeper
from rbim.emulator.state import State
from rbim.errors import InvalidRequest
from rbim.groups import GROUP
from rbim.message import Response
from rbim.signing import Credentials

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from rbim.message import Clock, Request
    from rbim.operation import Endpoint, Operation

__all__ = ["Emulator"]

JSON = {"content-type": "application/json;charset=utf-8"}


class Emulator:
    """The described platform in one object. Pass it as ``transport=`` to a client, or serve ``asgi``, an ASGI 3
    application, over HTTP.

    ``credentials`` are those of the one application it knows (fresh ones unless given), ``dialect`` and ``clock`` as the
    client's, ``administrator`` the account that acts where none is named. Every account counts as logged in before, unless
    :meth:`never_logged_in` says otherwise. It checks no roles: which ones may do what is not described.
    """

    def __init__(
        self,
        *,
        credentials: Credentials | None = None,
        dialect: Dialect | None = None,
        clock: Clock | None = None,
        administrator: str = "admin",
    ) -> None:
        self.credentials = credentials or Credentials(app_id=secrets.token_hex(16), app_token=secrets.token_hex(16))
        self.dialect = dialect or Dialect()
        self.clock = clock or SystemClock()
        self.state = State()
        self.asgi = App(self.handle)
        self._world = World(self.state, self.dialect, self.clock, administrator)
        self._gatekeeper = Gatekeeper(self.credentials, self.clock, self.dialect.zone)
        self._converters = Converters(self.dialect.zone, self.dialect.members_shape)

    def never_logged_in(self, *accounts: str) -> None:
        """Let these accounts be refused by invitations ("An invited member must be a user who has already logged in")."""
        self.state.never_logged_in.update(accounts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ARG002, ASYNC109  # it never waits
        """Answer a client's request, without a socket."""
        await checkpoint()
        return self.handle(request.method, request.path, request.query, request.headers, request.body)

    def handle(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Response:
        """Answer one request. Whatever it is, the answer is JSON with a code."""
        kind = catalogue.find(path)
        endpoint = kind.endpoint if kind is not None else GROUP
        try:
            _posted(method)
            lower = {name.lower(): value for name, value in headers.items()}
            self._gatekeeper.check(_app_id(path), query, lower)
            return self._answer(endpoint, SUCCESS, "success", self._carry_out(kind, path, body))
        except Refusal as refusal:
            code = refusal.code or self.dialect.code_of(refusal.kind)
            return self._answer(endpoint, code, refusal.why)

    def _carry_out(self, kind: type[Operation[Any]] | None, path: str, body: bytes) -> dict[str, Any]:
        rule = None if kind is None else RULES.get(kind)
        if kind is None or rule is None:
            reason = f"the emulator does not know what {path.rpartition('/')[2]} does"
            raise Refusal(reason, code=UNKNOWN_OPERATION)
        op = self._read(kind, body)
        document: dict[str, Any] = self._converters.fast.unstructure(rule(self._world, op))
        return document

    def _read(self, kind: type[Operation[Any]], body: bytes) -> Operation[Any]:
        try:
            document = jsontext.loads(body)
        except jsontext.NotJson as error:
            raise Refusal(str(error), code=MALFORMED) from None
        try:
            op: Operation[Any] = self._converters.fast.structure(document, kind)
            op.check(self.dialect, self.clock)
        except InvalidRequest as error:
            raise Refusal(error.message, code=MALFORMED) from None
        except Exception:
            reason = self._converters.why_not(document, kind)
            raise Refusal(reason, code=MALFORMED) from None
        return op

    def _answer(self, endpoint: Endpoint, code: str, said: str, answer: dict[str, Any] | None = None) -> Response:
        document: dict[str, Any] = {endpoint.code: code}
        if answer is None or endpoint.payload is not None:  # a group operation's success carries no message
            document[endpoint.message] = said
        if answer is not None:
            document |= {endpoint.payload: answer} if endpoint.payload is not None else answer
        return Response(200, JSON, jsontext.dumps(document))


def _posted(method: str) -> None:
    if method != "POST":
        reason = f"{method} is not described: operations are posted"
        raise Refusal(reason, code=MALFORMED)


def _app_id(path: str) -> str:
    """Return the application of either path shape; empty where there is none."""
    parts = path.split("/")
    names = [part.lower() for part in parts]
    at = names.index("application") + 1 if "application" in names else len(parts)
    return parts[at] if at < len(parts) else ""
