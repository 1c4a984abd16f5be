"""The targets of copies: how a delivery is signed, and how it is sent to its receiver.

The signature is computed from the written scheme (interface, Authentication 3) with the standard library alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import md5
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

from attrs import frozen

from rbim.errors import InvalidRequest, NotSent, TransportError
from rbim.http import Request
from rbim.transports._shared.connecting import EMULATOR

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from rbim.credentials import Credentials
    from rbim.http import Transport

__all__ = [
    "DeliveryReceiver",
    "Destination",
    "Headers",
    "NoAnswer",
    "ReceiveFunction",
    "Sender",
    "Target",
    "open_sender",
    "sender_to",
    "signed",
    "split_url",
]

Headers = dict[str, str]
Sender = Callable[[Headers, bytes], Awaitable[int]]


class DeliveryReceiver(Protocol):
    """Accepts deliveries without a network, and returns an object with a ``status``, the HTTP status."""

    def receive(self, headers: Headers, body: bytes, /) -> Awaitable[Any]:
        """Accept one delivery."""
        ...


ReceiveFunction = Callable[[Headers, bytes], Awaitable[Any]]

Target = str | DeliveryReceiver | ReceiveFunction
"""A target of copies: a URL, a receiver, or an async function of headers and body that returns the HTTP status."""


@frozen(kw_only=True)
class Destination:
    """The target of copies with the options of ``Emulator.copy_to``."""

    target: Target
    high: bool
    concurrency: int
    transport: Callable[[], Transport] | None


class NoAnswer(Exception):
    """No HTTP status was received; the text is the reason."""


def signed(body: bytes, credentials: Credentials, milliseconds: int) -> Headers:
    """Return the headers of a delivery (interface, Delivery rules 3). ``milliseconds`` since 1970 are its ``CurTime``."""
    digest, moment = _md5(body), f"{milliseconds:013d}"
    token = credentials.app_token.reveal()
    return {
        "Content-Type": "application/json",
        "CurTime": moment,
        "MD5": digest,
        "CheckSum": _md5((credentials.app_id + token + digest + moment).encode()),
    }


def _md5(data: bytes) -> str:
    return md5(data, usedforsecurity=False).hexdigest().upper()


def sender_to(target: DeliveryReceiver | ReceiveFunction) -> Sender:
    """Return the sender for a receiver in this process. Raises InvalidRequest if it cannot receive."""
    function = getattr(target, "receive", target)
    if not callable(function):
        raise InvalidRequest(
            f"target: must be a URL, a receiver or an async function, not {type(target).__name__}", field="target"
        )
    receive = cast("ReceiveFunction", function)

    async def send(headers: Headers, body: bytes) -> int:
        answer = await receive(headers, body)
        status = getattr(answer, "status", answer)
        if not isinstance(status, int):
            raise NoAnswer(f"the receiver returned {type(status).__name__} instead of a status")
        return int(status)

    return send


def split_url(url: str) -> tuple[str, str, dict[str, str]]:
    """Split a URL into origin, path and query. Raises InvalidRequest if it is not an HTTP URL."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            return f"{parts.scheme}://{parts.netloc}", parts.path or "/", query
    except ValueError:  # an invalid port or IPv6 address
        pass
    raise InvalidRequest(f"target: must be an http or https URL, not {url!r}", field="target")


async def open_sender(
    destination: Destination,
    stack: AsyncExitStack,
    *,
    timeout: float,  # noqa: ASYNC109  # of each delivery, in seconds of real time
) -> Sender:
    """Return the sender for a destination, for use until the stack is closed."""
    if not isinstance(destination.target, str):
        return sender_to(destination.target)
    origin, path, query = split_url(destination.target)
    if destination.transport is not None:
        made = destination.transport()
    else:
        from rbim.transports.httpx import HttpxTransport

        made = HttpxTransport(trust_env=False) if destination.high else HttpxTransport(trust_env=False, keepalive_expiry=0)
    transport = await stack.enter_async_context(made)

    async def post(headers: Headers, body: bytes) -> int:
        request = Request(origin=origin, path=path, query=query, headers=headers, body=body)
        try:
            response = await transport.send(request, timeout=timeout)
        except NotSent as error:
            cause = str(error).removesuffix(f": {EMULATOR}")  # the receiver is no emulator
            raise NoAnswer(f"refused: {cause}") from error
        except TransportError as error:
            raise NoAnswer(f"no answer: {error}") from error
        return response.status

    return post
