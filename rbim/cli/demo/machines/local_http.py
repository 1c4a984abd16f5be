"""Requests with JSON to servers of this machine: the control interface of the emulator, and the monitors of NATS servers."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import define, field

from rbim._support import json
from rbim.errors import RbimError
from rbim.http import Request
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

__all__ = ["LocalHttp"]

TIMEOUT = 10.0
OK = 200
NO_QUERY: Mapping[str, str] = MappingProxyType({})


@define(eq=False)
class LocalHttp:
    """Sends the requests."""

    _transport: HttpxTransport = field(init=False, factory=lambda: HttpxTransport(trust_env=False))

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    async def get(self, origin: str, path: str, **query: str) -> Any:
        """Return the answer; None if there is none, or another status than 200."""
        try:
            return await self.send("GET", origin, path, query=query)
        except (RbimError, RuntimeError):
            return None

    async def send(
        self, method: str, origin: str, path: str, document: Any = None, *, query: Mapping[str, str] = NO_QUERY
    ) -> Any:
        """Send a document and return the answer. Raises RbimError, and RuntimeError for any status but 200."""
        headers = {"Content-Type": "application/json"}
        body = b"" if document is None else json.dumps(document)
        request = Request(method=method, origin=origin, path=path, query=query, headers=headers, body=body)
        answer = await self._transport.send(request, timeout=TIMEOUT)
        if answer.status != OK:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
        return json.loads(answer.body)
