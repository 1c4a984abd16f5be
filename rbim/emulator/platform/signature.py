"""The platform's check of the signature, written from the written scheme; it shares no code with the signer.

``sig`` is compared without regard to case: official text requires upper case, several clients send lower case. The timestamp
is valid for 24 hours, in the dialect's zone.
"""

from __future__ import annotations

import binascii
import re
from datetime import datetime, timedelta
from hashlib import md5
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import quote

from attrs import define

from rbim.emulator.platform.rules import Refusal
from rbim.errors import AuthenticationError, TimestampExpired

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from rbim.clock import Clock
    from rbim.credentials import Credentials
    from rbim.dialect import Dialect

__all__ = ["SignatureCheck"]

_STAMP = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})")


@define
class SignatureCheck:
    """Checks signatures against the credentials of the one application, and timestamps against the clock."""

    credentials: Credentials
    clock: Clock
    dialect: Dialect

    def check(self, app_id: str | None, query: Mapping[str, str], headers: Mapping[str, str]) -> None:
        """Refuse a request that is not signed by the application in its path, where the id may be percent-encoded.

        ``app_id`` is None if the path names no application, as that of another API. ``headers`` has lower-case
        names. Raises :class:`~rbim.emulator.Refusal`.
        """
        claimed, stamp = _authorization(headers.get("authorization", ""))
        token = self.credentials.app_token.reveal()
        expected = md5((claimed + token + stamp).encode(), usedforsecurity=False).hexdigest()
        matches = compare_digest(query.get("sig", "").lower().encode(), expected.encode())
        own = self.credentials.app_id
        if not matches or claimed != own or app_id not in (None, own, quote(own, safe="")):
            raise Refusal("the signature is not that of this application", kind=AuthenticationError)
        if abs(self.clock.now() - _moment(stamp, self.dialect.zone)) > VALID_FOR:
            raise Refusal(f"the timestamp {stamp} is more than 24 hours off", kind=TimestampExpired)


VALID_FOR = timedelta(hours=24)  # as in the vendor's sister product (Authentication; O)


def _authorization(header: str) -> tuple[str, str]:
    try:
        decoded = binascii.a2b_base64(header.strip().rstrip(";").encode("ascii"), strict_mode=True).decode("ascii")
    except (ValueError, UnicodeError):
        decoded = ""
    app_id, colon, stamp = decoded.rpartition(":")
    if not colon or not app_id:
        raise Refusal("Authorization is not the Base64 of application id, colon and timestamp", kind=AuthenticationError)
    return app_id, stamp


def _moment(stamp: str, zone: tzinfo) -> datetime:
    parts = _STAMP.fullmatch(stamp)
    try:
        year, month, day, hour, minute, second = map(int, parts.groups() if parts else ())
        return datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        raise Refusal(f"the timestamp {stamp!r} is not of the form yyyyMMddHHmmss", kind=AuthenticationError) from None
