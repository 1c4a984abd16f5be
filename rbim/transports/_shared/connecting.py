"""The messages of failed connections: host and port, the cause in plain words, and the likely next step.

The cause is found in the exceptions of sockets and TLS, which the libraries chain, or in the text of an exception if a
library keeps nothing else. No message contains a path, a query, or the user and password of a proxy.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from rbim._support.text import one_line
from rbim.transports._shared.redaction import chained, redacted

if TYPE_CHECKING:
    from rbim.http import Request

__all__ = ["EMULATOR", "no_answer", "no_connection", "too_late"]

MAX_TEXT = 300  # characters of an unknown error
PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
EMULATOR = "is the emulator running? (rbim emulator)"
PROXY = "check the proxy (the option proxy, or HTTPS_PROXY and the like)"
USE_TLS = "if the port expects TLS, use https:// in the base URL"


class _Problem(NamedTuple):
    """A cause in words, the likely next step, and the next step if the host is this machine (default: the same).

    ``below``: TCP or DNS failed, so the problem is that of the proxy, if there is one.
    """

    words: str
    step: str
    here: str = ""
    below: bool = False


REFUSED = _Problem("refused", "check the port, and whether the service is running", EMULATOR, below=True)
NO_HOST = _Problem("host not found", "check the host name for a typo, and this machine's DNS", below=True)
UNREACHABLE = _Problem("network unreachable", "check this machine's network connection and the address", below=True)
NO_SOCKET = _Problem("no such socket", "check the path", EMULATOR)
NO_TLS = _Problem("the server does not speak TLS", "use http:// if the port expects it")
CLOSED = _Problem("closed in the TLS handshake", "check whether the port expects https://")
RESET = _Problem("connection reset", "check the port, and firewalls in between", EMULATOR, below=True)
UNTRUSTED = _Problem("certificate not trusted", "if its authority is your own, give its certificates (the option verify)")
OTHER_HOST = _Problem("certificate of another host", "check the host in the base URL")
EXPIRED = _Problem("certificate expired", "check this machine's clock; if it is right, the server needs a new certificate")
EARLY = _Problem("certificate not valid yet", "check this machine's clock")
NO_LOGIN = _Problem("the proxy wants other credentials: 407", "check user and password in the address of the proxy")
NO_TUNNEL = _Problem("the proxy opened no tunnel", "check whether the proxy allows this host and port")

WEAK = _Problem("the server's certificate is too weak", "the server needs a new one: RSA of 2,048 bits or more, SHA-256")

CERTIFICATES = {  # X509_V_ERR codes; any other: UNTRUSTED
    **dict.fromkeys((66, 67, 68), WEAK),
    **dict.fromkeys((62, 64), OTHER_HOST),
    9: EARLY,
    10: EXPIRED,
}
ERRNOS = {
    errno.ECONNREFUSED: REFUSED,
    errno.ECONNRESET: RESET,
    errno.EHOSTUNREACH: UNREACHABLE,
    errno.ENETUNREACH: UNREACHABLE,
    errno.ENETDOWN: UNREACHABLE,
    errno.EADDRNOTAVAIL: UNREACHABLE,
}
TOO_WEAK = {"CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "DH_KEY_TOO_SMALL", "EE_KEY_TOO_SMALL"}
NOT_TLS = {"HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "WRONG_VERSION_NUMBER"}

# Texts of libraries that keep no exception, in any case, and their meaning; the first match counts.
TEXTS = (
    (r"proxy authorization required|\b407\b", NO_LOGIN),
    (r"connection refused|connect call failed", REFUSED),
    (r"name or service not known|name resolution", NO_HOST),
    (r"network (is )?unreachable|no route to host", UNREACHABLE),
    (r"certificate verify failed", UNTRUSTED),
    (r"does not speak TLS", NO_TLS),
    (r"opened no tunnel|^ProxyError|^ClientHttpProxyError", NO_TUNNEL),
    (r"handshake", CLOSED),
)
# Texts of failures before the first byte of an HTTP response, on a connection that was just opened.
NO_HTTP = (
    r"before the response|without sending a response|Expected HTTP/|illegal request line|"
    r"Bad status line|invalid HTTP version|Server disconnected"
)


def no_connection(
    request: Request, error: Exception, *, shown: str | None = None, proxy: str | None = None, uds: str | None = None
) -> str:
    """Return the message for an error that prevented a connection to the request's origin.

    ``shown`` is the text of an unknown error (default: its own). ``proxy`` is the address of the proxy in use, ``uds`` the
    path of the UNIX socket.
    """
    problem = _problem_of(error)
    secure = request.origin.startswith("https:")
    if problem is RESET and secure:
        problem = CLOSED
    if problem is not None:
        return _message(request.origin, problem, proxy, uds)
    text = one_line(redacted(str(error) if shown is None else shown, request.secrets), MAX_TEXT)
    text = "" if proxy is not None and "@" in proxy else text  # it may show the address
    name = type(error).__name__
    own = text and type(error) is ValueError  # rbim's own, of a file
    unknown = _Problem(text if own else f"{name}: {text}" if text else name, "")
    return _message(request.origin, CLOSED if secure and not text and proxy is None else unknown, proxy, uds)


def too_late(request: Request, seconds: float, *, proxy: str | None = None, uds: str | None = None) -> str:
    """Return the message for a connection that was not open after so many seconds."""
    if seconds <= 0:
        return f"cannot connect to {_address(request.origin, uds)}: no time is left (the time-out is {seconds:g} s)"
    step = "check host and port, and whether a firewall drops the connection"
    return _message(request.origin, _Problem(f"no connection within {seconds:g} s", step, EMULATOR), proxy, uds)


def no_answer(request: Request, reason: str, *, new: bool) -> str:
    """Return the message for a connection that ended without a readable response; ``new``: it was just opened."""
    hint = new and request.origin.startswith("http:") and re.search(NO_HTTP, reason, re.IGNORECASE) is not None
    return f"no valid response from {_address(request.origin, None)} ({reason}){f': {USE_TLS}' if hint else ''}"


def _message(origin: str, problem: _Problem, proxy: str | None, uds: str | None) -> str:
    target = _address(origin, uds)
    step = (problem.here if _is_this_machine(origin) else "") or problem.step
    if proxy is not None:
        through = _address(proxy, None)
        target = f"the proxy {through}" if problem.below else f"{target} through the proxy {through}"
        step = PROXY if problem.below or not problem.step else problem.step
    return f"cannot connect to {target} ({problem.words}){f': {step}' if step else ''}"


def _address(url: str, uds: str | None) -> str:
    """Return host and port of an address, or the path of the UNIX socket."""
    if uds is not None:
        return f"the UNIX socket {uds}"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
    except ValueError:
        return "the given address"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_this_machine(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname or ""
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:
        return False


def _problem_of(error: Exception) -> _Problem | None:
    """Return the known problem behind an error, or None."""
    for each in chained(error):
        if isinstance(each, ssl.SSLCertVerificationError) and hasattr(each, "verify_code"):  # aiohttp's own ones have none
            return CERTIFICATES.get(each.verify_code, UNTRUSTED)
        if isinstance(each, ssl.SSLEOFError):
            return CLOSED
        if isinstance(each, ssl.SSLError) and getattr(each, "reason", "") in NOT_TLS:
            return NO_TLS
        if isinstance(each, ssl.SSLError) and getattr(each, "reason", "") in TOO_WEAK:
            return WEAK
        if isinstance(each, (socket.gaierror, UnicodeError)):  # a name that is too long cannot be encoded
            return NO_HOST
        if isinstance(each, FileNotFoundError):
            return NO_SOCKET
        if isinstance(each, ConnectionResetError):
            return RESET
        if isinstance(each, OSError) and each.errno in ERRNOS:
            return ERRNOS[each.errno]
    text = f"{type(error).__name__}: {error}"
    return next((problem for pattern, problem in TEXTS if re.search(pattern, text, re.IGNORECASE)), None)
