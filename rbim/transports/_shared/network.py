"""TLS certificates and sockets of the machine."""

from __future__ import annotations

import re
import select
import ssl
import sys
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ip_of", "readable", "tls_context"]

MOST_OF_A_KEY = 64 * 1024  # bytes
PFX = re.compile(rb"\x30(?:\x80|[\x81-\x84].{1,4}?)\x02\x01\x03", re.DOTALL)  # its version is 3; those of keys are lower


def tls_context(verify: ssl.SSLContext | str | bool, cert: str | tuple[str, str] | None) -> ssl.SSLContext:  # noqa: FBT001  # as the transports take it
    """Return a TLS context that verifies servers and has the client's certificate.

    ``verify`` is a context to use, the path of a CA bundle, True for the machine's certificates, or False for no
    verification. A machine without certificates uses those of certifi, which httpx brings. ``cert`` is the path of a client
    certificate with its key, or a pair of paths. Raises ValueError for a file that is missing, is not PEM, or has an
    encrypted key.
    """
    if isinstance(verify, ssl.SSLContext):
        context = verify
    elif verify is False:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context = _trusting(verify if isinstance(verify, str) else _certificates())
    if cert is not None:
        _load_certificate(context, *((cert,) if isinstance(cert, str) else cert))
    return context


def _trusting(authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except FileNotFoundError:
        reason = f"{authorities}: no such file"
    except ssl.SSLError as error:
        reason = f"{authorities}: {_kind_of(authorities) or f'no certificates in PEM ({error.reason})'}"
    raise ValueError(reason)


def _load_certificate(context: ssl.SSLContext, cert: str, key: str | None = None) -> None:
    asked: list[bool] = []

    def password() -> str:  # without it, OpenSSL would ask on the terminal
        asked.append(True)
        return ""

    try:
        context.load_cert_chain(cert, key, password)
    except FileNotFoundError:
        reason = next(f"{path}: no such file" for path in (cert, key) if path is not None and not Path(path).exists())
    except ssl.SSLError as error:
        others = [f"{path}: {kind}" for path in (cert, key) if (kind := _kind_of(path))]
        if asked:
            reason = f"{key or cert}: the key is encrypted: decrypt it (openssl pkey -in FILE -out FILE.pem)"
        elif error.reason == "KEY_VALUES_MISMATCH":
            reason = f"{key or cert}: the key does not belong to the certificate"
        else:
            reason = others[0] if others else f"{cert}: no certificate with its key in PEM"
    else:
        return
    raise ValueError(reason)


def _kind_of(path: str | None) -> str:
    """Return what a file is that is not PEM, and how to convert it; empty if that is not known."""
    if path is None:
        return ""
    with Path(path).open("rb") as stream:
        begin = stream.read(MOST_OF_A_KEY)
    if not begin.startswith(b"\x30") or b"-----BEGIN" in begin:
        return ""
    if PFX.match(begin):
        return "PKCS#12 (PFX), not PEM: convert it (openssl pkcs12 -in FILE -nodes -out FILE.pem)"
    return "DER, not PEM: convert it (openssl x509 or pkey, with -inform DER -in FILE -out FILE.pem)"


def _certificates() -> str | None:
    """Return the path of certifi's bundle if this machine's OpenSSL finds no certificates, else None."""
    paths = ssl.get_default_verify_paths()
    if paths.cafile or (paths.capath and any(Path(paths.capath).iterdir())) or sys.platform == "win32":
        return None
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def ip_of(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a text is, or None."""
    try:
        return ip_address(text)
    except ValueError:
        return None


def readable(descriptor: int) -> Callable[[], object]:
    """Return a function: whether a socket has data to read or has ended (true), even if no event loop has seen it."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return partial(poll.poll, 0)
    return lambda: bool(select.select([descriptor], [], [], 0)[0])  # Windows
