"""The signature scheme of applications.

The interface description does not show it. The default is the scheme of public clients (field notes, grade M); any other
scheme can be used through the ``Signer`` protocol.
"""

from __future__ import annotations

import base64
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from rbim.clock import SystemClock
from rbim.dialect import CHINA
from rbim.http import filled

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from rbim.clock import Clock
    from rbim.credentials import Credentials
    from rbim.http import Request

__all__ = ["AppSigner"]


class AppSigner:
    """The signer that signs as the application, like public clients.

    ``sig`` is the upper-case MD5 hex of app id, token and timestamp, ``Authorization`` the Base64 of ``id:timestamp``.
    The timestamp is ``yyyyMMddHHmmss`` in ``zone`` (default: UTC+08:00; no page names a zone), new for each attempt; the
    platform reportedly accepts it for 24 hours (``Dialect.signature_valid_for``).
    """

    # what the requests of one second share, made with the first of them
    _query: Mapping[str, str]
    _authorization: str
    _unsigned: Mapping[str, str] | None
    _signed: Mapping[str, str]

    def __init__(self, credentials: Credentials, *, clock: Clock | None = None, zone: tzinfo = CHINA) -> None:
        from hashlib import md5

        self.app_id = credentials.app_id
        self.clock = clock or SystemClock()
        self.zone = zone
        self._hash = md5((credentials.app_id + credentials.app_token.reveal()).encode(), usedforsecurity=False)
        self._second: int | None = None

    def __repr__(self) -> str:
        return f"AppSigner(app_id={self.app_id!r}, zone={self.zone})"

    def sign(self, request: Request, /) -> Request:
        """Return the request with a new ``sig`` in its query and a new ``Authorization`` header."""
        clock = self.clock
        # SystemClock's second is read without making a datetime, which is slower
        second = int(time.time() if type(clock) is SystemClock else clock.now().timestamp())
        if second != self._second:  # the timestamp changes once a second: all requests of one second share a signature
            stamp = clock.now().astimezone(self.zone).strftime("%Y%m%d%H%M%S")
            digest = self._hash.copy()
            digest.update(stamp.encode())
            self._query = MappingProxyType({"sig": digest.hexdigest().upper()})
            self._authorization = base64.b64encode(f"{self.app_id}:{stamp}".encode()).decode()
            self._second = second
            self._unsigned = None
        if request.headers != self._unsigned:  # most requests have equal headers: reuse the signed ones
            self._unsigned = {**request.headers}
            self._signed = MappingProxyType({**request.headers, "Authorization": self._authorization})
        query = {**request.query, **self._query} if request.query else self._query
        method, origin, path = request.method, request.origin, request.path
        return filled(method, origin, path, query, self._signed, request.body, repeatable=request.repeatable)
