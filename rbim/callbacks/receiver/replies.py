"""The receiver's HTTP answers: 200 only for stored deliveries, one short body for every refusal, and its health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import Factory, asdict, field, frozen

from rbim._support.json import dumps
from rbim.callbacks.signature import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["ACCEPTED", "INCOMPLETE", "NOT_POST", "REFUSALS", "TEXT", "UNAVAILABLE", "Health", "Reply", "reply_of"]

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
INCOMPLETE = _refused(400, connection="close")
NOT_POST = _refused(405, allow="POST")
UNAVAILABLE = _refused(503, retry_after="1")
REFUSALS = {
    **dict.fromkeys(Reason, _refused(401)),
    Reason.TOO_LARGE: _refused(413, connection="close"),
    Reason.UNSUPPORTED_ENCODING: _refused(415, connection="close"),
}


@frozen(kw_only=True)
class Health:
    """The health of a receiver now; see :meth:`Receiver.health`.

    ``accepting``: deliveries are stored. It is False outside the ``async with`` block, while the receiver restarts, and for
    10 seconds after a delivery was answered 503. ``handling``: the worker runs; None without handlers. ``waiting``: events
    that wait for a handler, ``lag``: seconds since the oldest of them was received; both None if the sink does not count
    them, or not within a second. ``restarts``: of the worker and of the receiver, after they ended by themselves.
    ``error``: the last error that concerned all events, as one line ("" without one); it may be over.
    """

    accepting: bool
    handling: bool | None
    waiting: int | None
    lag: float | None
    restarts: int
    error: str

    @property
    def ok(self) -> bool:
        """Whether deliveries are stored and, with handlers, handled."""
        return self.accepting and self.handling is not False


def reply_of(health: Health) -> Reply:
    """Return the answer of the health door: 200 or 503, with JSON. It has no error text, since anyone may ask."""
    facts = {name: value for name, value in asdict(health).items() if name != "error"}
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    return Reply(200 if health.ok else 503, dumps({"ok": health.ok, **facts}), headers=headers)
