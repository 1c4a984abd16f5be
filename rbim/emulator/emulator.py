"""The emulator: one platform state behind a transport, an ASGI application and direct calls."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from rbim.clock import SystemClock
from rbim.credentials import Credentials
from rbim.dialect import Dialect
from rbim.emulator.asgi import EmulatorApp
from rbim.emulator.copies.copier import Copier
from rbim.emulator.faults.requests import Faults
from rbim.emulator.membership import Membership
from rbim.emulator.messaging import Messaging
from rbim.emulator.platform.rules import World
from rbim.emulator.platform.service import Platform
from rbim.emulator.platform.signature import SignatureCheck
from rbim.emulator.platform.snapshot import Snapshot, export_state, load_state
from rbim.emulator.platform.state import State
from rbim.emulator.request_log import RequestLog
from rbim.errors import NotSent, Unanswered

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Any, Self

    from rbim.clock import Clock
    from rbim.http import Request, Response

__all__ = ["Emulator"]


class Emulator(Membership, Messaging):
    """An emulator of the described platform.

    Pass it to a client as ``transport=``, or serve its ``asgi``, an ASGI 3 application, over HTTP.

    ``credentials`` are those of the only application it knows (default: random ones; ``own_credentials`` is then True).
    ``dialect`` and ``clock`` are as for the client. ``administrator`` is the account that acts when a request names no
    account. ``accounts`` are those that have logged in before (default: all; :meth:`never_logged_in` excludes some).
    ``seed`` determines all random choices of its faults.

    With ``check_roles`` an operation is refused to members without the role for it, by the dialect's ``allowed_roles``
    (default: no check, because the description does not say which roles may do what). With ``strict_dialect`` a request
    whose effect the description leaves to the dialect raises :class:`~rbim.emulator.DependsOnDialect`. That does not apply
    to the form of requests (versions, shapes, limits, zone) as long as it is the dialect's, to which code means what, or to
    what answers show of a private group.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        credentials: Credentials | None = None,
        dialect: Dialect | None = None,
        clock: Clock | None = None,
        administrator: str = "admin",
        accounts: Iterable[str] | None = None,
        check_roles: bool = False,
        strict_dialect: bool = False,
        seed: int = 0,
    ) -> None:
        self.own_credentials = credentials is None
        self.credentials = credentials or Credentials(app_id=secrets.token_hex(16), app_token=secrets.token_hex(16))
        self.dialect = dialect or Dialect()
        self.clock = clock or SystemClock()
        self.state = State(known=None if accounts is None else set(accounts))
        self.faults = Faults(self.clock, seed)
        self.requests = RequestLog()
        self.world = World(
            state=self.state,
            dialect=self.dialect,
            clock=self.clock,
            administrator=administrator,
            check_roles=check_roles,
            strict=strict_dialect,
        )
        self.copier = Copier(self.world, self.credentials, seed)
        self.deliveries = self.copier.dispatch.deliveries
        self.copy_faults = self.copier.faults
        self._signature_check = SignatureCheck(self.credentials, self.clock, self.dialect)
        self.platform = Platform(self.world, self._signature_check, self.faults, self.requests)
        self.asgi = EmulatorApp(self.platform, self.clock)

    def never_logged_in(self, *accounts: str) -> None:
        """Mark accounts as never logged in, so that invitations refuse them.

        Interface: "An invited member must be a user who has already logged in".
        """
        self.state.never_logged_in.update(accounts)

    def change_token(self, app_token: str) -> Credentials:
        """Give the application another token at once, as its console may, and return the new ``credentials``.

        Requests that are signed with the token before are refused from now on, and copies are signed with the new one.
        """
        self.credentials = Credentials(app_id=self.credentials.app_id, app_token=app_token)
        self._signature_check.credentials = self.copier.dispatch.credentials = self.credentials
        return self.credentials

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the state, to :meth:`restore` it or to compare it: equal states have equal snapshots."""
        return Snapshot.of(self.state)

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state back to a snapshot.

        A snapshot can be restored many times, and into other emulators. Request log, faults and clock do not change. Groups
        and tasks are new objects afterwards: look them up again.
        """
        snapshot.restore(self.state)

    def export(self) -> dict[str, Any]:
        """Return the whole state as a document for ``json.dumps``, with a ``version``."""
        return export_state(self.state)

    def load(self, document: object) -> None:
        """Replace the state by a document of :meth:`export`.

        Raises InvalidRequest that names the wrong fields; the state then does not change.
        """
        load_state(self.state, document, self.dialect)

    # The emulator as a transport.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # a transport enforces it
        """Answer a client's request without a socket, with the faults of the plan. ``timeout`` is in seconds.

        Raises NotSent or Unanswered, as a transport over a network would.
        """
        if timeout <= 0:
            raise NotSent(f"no time is left for the request (the time-out is {timeout:g} s)")
        answer = self.platform.serve(request.method, request.path, request.query, request.headers, request.body)
        injection = answer.injection
        if injection.refuse:
            raise NotSent("connection refused")
        wait = injection.delay + injection.body_time
        if wait > timeout:
            await self.clock.sleep(timeout)
            raise Unanswered(f"no complete response within {timeout:g} s")
        await (self.clock.sleep(wait) if wait else checkpoint())
        if injection.reset_before or injection.reset_after or injection.keep is not None:
            raise Unanswered("the response was cut short" if injection.keep is not None else "connection reset")
        return answer.response
