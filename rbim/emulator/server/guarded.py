"""The guard in front of each of the emulator's ports, and its answers."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from rbim._support import json
from rbim._support.local_server import LocalServerGuard
from rbim.codes import MALFORMED
from rbim.emulator.asgi import write
from rbim.errors import InvalidRequest
from rbim.http import Response
from rbim.page.assets import SECURITY_HEADERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from rbim._support.asgi import Receive, Scope, Send

__all__ = ["JSON", "OUTCOME", "GuardedApp", "WatchedApp", "guard_of"]

OUTCOME = "rbim.outcome"
"""The key of a scope for the status and the reason of a refusal, or of a command, for what is in front."""

JSON = {"content-type": "application/json;charset=utf-8"}
ICON = "/favicon.ico"  # a browser asks for it by itself after each answer that it shows, also after a refusal


def guard_of(allowed_hosts: Iterable[str], *, bound: str = "localhost") -> LocalServerGuard:
    """Return the guard of a server. Raises InvalidRequest if an allowed host is not a name or an address."""
    try:
        return LocalServerGuard(allowed_hosts, bound=bound)
    except ValueError as error:
        raise InvalidRequest(f"allowed_hosts: {error}", field="allowed_hosts") from None


class GuardedApp:
    """An ASGI 3 application behind the guard: a refused request does not reach it, nor does a browser's request for an icon.

    The answer has the key ``error`` of the control interface, and those of the platform, so that a client shows the reason.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], guard: LocalServerGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        why = self._guard.refusal(scope) if scope["type"] == "http" else None
        if why is not None:
            scope[OUTCOME] = 403, why
            await _refuse(send, 403, why)
        elif scope["type"] == "http" and scope["path"] == ICON:
            await _refuse(send, 404, "the emulator has no icon")
        else:
            await self._app(scope, receive, send)


class WatchedApp:
    """An ASGI 3 application that tells ``watch`` of each request when it is answered: its scope, and the seconds it took."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], watch: Callable[[Scope, float], None]
    ) -> None:
        self._app = app
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        began = perf_counter()
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            scope[OUTCOME] = 500, str(error)
            raise
        finally:
            self._watch(scope, perf_counter() - began)


async def _refuse(send: Send, status: int, why: str) -> None:
    document: dict[str, Any] = {"error": why, "statusCode": MALFORMED, "statusMsg": why}
    await write(send, Response(status, JSON | SECURITY_HEADERS, json.dumps(document)))
