"""A partition that this worker owns: its record, written by compare-and-set only, and the reading of its messages."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING

from rbim._support.task_errors import is_being_cancelled
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.jetstream.connection import ended
from rbim.jetstream.lanes import Share
from rbim.jetstream.messages import stored
from rbim.jetstream.nats_py import KeyWrongLastSequenceError
from rbim.jetstream.reader import Reader, reader_name
from rbim.jetstream.record import Blame, Owner, Record, owner_of
from rbim.jetstream.streams import MARGIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.jetstream.lanes import Lanes
    from rbim.jetstream.nats_py import Msg
    from rbim.jetstream.streams import Streams

__all__ = ["Partition", "key_of", "written"]

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
        subjects, name = self._streams.subjects, reader_name()
        while True:
            try:
                jetstream = await self._streams.jetstream()
                client = self._streams.connection.client
                subject, start = subjects.of_partition(self.number), self.record.read + 1
                async with Reader(client, jetstream, subjects.events, subject, start, name) as reader:
                    name = reader_name()  # of the next one: this one begins to read
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
