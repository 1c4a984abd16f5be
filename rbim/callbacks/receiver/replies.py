"""The receiver's HTTP answers: 200 only for stored deliveries, and one short body for every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import Factory, field, frozen

from rbim.callbacks.signature import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ACCEPTED", "INCOMPLETE", "NOT_POST", "TEXT", "UNAVAILABLE", "Reply", "refusal"]

TEXT = "text/plain; charset=utf-8"


def _asgi_messages(reply: Reply) -> tuple[dict[str, Any], dict[str, Any]]:
    named = {**reply.headers, "content-length": str(len(reply.body))}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    start = {"type": "http.response.start", "status": reply.status, "headers": headers}
    return start, {"type": "http.response.body", "body": reply.body}


@frozen
class Reply:
    """An HTTP answer: ``status``, ``headers`` (names in lower case), ``body``.

    200: the delivery is stored, or was a probe. 400: its body did not arrive in time. 401: it is not authentic, for any
    reason. 405: it was not a POST. 413: its body is too long. 415: it has a content encoding. 503: neither sink nor spool
    stored it, or the receiver is stopping.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(kw_only=True, factory=dict[str, str])
    asgi: tuple[dict[str, Any], dict[str, Any]] = field(
        init=False, repr=False, eq=False, default=Factory(_asgi_messages, takes_self=True)
    )
    """The same answer as the two messages of an ASGI application."""


def _refused(status: int, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, b"refused\n", headers={"content-type": TEXT, **named})


ACCEPTED = Reply(200)
UNAUTHENTIC = _refused(401)
INCOMPLETE = _refused(400, connection="close")
NOT_POST = _refused(405, allow="POST")
TOO_LARGE = _refused(413, connection="close")
ENCODED = _refused(415, connection="close")
UNAVAILABLE = _refused(503, retry_after="1")


def refusal(reason: Reason) -> Reply:
    """Return the answer to a refused delivery."""
    return {Reason.TOO_LARGE: TOO_LARGE, Reason.UNSUPPORTED_ENCODING: ENCODED}.get(reason, UNAUTHENTIC)
