"""Where the servers are, and how to log in: addresses, the credentials file, TLS."""

from __future__ import annotations

import os
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from attrs import field, frozen

from rbim._support.text import quoted
from rbim.errors import InvalidRequest
from rbim.transports._shared.network import load_certificate

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

__all__ = ["NatsSettings", "addresses", "checked_name", "is_location", "location"]

VARIABLES = {
    "credentials_file": "RBIM_NATS_CREDS_FILE",
    "ca_file": "RBIM_NATS_CA_FILE",
    "cert_file": "RBIM_NATS_CERT_FILE",
    "key_file": "RBIM_NATS_KEY_FILE",
}
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
FORM = "nats://host:4222, tls://host:4222, or several of them"


def _file(given: object) -> Path | None:
    return None if given is None else Path(cast("Any", given))


@frozen(kw_only=True)
class NatsSettings:
    """How to log in to the servers: never a part of their addresses.

    ``credentials_file``: the file with a user's JWT and key that the operator of the servers made (``.creds``). It is read
    again at each connection, so that it can be replaced at any time. ``ca_file``: certificates of the authorities to trust
    (default: those of the system). ``cert_file`` and ``key_file``: the certificate of this machine, if the servers ask for
    one. With one of the three, or an address with ``tls://``, all connections use TLS.

    Raises InvalidRequest for a file that is not there, a credentials file with the line ends of Windows, and a certificate
    without a key.
    """

    credentials_file: Path | None = field(default=None, converter=_file)
    ca_file: Path | None = field(default=None, converter=_file)
    cert_file: Path | None = field(default=None, converter=_file)
    key_file: Path | None = field(default=None, converter=_file)

    def __attrs_post_init__(self) -> None:
        for name in VARIABLES:
            path: Path | None = getattr(self, name)
            if path is not None and not path.is_file():
                raise InvalidRequest(f"{name}: there is no file {path}", field=name)
        if self.credentials_file is not None and b"\r" in self.credentials_file.read_bytes():  # nats-py reads a wrong key
            raise InvalidRequest(
                f"credentials_file: {self.credentials_file} has the line ends of Windows (CRLF): save it with LF",
                field="credentials_file",
            )
        if (self.cert_file is None) != (self.key_file is None):
            raise InvalidRequest("cert_file, key_file: pass both or none", field="cert_file")

    @classmethod
    def from_env(cls) -> Self:
        """Return the settings in the environment variables.

        They are ``RBIM_NATS_CREDS_FILE``, ``RBIM_NATS_CA_FILE``, ``RBIM_NATS_CERT_FILE`` and ``RBIM_NATS_KEY_FILE``. Raises
        InvalidRequest that names the wrong variable.
        """
        given = {name: os.environ.get(variable) or None for name, variable in VARIABLES.items()}
        try:
            return cls(**given)
        except InvalidRequest as error:
            variable = VARIABLES[error.field]
            raise InvalidRequest(f"{variable}: {error.message}", field=variable) from None

    def tls(self, servers: Iterable[str]) -> ssl.SSLContext | None:
        """Return the TLS context for these servers, or None. Raises InvalidRequest for files that are not certificates."""
        if self.ca_file is None and self.cert_file is None and not any(each.startswith("tls://") for each in servers):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                load_certificate(context, self.cert_file, self.key_file)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"ca_file, cert_file, key_file: {error}", field="ca_file") from error
        return context


def addresses(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of servers: of an iterable, or of a text with commas. Raises InvalidRequest."""
    found = tuple(map(_address, servers.split(",") if isinstance(servers, str) else servers))
    if not found:
        raise InvalidRequest(f"servers: pass at least one address: {FORM}", field="servers")
    return found


def _address(given: object) -> str:
    text = given.strip() if isinstance(given, str) else ""
    address = text if "://" in text else f"nats://{text}"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise InvalidRequest(f"servers: use {FORM}, not {quoted(given)}", field="servers") from None
    if "@" in parts.netloc:
        raise InvalidRequest(
            "servers: an address must not contain a user or a password; put them into a credentials file and pass "
            "settings=NatsSettings(credentials_file=...), or set RBIM_NATS_CREDS_FILE",
            field="servers",
        )
    if parts.scheme not in {"nats", "tls"} or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidRequest(f"servers: use {FORM}, not {quoted(given)}", field="servers")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or 4222}"


def checked_name(name: object) -> str:
    """Return the name of an inbox on the servers. Raises InvalidRequest."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidRequest(f"name: use 1 to 64 letters, digits, - and _, not {quoted(name)}", field="name")
    return name


def is_location(text: str) -> bool:
    """Return whether a text is meant as a location on servers (see :func:`location`), not as the path of a file."""
    return text.startswith(("nats://", "tls://"))


def location(text: str) -> tuple[tuple[str, ...], str]:
    """Return the addresses and the name in ``nats://h1,h2:4223,h3/name``. Raises InvalidRequest."""
    scheme, _, rest = text.partition("://")
    hosts, _, name = rest.partition("/")
    if not is_location(text) or not name:
        raise InvalidRequest(f"use nats://host1,host2,host3/name, not {quoted(text)}")
    return addresses([f"{scheme}://{host}" for host in hosts.split(",")]), checked_name(name)
