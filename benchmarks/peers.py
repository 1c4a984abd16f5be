"""The same work without rbim, as a good user of each library would write it by hand.

Each peer has one client that all tasks share, whose limits allow the wanted number of requests in flight. It signs each
request, writes JSON in the way that its library offers, refuses an HTTP error status, reads the answer and checks its code.
All other behaviour of a library (redirects, cookies, its own headers) is left at its default. ``ca`` is the path of the
authority's certificate, for a server with TLS.
"""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.work import ACCOUNTS, GROUP, HEADERS, PATH, TIMEOUT, document, signature, success, together

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["Aiohttp", "Httpx", "Httpx2", "Pyreqwest"]


class _Peer(ABC):
    """The base class of the peers: enter and leave the client, run the tasks."""

    client: Any

    def __init__(self, origin: str, in_flight: int, ca: str | None = None) -> None:
        self._origin = origin
        self._in_flight = in_flight
        self._verify: Any = ssl.create_default_context(cafile=ca) if ca else True

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.client.__aexit__(kind, error, trace)

    async def run(self, more: Callable[[], bool], /) -> None:
        """Let each task invite once, and again while ``more`` returns True."""
        await together(lambda _: self.invite(GROUP, ACCOUNTS), self._in_flight, more)

    @abstractmethod
    async def invite(self, group: str, accounts: list[str]) -> dict[str, Any]:
        """Invite these accounts."""


class Httpx(_Peer):
    """httpx: a shared AsyncClient; ``json=`` writes with the standard library, ``json()`` reads with it."""

    library = "httpx"

    def __init__(self, origin: str, in_flight: int, ca: str | None = None) -> None:
        super().__init__(origin, in_flight, ca)
        library = import_module(self.library)
        limits = library.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
        self.client = library.AsyncClient(
            base_url=origin, headers=HEADERS, limits=limits, timeout=TIMEOUT, verify=self._verify
        )

    async def invite(self, group: str, accounts: list[str]) -> dict[str, Any]:
        """Invite these accounts."""
        sig, authorization = signature()
        response = await self.client.post(
            PATH, params={"sig": sig}, headers={"Authorization": authorization}, json=document(group, accounts)
        )
        response.raise_for_status()
        return success(response.json())


class Httpx2(Httpx):
    """httpx2: the same as httpx."""

    library = "httpx2"


class Aiohttp(_Peer):
    """aiohttp: a shared session; ``json=`` writes with the standard library, ``json()`` reads with it."""

    async def __aenter__(self) -> Self:
        import aiohttp

        self.client = aiohttp.ClientSession(
            self._origin,
            headers=HEADERS,
            connector=aiohttp.TCPConnector(limit=self._in_flight, ssl=self._verify),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT),
            raise_for_status=True,
        )
        return await super().__aenter__()

    async def invite(self, group: str, accounts: list[str]) -> dict[str, Any]:
        """Invite these accounts."""
        sig, authorization = signature()
        async with self.client.post(
            PATH, params={"sig": sig}, headers={"Authorization": authorization}, json=document(group, accounts)
        ) as response:
            return success(await response.json())


class Pyreqwest(_Peer):
    """pyreqwest: a shared client, which has no limits by default; ``body_json`` and ``json()`` run in Rust."""

    def __init__(self, origin: str, in_flight: int, ca: str | None = None) -> None:
        super().__init__(origin, in_flight, ca)
        from datetime import timedelta

        from pyreqwest.client import ClientBuilder

        builder = ClientBuilder().base_url(origin).default_headers(HEADERS).timeout(timedelta(seconds=TIMEOUT))
        if ca is not None:
            builder = builder.add_root_certificate_pem(Path(ca).read_bytes())
        self.client = builder.error_for_status(enable=True).build()

    async def invite(self, group: str, accounts: list[str]) -> dict[str, Any]:
        """Invite these accounts."""
        sig, authorization = signature()
        response = await (
            self.client.post(PATH)
            .query({"sig": sig})
            .header("Authorization", authorization)
            .body_json(document(group, accounts))
            .build()
            .send()
        )
        return success(await response.json())
