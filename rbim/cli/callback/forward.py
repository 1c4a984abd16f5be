"""``rbim callback serve --forward-to``: posts each event to a local application, as the platform posted it.

An inbox stores no signature headers. So those of a delivery are kept in memory until its event is handled, and are sent
unchanged while the application still accepts their time. Later, after a restart, and on a replay, the same body is signed
anew, with the current time and the current token of its application.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING

from rbim._support.text import excerpt
from rbim.callbacks.signature import Policy, Verified, keys_of, sign, verify
from rbim.cli.callback.send import target_of, without_user
from rbim.http import Request
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rbim.callbacks.worker.router import HandlerContext
    from rbim.credentials import Credentials

__all__ = ["FORWARD_TIMEOUT", "Forwarder", "NotForwarded"]

OK = 200
FORWARD_TIMEOUT = 60.0
"""Seconds in which the application must answer: long, because it may stand in a debugger."""

MOST_KEPT = 10_000  # deliveries whose headers are kept
FRESH = Policy(back=240.0, ahead=60.0)  # a minute below the default of receivers
SENT = ("checksum", "md5", "curtime", "content-type")


class NotForwarded(Exception):
    """The application did not answer with 200."""


class Forwarder:
    """Posts events to ``url`` through ``transport``, which the caller enters. Raises InvalidRequest for a wrong URL."""

    def __init__(self, url: str, credentials: Sequence[Credentials]) -> None:
        self.transport = HttpxTransport(trust_env=False)
        self._target = target_of(url, "--forward-to")
        self._shown = without_user(url)
        self._credentials = credentials
        self._keys = keys_of(credentials)
        self._kept: dict[bytes, dict[str, str]] = {}  # by a digest of the body, which may have a megabyte

    def received(self, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Keep the headers of a delivery if they are authentic."""
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers]
        if self._fresh(pairs, body):
            self._kept[_digest(body)] = {name: value for name, value in pairs if name in SENT}
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]

    async def forward(self, context: HandlerContext) -> None:
        """Post the body of an event. Raises NotForwarded, or the transport's error."""
        target = self._target
        request = Request(
            origin=target.origin,
            path=target.path,
            query=target.query,
            headers=self._headers(context),
            body=context.body,
            repeatable=True,
        )
        response = await self.transport.send(request, timeout=FORWARD_TIMEOUT)
        if response.status != OK:
            raise NotForwarded(f"{self._shown} answered {response.status} {excerpt(response.body)}".rstrip())
        self._kept.pop(_digest(context.body), None)

    def _headers(self, context: HandlerContext) -> dict[str, str]:
        kept = self._kept.get(_digest(context.body), {})
        if self._fresh(kept.items(), context.body):
            return kept
        own = next((each for each in self._credentials if each.app_id == context.app_id), None)
        if own is None:
            raise NotForwarded(f"there is no token of application {context.app_id} to sign it with")
        return {"content-type": "application/json", **sign(context.body, credentials=own, now=datetime.now(UTC))}

    def _fresh(self, headers: Iterable[tuple[str, str]], body: bytes) -> bool:
        verified = verify(list(headers), body, credentials=self._keys, now=datetime.now(UTC), policy=FRESH)
        return isinstance(verified, Verified)


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
