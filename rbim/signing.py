"""How requests prove who sends them: the application scheme, and the credentials it needs.

The interface description shows neither; what public clients do (field notes, graded M) is the default, and any other
scheme fits through the ``Signer`` protocol.
"""

from __future__ import annotations

import base64
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from attrs import frozen

from rbim.clock import SystemClock
from rbim.dialect import CHINA
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from rbim.message import Clock, Request

__all__ = ["AppSigner", "Credentials", "Secret"]


class Secret:
    """A text that is not shown: not by repr or str, not by logging, not by ``attrs.asdict``, not in a pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        reason = "a secret is not pickled; read it anew where it is needed (AsyncClient.from_env)"
        raise TypeError(reason)


def _fits(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.split() == [text]


@frozen(init=False)
class Credentials:
    """An application's identifier and token, from the platform's console.

    Not the *account's* identifier and token: the account-level interface is another product that signs by the same formula,
    and mixing them up is the most common mistake. They belong on a server, never in a client application. Raises
    InvalidRequest for what is empty, not ASCII or has white space in it.
    """

    app_id: str
    app_token: Secret

    def __init__(self, *, app_id: str, app_token: str | Secret) -> None:
        # Rebound at once: a traceback that shows the locals of its frames must find no token here.
        app_token = app_token if isinstance(app_token, Secret) else Secret(app_token)
        object.__setattr__(self, "app_id", app_id)
        object.__setattr__(self, "app_token", app_token)
        for name, fits in (("app_id", _fits(app_id)), ("app_token", _fits(app_token.reveal()))):
            if not fits:
                reason = f"{name}: ASCII text without white space is needed"
                raise InvalidRequest(reason, field=name)


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
