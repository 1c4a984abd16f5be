"""The emulator itself: one platform behind three doors, with what a test or a second screen wants to do to it."""

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
    """The described platform in one object. Pass it as ``transport=`` to a client, or serve ``asgi``, an ASGI 3
    application, over HTTP.

    ``credentials`` are those of the one application it knows (fresh ones unless given), ``dialect`` and ``clock`` as the
    client's, ``administrator`` the account that acts where none is named, ``seed`` the root of all chance in its faults.
    Every account counts as logged in before, unless :meth:`never_logged_in` or a list of known ``accounts`` says otherwise.
    It checks no roles unless ``check_roles`` is set: which ones may do what is not described. With ``strict_dialect`` a
    request whose effect is a guess of the dialect's raises :class:`~rbim.emulator.DependsOnDialect`; how requests are
    written (versions, shapes, limits, zone), which code says what, and what answers show of a private group do not count.
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
        gatekeeper = SignatureCheck(self.credentials, self.clock, self.dialect.zone)
        self.platform = Platform(self.world, gatekeeper, self.faults, self.requests)
        self.asgi = EmulatorApp(self.platform, self.clock)

    def never_logged_in(self, *accounts: str) -> None:
        """Let these accounts be refused by invitations ("An invited member must be a user who has already logged in")."""
        self.state.never_logged_in.update(accounts)

    def snapshot(self) -> Snapshot:
        """Return the state as it is now, to :meth:`restore` it later, or to compare it: equal states, equal snapshots."""
        return Snapshot.of(self.state)

    def restore(self, snapshot: Snapshot) -> None:
        """Make the state what it was. A snapshot can be restored often, and into other emulators.

        Journal, faults and clock go on as they are. Groups and tasks are new objects: look them up again.
        """
        snapshot.restore(self.state)

    def export(self) -> dict[str, Any]:
        """Return the whole state as a document for ``json.dumps``, with a ``version``."""
        return export_state(self.state)

    def load(self, document: object) -> None:
        """Make the state what a document of :meth:`export` says.

        Raises InvalidRequest that says what is wrong and where; the state then stays what it was.
        """
        load_state(self.state, document)

    # The transport door.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        return None

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # a transport keeps it
        """Answer a client's request without a socket, with the faults that its plan holds.

        Raises NotSent or Unanswered, as a transport over a network would.
        """
        served = self.platform.serve(request.method, request.path, request.query, request.headers, request.body)
        verdict = served.verdict
        if verdict.refuse:
            raise NotSent("connection refused")
        wait = verdict.delay + verdict.body_time
        if wait > timeout:
            await self.clock.sleep(timeout)
            raise Unanswered(f"no whole answer within {timeout:g} s")
        await (self.clock.sleep(wait) if wait else checkpoint())
        if verdict.reset_before or verdict.reset_after or verdict.keep is not None:
            raise Unanswered("the answer was cut short" if verdict.keep is not None else "connection reset")
        return served.response
