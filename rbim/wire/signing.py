"""How requests are signed: the scheme of applications.

The interface description does not show it; what public clients do (field notes, graded M) is the default, and any other
scheme fits through the ``Signer`` protocol.
"""

from __future__ import annotations

import base64
import time
from types import MappingProxyType
from typing import TYPE_CHECKING

from rbim.clock import SystemClock
from rbim.dialect import CHINA

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from rbim.clock import Clock
    from rbim.credentials import Credentials
    from rbim.http import Request

__all__ = ["AppSigner"]


class AppSigner:
    """Signs as the application, the way public clients do.

    ``sig`` is the upper-case MD5 hex of app id, token and timestamp, ``Authorization`` the Base64 of ``id:timestamp``.
    The timestamp is ``yyyyMMddHHmmss`` in ``zone`` (UTC+08:00 unless told: no page names one), taken afresh for each
    attempt; the platform is said to accept it for 24 hours.
    """

    def __init__(self, credentials: Credentials, *, clock: Clock | None = None, zone: tzinfo = CHINA) -> None:
        from hashlib import md5

        self.app_id = credentials.app_id
        self.clock = clock or SystemClock()
        self.zone = zone
        self._hash = md5((credentials.app_id + credentials.app_token.reveal()).encode(), usedforsecurity=False)
        self._second = -1
        self._query: Mapping[str, str] = {}
        self._authorization = ""
        self._unsigned: Mapping[str, str] | None = None
        self._signed: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"AppSigner(app_id={self.app_id!r}, zone={self.zone})"

    def sign(self, request: Request, /) -> Request:
        """Return the request with a fresh ``sig`` in its query and ``Authorization`` among its headers."""
        clock = self.clock
        # the machine's own need not make a datetime to tell the second
        second = int(time.time() if type(clock) is SystemClock else clock.now().timestamp())
        if second != self._second:  # the signature holds for a second: one MD5 serves all requests of it
            stamp = clock.now().astimezone(self.zone).strftime("%Y%m%d%H%M%S")
            digest = self._hash.copy()
            digest.update(stamp.encode())
            self._query = MappingProxyType({"sig": digest.hexdigest().upper()})
            self._authorization = base64.b64encode(f"{self.app_id}:{stamp}".encode()).decode()
            self._second = second
            self._unsigned = None
        if request.headers != self._unsigned:  # most requests have the same, and in one second the same Authorization
            self._unsigned = {**request.headers}
            self._signed = MappingProxyType({**request.headers, "Authorization": self._authorization})
        return request.signed({**request.query, **self._query} if request.query else self._query, self._signed)
