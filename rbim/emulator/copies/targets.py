"""How a delivery is signed, and how it is carried to whoever receives it.

The signature is worked out from the written scheme (interface, Authentication 3) with the standard library alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import md5
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

from attrs import frozen

from rbim.errors import InvalidRequest, NotSent, TransportError
from rbim.http import Request

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from rbim.credentials import Credentials
    from rbim.http import Transport

__all__ = [
    "Courier",
    "DeliveryReceiver",
    "Destination",
    "Headers",
    "NoAnswer",
    "PostSender",
    "ReceiveFunction",
    "Target",
    "open_sender",
    "parts_of",
    "sender_to",
    "signed",
]

Headers = dict[str, str]
Courier = Callable[[Headers, bytes], Awaitable[int]]


class DeliveryReceiver(Protocol):
    """What takes deliveries without a network and answers with something that has a ``status``, the HTTP status."""

    def receive(self, headers: Headers, body: bytes, /) -> Awaitable[Any]:
        """Take one delivery."""
        ...


ReceiveFunction = Callable[[Headers, bytes], Awaitable[Any]]

Target = str | DeliveryReceiver | ReceiveFunction
"""Where copies go: a URL, a receiver, or an async function of headers and body that returns the HTTP status."""


@frozen(kw_only=True)
class Destination:
    """Where copies go, and how: see ``Emulator.copy_to``."""

    target: Target
    high: bool
    concurrency: int
    patience: float
    transport: Callable[[], Transport]


class NoAnswer(Exception):
    """No HTTP status came back; the text says why."""


def signed(body: bytes, credentials: Credentials, milliseconds: int) -> Headers:
    """Return the headers of a delivery (interface, Delivery rules 3). ``milliseconds`` since 1970 become ``CurTime``."""
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


def sender_to(target: DeliveryReceiver | ReceiveFunction) -> Courier:
    """Return what carries deliveries to a receiver of this process."""
    taking = getattr(target, "receive", target)
    if not callable(taking):
        raise InvalidRequest(
            f"target: a URL, a receiver or an async function is needed, not {type(target).__name__}", field="target"
        )
    receive = cast("ReceiveFunction", taking)

    async def carry(headers: Headers, body: bytes) -> int:
        answer = await receive(headers, body)
        status = getattr(answer, "status", answer)
        if not isinstance(status, int):
            raise NoAnswer(f"no status but {type(status).__name__}")
        return int(status)

    return carry


def parts_of(url: str) -> tuple[str, str, dict[str, str]]:
    """Take a URL apart into origin, path and query. Raises InvalidRequest where it is none of HTTP."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            return f"{parts.scheme}://{parts.netloc}", parts.path or "/", query
    except ValueError:  # a port or an IPv6 address that is none
        pass
    raise InvalidRequest(f"target: an http or https URL is needed, not {url!r}", field="target")


class PostSender:
    """Carries deliveries to one URL, over a transport that is open. ``timeout`` is in seconds of real time."""

    def __init__(self, url: str, transport: Transport, *, timeout: float) -> None:
        self._origin, self._path, self._query = parts_of(url)
        self._transport = transport
        self._timeout = timeout

    async def __call__(self, headers: Headers, body: bytes) -> int:
        """Post one delivery and return the status of the answer."""
        request = Request(origin=self._origin, path=self._path, query=self._query, headers=headers, body=body)
        try:
            response = await self._transport.send(request, timeout=self._timeout)
        except NotSent as error:
            raise NoAnswer(f"refused: {error}") from error
        except TransportError as error:
            raise NoAnswer(f"no answer: {error}") from error
        return response.status


async def open_sender(aim: Destination, stack: AsyncExitStack, *, timeout: float) -> Courier:  # noqa: ASYNC109  # of each delivery
    """Return what carries deliveries to where they are aimed at, until the stack is closed."""
    if isinstance(aim.target, str):
        return PostSender(aim.target, await stack.enter_async_context(aim.transport()), timeout=timeout)
    return sender_to(aim.target)
