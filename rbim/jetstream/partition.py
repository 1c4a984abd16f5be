"""A partition: its messages, read in order without a gap, and its record, written by compare-and-set only."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import suppress
from logging import getLogger
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from rbim._support.task_errors import is_being_cancelled
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.jetstream.connection import ended
from rbim.jetstream.lanes import Share
from rbim.jetstream.messages import stored
from rbim.jetstream.nats_py import KeyWrongLastSequenceError, add_consumer, api, subscribe
from rbim.jetstream.record import Blame, Owner, Record, owner_of
from rbim.jetstream.streams import MARGIN

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from rbim.jetstream.lanes import Lanes
    from rbim.jetstream.nats_py import Client, JetStreamContext, Msg, Subscription
    from rbim.jetstream.streams import Streams

__all__ = ["Gap", "Partition", "Reader", "key_of", "written"]

# Why not nats-py's own pull subscription: it asks the servers again every few seconds, without heartbeats. A consumer that
# needs no acknowledgements may lose messages, for example while the connection is lost: nothing would be read until the
# next message, and the ones before it never. Here each message must have the consumer's next number, and heartbeats say the
# last one while nothing comes.

BATCH = 256
EXPIRES = 30.0  # seconds for which the servers keep a request
HEARTBEAT = 5.0  # seconds
PATIENCE = 2.5 * HEARTBEAT
UNUSED = 30.0  # seconds after which the servers delete a consumer that is not used
LAST_WAIT = 1.0  # seconds
ASK_AGAIN, REFUSALS = 0.05, 40  # seconds, and how often


class Gap(Exception):
    """Messages were missed, or the consumer is gone: begin again after the last message that was read."""


def _reader_name() -> str:
    """Return a name for a consumer that no other one has."""
    return f"r{token_hex(8)}"


class Reader:
    """Reads a stream's messages with a subject (it may have wildcards) from a sequence on; an async context manager.

    ``name`` is that of its consumer (default: a new one). If entering had no answer, another reader of the same sequence
    should get the same name: the consumer may be there by then, and busy servers are not asked for one after the other.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # what it reads, and with what
        self, client: Client, jetstream: JetStreamContext, stream: str, subject: str, start: int, name: str | None = None
    ) -> None:
        self._client = client
        self._jetstream = jetstream
        self._stream = stream
        self._subject = subject
        self._start = start
        self._name = name or _reader_name()
        self._inbox = client.new_inbox()
        self._arrived: deque[Msg] = deque()
        self._news = asyncio.Event()
        self._next = 1
        self._asked = 0
        self._refused = 0
        self._subscription: Subscription | None = None
        self.pending = 0
        """The number of messages that there were on entering."""

    async def __aenter__(self) -> Self:
        consumer = await add_consumer(
            self._jetstream,
            self._stream,
            api.ConsumerConfig(
                name=self._name,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._start,
                ack_policy=api.AckPolicy.NONE,
                filter_subject=self._subject,
                inactive_threshold=UNUSED,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        self.pending = consumer.num_pending or 0
        self._subscription = await subscribe(self._client, self._inbox, self._arrive)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        with suppress(Exception):
            async with asyncio.timeout(LAST_WAIT):
                if self._subscription is not None:
                    await self._subscription.unsubscribe()
                await self._jetstream.delete_consumer(self._stream, self._name)

    async def _arrive(self, message: Msg) -> None:
        self._arrived.append(message)
        self._news.set()

    async def read(self) -> list[tuple[int, Msg]]:
        """Wait for messages, and return them with their sequences. Raises Gap, or any error of the connection."""
        found: list[tuple[int, Msg]] = []
        while not found:
            if not self._asked:
                await self._ask()
            if not self._arrived:
                self._news.clear()
                try:
                    async with asyncio.timeout(PATIENCE):
                        await self._news.wait()
                except TimeoutError:
                    raise Gap("no heartbeat came") from None
            while self._arrived:
                message = self._arrived.popleft()
                if self._is_event(message):
                    found.append((self._sequence(message), message))
            if self._refused:  # on another server the consumer may not have begun yet
                await asyncio.sleep(ASK_AGAIN)
        return found

    async def _ask(self) -> None:
        self._asked = BATCH
        request = {"batch": BATCH, "expires": int(EXPIRES * 1e9), "idle_heartbeat": int(HEARTBEAT * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        await self._client.publish(subject, json.dumps(request).encode(), reply=self._inbox)

    def _sequence(self, message: Msg) -> int:
        place = message.metadata.sequence
        if place.consumer != self._next:
            raise Gap(f"message {place.consumer} of the consumer came instead of {self._next}")
        self._next += 1
        self._asked -= 1
        return place.stream

    def _is_event(self, message: Msg) -> bool:
        """Return whether a message has content, or only a status. Raises Gap for one that ends the consumer."""
        headers: dict[Any, Any] = message.headers or {}
        status: str | None = headers.get("Status")
        if status is None or message.data:
            self._refused = 0
            return True
        if status == "100":
            last = headers.get("Nats-Last-Consumer")
            if last is not None and int(last) >= self._next:
                raise Gap(f"message {last} of the consumer went to nobody")
        elif status in {"404", "408"}:
            self._asked = 0
        elif status == "503" and self._refused < REFUSALS:
            self._refused += 1
            self._asked = 0
        else:
            raise Gap(f"status {status}: {headers.get('Description', '')}")
        return False


# Theory of operation: the ownership of a partition, as its owner sees it.
#
#   owned    Its record has our boot id, at the revision that we know.
#   in doubt A write of the record had no answer: it may have been made or not. It is tried again, with the same value.
#   ended    Given back: the record has no owner. Or left: on the end of the worker, while conversations are leased; they
#            are not handled before ``takeover`` has passed, and no event is suspected.
#   lost     Another worker took it over, because our writes did not come for ``takeover`` seconds.
#
# owned -> in doubt   the write fails or is not answered
# in doubt -> owned   a try succeeds; or it fails because the revision is another one, and the record has our boot id and the
#                     number of this write: an earlier try was made, and only its answer was lost
# in doubt -> lost    it fails, and the record is another worker's
# owned -> ended      end()
#
# What must always hold:
# - Only one write is under way; all changes that were made before it begins are in it, and many tasks share it.
# - A write follows at the latest after a third of ``takeover``, also without any change.
# - ``_written`` is never later than the time from which others see the record stand still: that of the request that wrote
#   it, not that of its answer; and that of the first try if it is not known which one wrote it.
# - A claim leaves the backlog after a write that has its lease. A worker that was frozen, and lost its partitions, cannot
#   make that write: it begins nothing that another worker may have begun.

RETRY = 0.1  # seconds
READ_AGAIN = 0.2  # seconds
MARKS = 24  # in the time of the retention
FRESH = 2 / 3  # of ``takeover``: twice as long as a write may be away

logger = getLogger("rbim.jetstream")


def key_of(number: int) -> str:
    """Return the key of a partition's record."""
    return f"p.{number}"


async def written(write: asyncio.Future[int]) -> int:
    """Wait for a write of a partition; return the record's revision. Raises LeaseLost."""
    await asyncio.wait((write,))
    if not write.result():
        raise LeaseLost
    return write.result()


class Partition:
    """An owned partition. :meth:`run` keeps it until it is lost, or until :meth:`end` was called."""

    def __init__(  # noqa: PLR0913  # the parts that its owner puts together
        self,
        number: int,
        record: Record,
        revision: int,
        *,
        owner: Owner,
        streams: Streams,
        lanes: Lanes,
        now: Callable[[], float],
        retention: float,
        taken: float,
    ) -> None:
        self.number = number
        self.share = Share(record)
        self._revision = revision
        self._owner = owner
        self._streams = streams
        self._lanes = lanes
        self._now = now
        self._retention = retention
        self._written = taken
        self._wanted = asyncio.Event()
        self._room = asyncio.Event()
        self._batch: asyncio.Future[int] = asyncio.Future()
        self._ending = False

    @property
    def record(self) -> Record:
        """Its record, as it will be written next."""
        return self.share.record

    @property
    def idle(self) -> bool:
        """Whether none of its conversations is leased."""
        return not self._lanes.is_leased(self.share)

    def changed(self) -> None:
        """Have the record written soon."""
        self._wanted.set()
        if self.share.has_room:
            self._room.set()

    async def commit(self) -> int:
        """Wait until all changes up to now are written; return the record's revision. Raises LeaseLost."""
        return await written(self.next_write())

    def next_write(self) -> asyncio.Future[int]:
        """Have the record written soon; return the write that has all changes up to now (see :func:`written`).

        Raises LeaseLost.
        """
        if self.share.lost:
            raise LeaseLost
        self.changed()
        return self._batch

    @property
    def is_fresh(self) -> bool:
        """Whether its record was written so lately that no other worker takes it over."""
        return asyncio.get_running_loop().time() - self._written < self._owner.takeover * FRESH

    def end(self) -> None:
        """Give the partition back; or, while a conversation is leased, leave it to those who take it over."""
        leased = not self.idle
        self._lanes.forget(self.share)
        if leased:
            self.record.leases = dict.fromkeys(self.record.leases, Blame.NONE)
        else:
            self.record.leases.clear()
            self._owner.boot = ""
        self._ending = True
        self._wanted.set()

    async def run(self) -> None:
        """Keep the record alive and read messages."""
        reading = asyncio.create_task(self._read())
        try:
            await self._keep()
        finally:
            self._lanes.forget(self.share)
            if not self._batch.done():
                self._batch.set_result(0)
            await ended(reading)

    async def _keep(self) -> None:
        beat, loop = self._owner.takeover / 3, asyncio.get_running_loop()
        while True:
            if not self._wanted.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._written + beat):
                        await self._wanted.wait()
            self._wanted.clear()
            self.record.mark(self._now(), self._retention / MARKS)
            batch, self._batch = self._batch, loop.create_future()
            ending, revision = self._ending, 0
            try:
                revision = await self._write()
            finally:
                batch.set_result(revision)
            if ending or not revision:
                return

    async def _write(self) -> int:
        """Write the record until it is known to be written; return its revision, or 0 if the partition is lost."""
        self._owner.writes += 1
        value, subject = self.record.value(self._owner), self._streams.subjects.record(key_of(self.number))
        clock, first = asyncio.get_running_loop().time, None
        while True:
            publisher = await self._streams.connection.publisher()
            sent = clock()
            first = sent if first is None else first
            try:
                self._revision = await publisher.put(subject, value, self._revision)
            except KeyWrongLastSequenceError:
                with suppress(Exception):
                    if (found := await self._found()) is not None:
                        self._written = first
                        return found
            except Exception as error:  # no answer, no leader: it may be written or not
                logger.debug("the record of partition %d: %r", self.number, error)
            else:
                self._written = sent
                return self._revision
            await asyncio.sleep(RETRY)

    async def _found(self) -> int | None:
        """Return the record's revision if this write was made, 0 if the record is another worker's, None to write again."""
        jetstream, subjects = await self._streams.jetstream(), self._streams.subjects
        # from the leader: another server may still have an older revision
        message = await jetstream.get_last_msg(f"KV_{subjects.state}", subjects.record(key_of(self.number)))
        found, revision = owner_of(message.data or b""), message.seq or 0
        if found.boot == self._owner.boot and found.writes == self._owner.writes:
            self._revision = revision
            return revision
        if revision == self._revision:
            return None
        logger.warning("partition %d was taken over by another worker: this one did not answer in time", self.number)
        return 0

    async def _read(self) -> None:
        subjects, name = self._streams.subjects, _reader_name()
        while True:
            try:
                jetstream = await self._streams.jetstream()
                client = self._streams.connection.client
                subject, start = subjects.of_partition(self.number), self.record.read + 1
                async with Reader(client, jetstream, subjects.events, subject, start, name) as reader:
                    name = _reader_name()  # of the next one: this one begins to read
                    while True:
                        await self._wait_for_room()
                        for sequence, message in await reader.read():
                            self._take(sequence, message)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise  # else it is that of something that it awaited
            except Exception as error:  # a gap, no leader, no connection: begin again behind the last message
                logger.debug("reading partition %d: %r", self.number, error)
            await asyncio.sleep(READ_AGAIN)

    async def _wait_for_room(self) -> None:
        while not self.share.has_room:
            self._room.clear()
            await self._room.wait()

    def _take(self, sequence: int, message: Msg) -> None:
        if not self.record.add(sequence) or self.share.lost:
            return
        try:
            event = stored(sequence, message.headers, message.data)
        except ValueError:
            logger.exception("message %d is skipped", sequence)
            self.record.settle(sequence)
            return
        self._lanes.add(self.share, event)

    async def delete_old(self) -> None:
        """Delete the messages that were settled before the retention."""
        up_to = self.record.old(self._now() - self._retention - MARGIN)
        if up_to:
            jetstream, subjects = await self._streams.jetstream(), self._streams.subjects
            await jetstream.purge_stream(subjects.events, seq=up_to + 1, subject=subjects.of_partition(self.number))
