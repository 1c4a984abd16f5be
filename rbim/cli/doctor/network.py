"""The way to an address: its name, a connection, its certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from rbim.cli.doctor.check import Check, State
from rbim.transports._shared.network import proxy_for, tls_context

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.cli.doctor.check import Report

__all__ = ["reach"]

T = TypeVar("T")

PORTS, SOCKS = {"http": 80, "https": 443}, 1080
SOON = 21  # days before the end of a certificate
DAY = 86_400.0

CERTIFICATE_ADVICE = {
    9: "It is not valid yet: check the clock of this machine",  # X509_V_ERR_CERT_NOT_YET_VALID
    10: "Ask the operator of the address to renew it; check the clock of this machine",  # X509_V_ERR_CERT_HAS_EXPIRED
    62: "Use the name in the certificate as the address",  # X509_V_ERR_HOSTNAME_MISMATCH
    64: "Use the name in the certificate as the address, not the number",  # X509_V_ERR_IP_ADDRESS_MISMATCH
}
"""Advice by the verification code of OpenSSL; for others, the certificate's issuer is not trusted."""

UNTRUSTED = (
    "If its operator uses an authority of their own, get its certificate from them and set SSL_CERT_FILE to its file. "
    "Do not turn verification off: requests carry signatures"
)


async def reach(url: str, report: Report, *, suffix: str, seconds: float) -> bool:
    """Report the name, the connection and the certificate of an address; return whether it can be reached.

    Behind a proxy, only the proxy is looked at: it resolves the name, and the request shows the rest. ``suffix`` is that of
    the names of the checks.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    if parts.scheme == "http" and not _is_local(host):
        text = f"{host} is used without TLS: others on the way can read requests and repeat them"
        report(Check(f"address{suffix}", State.WARN, text, "Use https:// if the platform offers it"))
    proxy = proxy_for(f"{parts.scheme}://{parts.netloc}", None, trust_env=True)
    if proxy is not None:
        through = urlsplit(proxy)
        host, port = through.hostname or "", through.port or PORTS.get(through.scheme, SOCKS)
        report(Check(f"proxy{suffix}", State.OK, f"requests go through {host}:{port}, as the environment says"))
    way = _Way(host, port, suffix, seconds)
    for step in (way.resolve, way.connect, *([way.handshake] if proxy is None and parts.scheme == "https" else [])):
        found = await step()
        report(found)
        if found.state is State.FAIL:
            return False
    return True


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class _Way:
    """The way to a host, step by step; each step needs the ones before."""

    def __init__(self, host: str, port: int, suffix: str, seconds: float) -> None:
        self._host, self._port, self._suffix, self._seconds = host, port, suffix, seconds
        self._addresses: list[tuple[str, int]] = []

    async def resolve(self) -> Check:
        """Look the name up."""
        name, advice = f"dns{self._suffix}", "Check the spelling of the address, and the network of this machine"
        try:
            found = await _in_thread(
                lambda: socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM), self._seconds
            )
        except TimeoutError:
            return Check(name, State.FAIL, f"{self._host}: no answer within {self._seconds:g} s", advice)
        except (OSError, UnicodeError) as error:
            return Check(name, State.FAIL, f"{self._host}: {getattr(error, 'strerror', None) or error}", advice)
        self._addresses = list(dict.fromkeys((str(each[4][0]), int(each[4][1])) for each in found))
        return Check(name, State.OK, f"{self._host} is {', '.join(address for address, _ in self._addresses)}")

    async def connect(self) -> Check:
        """Connect to one address after the other, and keep the one that accepts."""
        name, causes, seconds = f"tcp{self._suffix}", list[str](), self._seconds / len(self._addresses)
        for address in self._addresses:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(seconds):
                    _, writer = await asyncio.open_connection(*address)
            except TimeoutError:
                causes.append(f"{address[0]}: no answer within {seconds:.3g} s")
            except OSError as error:
                causes.append(f"{address[0]}: {_words_of(error)}")
            else:
                writer.transport.abort()
                self._addresses = [address]
                took = (time.perf_counter() - began) * 1000
                return Check(name, State.OK, f"connected to {address[0]}, port {address[1]}, in {took:.1f} ms")
        local = _is_local(self._host)
        hint = "is the emulator running? (rbim emulator)" if local else "is a firewall between, or a proxy needed?"
        text = f"no connection to port {self._port}: {'; '.join(causes)}"
        return Check(name, State.FAIL, text, f"Check host and port; {hint}")

    async def handshake(self) -> Check:
        """Begin TLS, and look at the certificate."""
        name = f"tls{self._suffix}"
        try:
            context = tls_context(verify=True, cert=None)
            async with asyncio.timeout(self._seconds):
                _, writer = await asyncio.open_connection(*self._addresses[0], ssl=context, server_hostname=self._host)
        except TimeoutError:
            text, advice = f"no handshake within {self._seconds:g} s", "Is something else listening at this port?"
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate is refused: {error.verify_message}"
            advice = CERTIFICATE_ADVICE.get(error.verify_code, UNTRUSTED)
        except ssl.SSLError as error:
            plain = error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
            text = "the port speaks no TLS" if plain else f"the handshake failed: {error.reason}"
            advice = "Use its TLS port, or http://" if plain else "Check the port"
        except OSError as error:
            text, advice = f"the handshake failed: {_words_of(error)}", "Check the port, and SSL_CERT_FILE"
        else:
            tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
            writer.transport.abort()
            return _certificate(name, tls)
        return Check(name, State.FAIL, text, advice)


def _words_of(error: OSError) -> str:
    return "refused" if isinstance(error, ConnectionRefusedError) else error.strerror or str(error)


def _certificate(name: str, tls: ssl.SSLObject) -> Check:
    """Return the version of TLS, and when the certificate ends."""
    text = f"{tls.version()}"
    end = (tls.getpeercert() or {}).get("notAfter")
    if not isinstance(end, str):
        return Check(name, State.OK, text)
    left = (ssl.cert_time_to_seconds(end) - time.time()) / DAY
    text = f"{text}, the certificate is valid until {end} ({left:,.0f} days)"
    if left < SOON:
        return Check(name, State.WARN, text, "Ask the operator of the address to renew it")
    return Check(name, State.OK, text)


async def _in_thread(call: Callable[[], T], seconds: float) -> T:
    """Return the result of a blocking call. Raises TimeoutError; then its thread does not keep the process alive."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        settle: Callable[[], None]
        try:
            settle = partial(future.set_result, call())
        except Exception as error:
            settle = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(lambda: None if future.done() else settle())

    threading.Thread(target=run, name="rbim-doctor", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future
