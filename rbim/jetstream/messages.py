"""The messages of an inbox on the servers: subjects, headers, and deliveries in them. Pure functions."""

from __future__ import annotations

import json
import zlib
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.callbacks.delivery import Delivery
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DEAD",
    "HEAD",
    "MESSAGE_ID",
    "OURS",
    "Stored",
    "Subjects",
    "attempts_of",
    "dead_header",
    "fitting",
    "headers_of",
    "message_id",
    "stored",
]

MESSAGE_ID = "Nats-Msg-Id"
HEAD = "Rbim"
"""The header with everything but the body: a JSON list in ASCII, so that no text in it can end the line.

Or a number, if the list is too long for a header: that of the characters before the body.
"""

PACKED = "Rbim-Packed"
"""The header of a message whose content is compressed."""

DEAD = "Rbim-Dead"
"""The header of a dead letter: a JSON list of attempts and the traceback."""

OURS = ("Nats-", HEAD)
"""How the headers begin that are not an observer's."""

ROOM = 32_768  # bytes of a message beside its body and its headers: those of a dead letter have a traceback, too
LONGEST_ID = 64  # characters
MOST_UNPACKED = 64 << 20  # bytes of a content that is compressed: as many as servers may be configured to take uncompressed
LONGEST_HEAD = 24_576  # characters of a header: the servers allow 64 KiB for all of a message


class Subjects(NamedTuple):
    """The names of an inbox's streams, and the subjects of its messages.

    No text of a delivery becomes part of a subject: a conversation's name could have dots and wildcards.
    """

    name: str
    partitions: int

    @property
    def events(self) -> str:
        """The stream of accepted events, of replayed ones, and of those in quarantine."""
        return self.name

    @property
    def dead(self) -> str:
        """The stream of dead letters."""
        return f"{self.name}-dead"

    @property
    def state(self) -> str:
        """The bucket with a record for each partition, and a key for each worker."""
        return f"{self.name}-state"

    def record(self, key: str) -> str:
        """Return the subject of a record in the bucket."""
        return f"$KV.{self.state}.{key}"

    @property
    def quarantine(self) -> str:
        """The subject of events in quarantine."""
        return f"{self.name}.quarantine"

    @property
    def owners(self) -> str:
        """The subject on which workers say that partitions may be taken; nothing is stored of it."""
        return f"{self.name}.owners"

    def partition(self, conversation: str) -> int:
        """Return the number of a conversation's partition."""
        digest = blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=4).digest()
        return int.from_bytes(digest, "big") % self.partitions

    def accepted(self, conversation: str) -> str:
        """Return the subject of a conversation's events as they are accepted."""
        return f"{self.name}.new.{self.partition(conversation)}"

    def again(self, conversation: str) -> str:
        """Return the subject of a conversation's events that wait once more."""
        return f"{self.name}.again.{self.partition(conversation)}"

    def of_partition(self, partition: int) -> str:
        """Return the subject of all events of a partition, with a wildcard."""
        return f"{self.name}.*.{partition}"

    def letter(self, number: int) -> str:
        """Return the subject of a dead letter."""
        return f"{self.dead}.{number}"

    def config(self) -> dict[str, list[str]]:
        """Return the subjects of each stream."""
        events = [f"{self.name}.new.*", f"{self.name}.again.*", self.quarantine]
        return {self.events: events, self.dead: [f"{self.dead}.*"]}


class Stored(NamedTuple):
    """A message of the stream: its place there, and the event in it.

    ``number`` is the place of the message that was accepted, ``sequence`` that of this one: it differs if the event was
    made to wait again. ``kind`` is the name of the event's class. ``headers`` are those that an observer added.
    """

    sequence: int
    number: int
    replays: int
    kind: str
    delivery: Delivery
    headers: Mapping[str, str] = {}


def message_id(key: str) -> str:
    """Return the ``Nats-Msg-Id`` for a key: itself, or a hash if it has characters that a header must not have."""
    if len(key) <= LONGEST_ID and key.isascii() and key.isalnum():
        return key
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest() + "-key"


def headers_of(delivery: Delivery, identity: str, *, kind: str = "", number: int = 0, replays: int = 0) -> dict[str, str]:
    """Return the headers of a message; ``kind`` is for a delivery that was read from one.

    ``number`` is 0 for a new event, whose number will be its place in the stream.
    """
    if delivery.kind is not None:
        kind = delivery.kind.__name__
    head = (
        delivery.key,
        delivery.conversation,
        delivery.app_id,
        delivery.received.isoformat(),
        kind,
        delivery.msg_type,
        delivery.problem,
        number,
        replays,
    )
    return {MESSAGE_ID: identity, HEAD: json.dumps(head)}


def fitting(headers: dict[str, str], body: bytes, most: int) -> bytes:
    """Return the content of a message; change the headers accordingly.

    It is the body. A head that is too long for a header stands before it. What would be larger than the servers allow is
    compressed. Raises InvalidRequest if even that is too large, and for more than MOST_UNPACKED bytes.
    """
    head, content = headers[HEAD], body
    if len(head) > LONGEST_HEAD:
        headers[HEAD] = str(len(head))
        content = head.encode() + body
    room = most - ROOM - sum(map(len, headers)) - sum(map(len, headers.values()))
    if len(content) <= room:
        return content
    if len(content) > MOST_UNPACKED:
        raise InvalidRequest(
            f"a delivery of {len(body)} bytes is larger than an inbox on NATS servers takes: {MOST_UNPACKED} bytes",
            limit=MOST_UNPACKED,
            length=len(body),
        )
    packed = zlib.compress(content, 1)
    if len(packed) > room:
        raise InvalidRequest(
            f"a delivery of {len(body)} bytes needs more than the {most} bytes that the NATS servers allow: set max_payload"
            f" in their configuration to {2 * len(content) + 65_536}",
            limit=most,
            length=len(body),
        )
    headers[PACKED] = "1"
    return packed


def dead_header(attempts: int, error: str) -> str:
    """Return the value of the header of a dead letter, with the end of the traceback."""
    value = json.dumps((attempts, error[-LONGEST_HEAD:]))
    return value if len(value) <= LONGEST_HEAD else json.dumps((attempts, error[-LONGEST_HEAD // 6 :]))  # \uXXXX each


def attempts_of(sequence: int, headers: Mapping[str, str]) -> tuple[int, str]:
    """Return the attempts and the error of a dead letter. Raises ValueError if rbim did not write it."""
    try:
        attempts, error = json.loads(headers[DEAD])
        _require(error, numbers=(attempts,))
    except INVALID as cause:
        raise _foreign(sequence) from cause
    return attempts, error


def stored(sequence: int, headers: Mapping[str, str] | None, content: bytes | None) -> Stored:
    """Return the event in a message. Raises ValueError if rbim did not write it."""
    try:
        given, body = headers or {}, content or b""
        if PACKED in given:
            body = _unpacked(body)
        head: Any = json.loads(given[HEAD])
        if isinstance(head, int):
            head, body = json.loads(body[:head]), body[head:]
        key, conversation, app_id, received, kind, msg_type, problem, number, replays = head
        texts = (key, conversation, app_id, received, kind, msg_type, "" if problem is None else problem)
        _require(*texts, numbers=(number, replays))
        moment = datetime.fromisoformat(received)
        if moment.tzinfo is None:
            raise ValueError(received)
        moment.astimezone(UTC)  # it may be out of range there
        delivery = Delivery(key, conversation, app_id, body, moment, None, msg_type, problem=problem)
    except INVALID as error:
        raise _foreign(sequence) from error
    others = {name: value for name, value in given.items() if not name.startswith(OURS)}
    return Stored(sequence, number or sequence, replays, kind, delivery, others)


INVALID = (KeyError, TypeError, ValueError, OverflowError, RecursionError, zlib.error)
"""What reading a message of another program may raise."""


def _require(*texts: object, numbers: tuple[object, ...]) -> None:
    """Raise TypeError unless all are texts, and whole numbers from 0 on."""
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int and each >= 0 for each in numbers):
        raise TypeError


def _unpacked(packed: bytes) -> bytes:
    """Return a content that was compressed. Raises ValueError if it is longer than rbim makes them, or has no end."""
    inflating = zlib.decompressobj()
    content = inflating.decompress(packed, MOST_UNPACKED + 1)
    if not inflating.eof or len(content) > MOST_UNPACKED:
        raise ValueError(len(content))
    return content


def _foreign(sequence: int) -> ValueError:
    return ValueError(f"message {sequence} is not one of an inbox of rbim")
