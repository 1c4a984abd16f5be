"""The queue of operations on the servers, and the record of each request that decides who may send it.

A stream holds the operations that were handed over, and a bucket of keys the record of each. For the queue ``bulk``:

==========================  =======================================================================================
``rbim-operations-bulk``    the stream: one message for each operation, kept for an hour; the consumer ``workers``
``rbim-requests-bulk``      the bucket: one key for each request, kept for three days; the key ``pace`` of all workers
``rbim.workers.bulk``       a request that every worker answers with its state
``rbim.workers.bulk.ID``    a request that one worker answers: does it work on this key?
==========================  =======================================================================================
"""

# Theory of operation: the states of a request's record.
#
#   (none)    It may be in the stream. No worker sends it before it has made the record.
#   CLAIMED   One worker, at one delivery, made the record (``by``), and may send the operation, once.
#   OVER      The outcome is known, or it is given up: NotTaken if the coordinator made the record, so that no worker can
#             claim it any more; Unanswered if a claim was given up.
#
# (none)  -> CLAIMED   a worker: create
# (none)  -> OVER      the coordinator withdraws it: create
# CLAIMED -> OVER      its worker records the outcome; or another worker, to which the message came again and which got no
#                      sign of life of the first; or the coordinator, likewise, after ANSWER_PATIENCE: update of that
#                      revision
#
# What must always hold:
# - Every step is a compare-and-set: ``create`` fails if there is a record, ``update`` if it has another revision. So there
#   is at most one claim, and at most one sending, for each key, whichever process dies.
# - A step whose acknowledgement is lost is looked up: ``by``, which is new for each step, tells whether it took place.
# - The record outlives the message: RECORDS_FOR is longer than MESSAGES_FOR. Else a message could be claimed twice.
# - A key is never used for two requests, and never deleted.

from __future__ import annotations

import asyncio
import json
import re
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rbim._support.text import quoted
from rbim.errors import InvalidRequest
from rbim.jetstream.nats_py import (
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    MaxPayloadError,
    NatsError,
    NotFoundError,
    add_bucket,
    add_stream,
    api,
    server_time,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from rbim.jetstream.connection import Connection
    from rbim.jetstream.nats_py import Client, JetStreamContext, KeyValue

__all__ = ["CONSUMER", "MESSAGES_FOR", "RECORDS_FOR", "Names", "Record", "Requests", "Store", "checked_key", "lives"]

T = TypeVar("T")

HOUR = 3600.0
MESSAGES_FOR = HOUR
"""Seconds after which an operation that no worker took is not in the stream any more."""

RECORDS_FOR = 72 * HOUR
"""Seconds for which the outcome of a request is known."""

DUPLICATES_FOR = 120.0
PAUSE = 0.1  # seconds after a call that failed
CONSUMER = "workers"
VERSION = "1"
MANY_SERVERS = 3
KEY = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class Names(NamedTuple):
    """The names on the servers of one queue of operations."""

    stream: str
    bucket: str
    subject: str
    workers: str

    @classmethod
    def of(cls, name: str) -> Names:
        """Return the names of a queue."""
        return cls(f"rbim-operations-{name}", f"rbim-requests-{name}", f"rbim.operations.{name}", f"rbim.workers.{name}")

    def record(self, key: str) -> str:
        """Return the subject of a request's record."""
        return f"$KV.{self.bucket}.{key}"


class Record(NamedTuple):
    """A record as it was found: its revision and its fields."""

    revision: int
    fields: dict[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether the outcome is known, or was given up."""
        return self.fields.get("state") == "over"


def checked_key(key: str) -> str:
    """Return the key of a request. Raises InvalidRequest if a subject cannot have it."""
    if not KEY.fullmatch(key):
        raise InvalidRequest(f"key: use WORD.WORD of letters, digits, - and _, not {quoted(key)}", field="key")
    return key


async def lives(client: Client | None, worker: str, key: str) -> bool:
    """Return whether a worker answers that it works on a key; ``worker`` is the subject of that worker."""
    if client is None:
        return False
    try:
        answer = await client.request(worker, key.encode(), timeout=1)
    except (NatsError, OSError, TimeoutError):
        return False
    return bool(answer.data == b"yes")


class Store:
    """The stream and the bucket of a queue. ``prepare`` creates what is missing, after each connect."""

    def __init__(self, name: str, *, servers: tuple[str, ...], replicas: int | None) -> None:
        self.names = Names.of(name)
        self._replicas = replicas or (MANY_SERVERS if len(servers) >= MANY_SERVERS else 1)
        self.bucket: KeyValue | None = None

    async def prepare(self, jetstream: JetStreamContext) -> None:
        """Create the stream and the bucket if they are missing. Raises InvalidRequest for those of another version."""
        names = self.names
        metadata = {"rbim": "operations", "rbim-version": VERSION}
        try:
            found = (await jetstream.stream_info(names.stream)).config.metadata or {}
        except NotFoundError:
            await add_stream(
                jetstream,
                api.StreamConfig(
                    name=names.stream,
                    subjects=[names.subject],
                    retention=api.RetentionPolicy.LIMITS,  # a work queue forgets the ids of messages when it starts again
                    max_age=MESSAGES_FOR,
                    duplicate_window=DUPLICATES_FOR,
                    num_replicas=self._replicas,
                    metadata=metadata,
                ),
            )
        else:
            if any(found.get(key) != value for key, value in metadata.items()):
                version = found.get("rbim-version")
                raise InvalidRequest(
                    f"the stream {names.stream} has version {quoted(version)}, this rbim needs {VERSION}: use the same rbim"
                    " on all machines, or another name",
                    field="name",
                )
        try:
            self.bucket = await jetstream.key_value(names.bucket)
        except NotFoundError:
            config = api.KeyValueConfig(
                bucket=names.bucket, history=1, ttl=RECORDS_FOR, replicas=self._replicas, direct=False
            )
            self.bucket = await add_bucket(jetstream, config)


class Requests:
    """The records, over a connection that may be lost at any time: each method waits for the servers until it succeeds."""

    def __init__(self, connection: Connection, store: Store) -> None:
        self._connection = connection
        self._store = store

    async def look(self, key: str) -> Record | None:
        """Return the record of a key, None if there is none."""

        async def get() -> Record | None:
            try:
                found = await self._bucket.get(key, validate_keys=False)
            except KeyNotFoundError:
                return None
            return Record(found.revision or 0, json.loads(found.value or b"{}"))

        return await self.persist(get)

    async def create(self, key: str, fields: dict[str, Any]) -> tuple[bool, Record]:
        """Make the record of a key; return whether that was done, and the record that there is now."""
        return await self._write(key, fields, 0)

    async def update(self, key: str, fields: dict[str, Any], revision: int) -> tuple[bool, Record]:
        """Replace the record of that revision; return whether that was done, and the record that there is now.

        Raises MaxPayloadError for fields that are larger than the servers take.
        """
        return await self._write(key, fields, revision)

    async def _write(self, key: str, fields: dict[str, Any], last: int) -> tuple[bool, Record]:
        fields = {**fields, "by": token_hex(8)}
        value, subject = json.dumps(fields, separators=(",", ":")).encode(), self._store.names.record(key)

        async def put() -> int | None:
            try:
                return await (await self._connection.publisher()).put(subject, value, last)
            except KeyWrongLastSequenceError:
                return None

        while True:
            revision = await self.persist(put)
            if revision is not None:
                return True, Record(revision, fields)
            found = await self.look(key)
            if found is not None:  # its own if the acknowledgement of an earlier try was lost
                return found.fields.get("by") == fields["by"], found
            if last:
                return False, Record(0, {})  # expired: it is not waited for any more

    async def time(self) -> datetime:
        """Return the time of the server that leads the bucket. Raises NatsError."""
        return await server_time(await self._connection.jetstream(), f"KV_{self._store.names.bucket}")

    @property
    def _bucket(self) -> KeyValue:
        bucket = self._store.bucket
        assert bucket is not None  # noqa: S101  # the connection is ready, so it is prepared
        return bucket

    async def persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call to the servers, which is tried until they answer. It must bear a repetition."""
        while True:
            await self._connection.jetstream()
            try:
                return await call()
            except MaxPayloadError:
                raise
            except (NatsError, OSError, TimeoutError) as error:
                self._connection.suspect(f"{type(error).__name__}: {error}")
                await asyncio.sleep(PAUSE)
