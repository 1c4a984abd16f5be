"""An authentic delivery on its way from the receiver to whoever handles it: what a sink takes, what a worker is given.

The protocols between them are here as well. A :class:`Sink` makes deliveries safe; an :class:`Inbox` also gives them out
again, through a :class:`Backlog`, conversation by conversation, each under a lease.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from attrs import frozen

from rbim.callbacks.events import IN_GROUPS, conversation_of, event_class
from rbim.callbacks.kinds import ConvType
from rbim.callbacks.parsing import document_of, parse
from rbim.callbacks.quirks import Account, accounts, flag
from rbim.callbacks.signature import Reason
from rbim.errors import CallbackRejected
from rbim.message import one_line
from rbim.quirks import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.events import Event

PROBLEM = 300  # characters of what is said of a delivery

__all__ = ["Backlog", "Claim", "Delivery", "Inbox", "LeaseLost", "Sink", "delivery_of"]


class Delivery(NamedTuple):  # and no attrs class, which takes longer to make: every delivery pays for it
    """An authentic delivery.

    ``key`` (32 hexadecimal digits) is the same for every copy of one event: application, ``msgId``, ``convType``,
    ``msgType``, receiver (and ``eventType``, of which one is described), or, without a ``msgId``, the body's content.
    ``conversation`` is that of the event within the application, the key where there is none: its events are handled in the
    order in which they were accepted. ``problem`` says why it goes to quarantine: it cannot be read (``kind`` is None then),
    or belongs to another application. ``kind`` is the class of its event, ``msg_type`` what the platform calls that,
    ``resent`` whether it says that it is a resend. ``received`` has a time zone.
    """

    key: str
    conversation: str
    app_id: str
    body: bytes
    received: datetime
    kind: type[Event] | None
    msg_type: str = ""
    resent: bool = False
    problem: str | None = None

    @property
    def event(self) -> Event | None:
        """The event, read anew from the body each time; None where it cannot be read."""
        return None if self.kind is None else parse(self.body)


def delivery_of(body: bytes, *, app_id: str, received: datetime) -> Delivery:
    """Return the delivery of an authentic body that was signed by an application. Never raises, whatever the bytes.

    Reads what it takes to tell deliveries apart, and no more: this is what the platform waits for.
    """
    try:
        document = document_of(body)
    except CallbackRejected as error:
        key = _digest(f"{app_id} {body.hex()}")
        return Delivery(
            key=key, conversation=key, app_id=app_id, body=body, received=received, kind=None, problem=error.message
        )
    get = document.get
    raw: tuple[Any, ...] = (get("eventType"), get("convType"), get("msgType"), get("to"), get("fromAccount"), get("msgId"))
    kind = event_class(*raw[:3])
    try:
        "".join(raw)  # the quickest way to see that all are texts
    except TypeError:
        raw = tuple(map(read_text, raw))
    event_type, conv_type, msg_type, to, sender, msg_id = raw
    from_app, number_sign, _ = sender.partition("#")
    if conv_type in IN_GROUPS:
        conversation, pushed = to and f"team/{to}", ""
    else:
        members = accounts(get("tMembers")) if conv_type == ConvType.CUSTOM_PERSON else ()
        conversation = conversation_of(conv_type, to, Account.of(sender), members)
        pushed = "\n".join(sorted(map(str, members)))
    if msg_id:
        event_type = event_type or "1"
        lengths = f"{len(event_type)},{len(msg_id)},{len(conv_type)},{len(msg_type)},{len(to)}"  # they keep the parts apart
        key = _digest(f"{app_id} {lengths}:{event_type}{msg_id}{conv_type}{msg_type}{to}{pushed}")
    else:  # a resend differs in its resendFlag
        content = {name: value for name, value in document.items() if name != "resendFlag"}
        key = _digest(f"{app_id} {json.dumps(content, sort_keys=True)}")
    problem = None
    if number_sign and from_app and from_app != app_id:
        what = f"{Reason.APP_MISMATCH}: signed by application {app_id}, sent by an account of {from_app}"
        problem = one_line(what, PROBLEM)
    lane = f"{app_id}/{conversation}" if conversation else key
    return Delivery(key, lane, app_id, body, received, kind, msg_type, flag(get("resendFlag")), problem)


def _digest(told: str) -> str:
    return blake2b(told.encode(), digest_size=16).hexdigest()


class Sink(Protocol):
    """Where accepted deliveries go: an async context manager that the receiver enters and leaves.

    ``durable`` says whether what it took survives the process, ``retention`` for how many seconds it knows what it took.
    One that seldom has to wait may have ``accept_now(delivery)`` too, a plain method that returns what ``accept`` would, or
    None where that would wait: then nothing has to watch the time.
    """

    @property
    def durable(self) -> bool:
        """Whether what was accepted survives the end of the process."""
        ...

    @property
    def retention(self) -> float:
        """The seconds for which it tells a delivery from one that it accepted before, whatever happens to the process."""
        ...

    async def accept(self, delivery: Delivery, /) -> bool:
        """Return once the delivery is safe: True where it is new, False where its key was accepted before.

        Whatever it raises, the delivery counts as not accepted. It may be cancelled when it takes too long, and may then
        have accepted it or not.
        """
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


@frozen(kw_only=True)
class Claim:
    """An event to be handled, under a lease of its conversation.

    ``number`` is its place in the order of acceptance, ``attempt`` counts from 1, ``fence`` grows with every lease of the
    inbox: what the holder of an older one does is too late. ``replays`` says how often it was asked for again after it had
    been handled to the end.
    """

    number: int
    key: str
    conversation: str
    app_id: str
    body: bytes
    received: datetime
    attempt: int
    fence: int
    replays: int = 0


class LeaseLost(Exception):
    """The lease ran out, and another worker has the conversation: nothing was recorded."""


class Backlog(Protocol):
    """What waits to be handled, for one worker in one event loop. All methods may be called by many tasks at once.

    A lease lasts until the conversation's last waiting event is settled, or the claim is retried later or released.
    """

    async def claim(self, limit: int, /) -> Sequence[Claim]:
        """Return at most ``limit`` events, each the oldest that waits in a conversation that nobody else has leased.

        Counts an attempt of each, before it is made: an event that kills its process runs out of attempts as any other.
        """
        ...

    async def done(self, claim: Claim, /, *, more: bool) -> Claim | None:
        """Record that an event was handled. With ``more``, return the next of its conversation under the same lease, if any.

        Raises LeaseLost.
        """
        ...

    async def retry(self, claim: Claim, /, *, error: str, pause: float) -> None:
        """Record that handling failed, and let the conversation rest for ``pause`` seconds. Raises LeaseLost."""
        ...

    async def bury(self, claim: Claim, /, *, error: str, more: bool) -> Claim | None:
        """Record that an event is dead, with the traceback, and go on as ``done`` does. Raises LeaseLost."""
        ...

    async def release(self, claim: Claim, /) -> None:
        """Give an event back unhandled, as if the attempt had not been made. Does nothing where the lease is lost."""
        ...

    async def renew(self, claims: Sequence[Claim], /) -> None:
        """Make the leases last for their full time again, those that are not lost."""
        ...

    async def wait(self) -> None:
        """Wait until there may be something new to claim: accepted here or by another process, due again, or left behind."""
        ...


class Inbox(Sink, Protocol):
    """A sink that gives out again what it took, each conversation in order and by one worker at a time."""

    @property
    def lease(self) -> float:
        """The seconds that a lease lasts unless it is renewed."""
        ...

    def backlog(self) -> AbstractAsyncContextManager[Backlog]:
        """Return a backlog for the event loop that enters it, which may be another than the one that accepts."""
        ...
