"""The rows of the benchmark of throughput: rbim over each transport, hand-written clients, and the floor."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from itertools import repeat
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.floor import Floor
from benchmarks.peers import Aiohttp, Httpx, Httpx2, Pyreqwest
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, TIMEOUT, together
from rbim import AsyncClient, Credentials, InviteJoinGroup, Limits, fan_out

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from benchmarks.work import Carrier
    from rbim.http import Transport

__all__ = ["ALL", "CLIENTS", "FLOOR", "PARSERS", "Contender", "FannedOut", "Rbim", "Ready"]

PARSERS = "httptools"
"""The module without which AsyncioTransport parses with h11."""


class Rbim:
    """The client of rbim; each call makes its operation."""

    def __init__(self, transport: Transport, origin: str, in_flight: int) -> None:
        self._in_flight = in_flight
        self.client = AsyncClient(
            base_url=origin,
            credentials=Credentials(app_id=APP_ID, app_token=APP_TOKEN),
            transport=transport,
            limits=Limits(concurrency=in_flight),
            timeout=TIMEOUT,
            deadline=2 * TIMEOUT,  # as by default, an attempt may take less than the call
        )
        invite = self.client.groups.invite
        self.invite: Callable[[int], Awaitable[object]] = lambda _: invite(group_id=GROUP, members=ACCOUNTS)

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def run(self, more: Callable[[], bool], /) -> None:
        """Let each task invite once, and again while ``more`` returns True."""
        await together(self.invite, self._in_flight, more)


class Ready(Rbim):
    """The same, but all calls are of one operation, made before."""

    def __init__(self, transport: Transport, origin: str, in_flight: int) -> None:
        super().__init__(transport, origin, in_flight)
        self.operation = InviteJoinGroup(group_id=GROUP, members=ACCOUNTS)
        self.invite = lambda _: self.client.send(self.operation)


class FannedOut(Ready):
    """The same calls as those of :class:`Ready`, by ``fan_out`` with a worker for each call in flight."""

    async def run(self, more: Callable[[], bool], /) -> None:
        """Invite, and again while ``more`` returns True; then abandon the calls in flight."""
        async with fan_out(self.client, repeat(self.operation), workers=self._in_flight) as outcomes:
            async for outcome in outcomes:
                assert outcome.answer, outcome  # type: ignore[union-attr]
                if not more():
                    break


@frozen
class Contender:
    """One row: its name, and the function that makes it for an origin, a number in flight and an authority's certificate.

    ``needs``: a module without which the row is left out. ``without``: a module that is hidden from its process.
    """

    name: str
    make: Callable[[str, int, str | None], Carrier]
    needs: str = ""
    without: str = ""

    @property
    def missing(self) -> str:
        """The module that it needs and that is not installed, or an empty text."""
        return self.needs if self.needs and find_spec(self.needs) is None else ""


def _rbim(
    transport: str, needs: str, *, name: str = "", kind: Callable[[Transport, str, int], Rbim] = Rbim, without: str = ""
) -> Contender:
    def make(origin: str, in_flight: int, ca: str | None = None) -> Rbim:
        made = getattr(import_module(f"rbim.transports.{transport.removesuffix('Transport').lower()}"), transport)
        return kind(made(verify=ca) if ca else made(), origin, in_flight)

    return Contender(name or f"rbim over {transport}", make, needs, without=without)


FLOOR = Contender("bytes-level floor", Floor)
CLIENTS = (
    _rbim("AsyncioTransport", PARSERS),
    _rbim("AsyncioTransport", "h11", name="rbim over AsyncioTransport, h11", without=PARSERS),
    _rbim("AiohttpTransport", "aiohttp"),
    _rbim("HttpxTransport", "httpx"),
    _rbim("Httpx2Transport", "httpx2"),
    Contender("pyreqwest by hand", Pyreqwest, "pyreqwest"),
    Contender("aiohttp by hand", Aiohttp, "aiohttp"),
    Contender("httpx by hand", Httpx, "httpx"),
    Contender("httpx2 by hand", Httpx2, "httpx2"),
    FLOOR,
)
SENDS = (
    _rbim("AsyncioTransport", PARSERS, name="send", kind=Ready),
    _rbim("AsyncioTransport", PARSERS, name="fan_out", kind=FannedOut),
)
ALL = {client.name: client for client in (*CLIENTS, *SENDS)}
"""Every row by its name."""
