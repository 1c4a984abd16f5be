"""Which partitions this worker owns: a fair share of those that no other worker keeps alive."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from logging import getLogger
from math import ceil
from threading import Lock
from typing import TYPE_CHECKING, Any

from rbim._support.task_errors import is_being_cancelled
from rbim.errors import InvalidRequest
from rbim.jetstream.connection import ended, outcomes
from rbim.jetstream.nats_py import KeyWrongLastSequenceError, NotFoundError, subscribe
from rbim.jetstream.partition import Partition, key_of
from rbim.jetstream.record import Owner, Record, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.jetstream.lanes import Lanes, Share
    from rbim.jetstream.nats_py import Client, Msg
    from rbim.jetstream.streams import Streams

__all__ = ["Ownership", "Tally", "Watch"]

# Theory of operation: rounds.
#
# In each round a worker writes a key of the bucket, which proves that the servers take writes, looks at the records of all
# partitions that it does not own, and takes
#
#   free ones       without an owner, at once;
#   abandoned ones  whose record stood still for ``takeover`` seconds (its owner's or its own, whichever is longer);
#   its own ones    that have its boot id though it does not know them: a write whose answer was lost,
#
# until it has its share: the number of partitions, divided by that of the workers that it hears. It gives idle ones back
# that are more than its share. All taking is compare-and-set: of several workers one succeeds.
#
# What must always hold:
# - No clock but the worker's own is used to measure how long a record stands still. Only time between two proofs counts, and
#   never more of it than two rounds usually take: neither a frozen worker, nor one whose servers were away or had no leader,
#   takes anything over because of that. (Servers answer reads while they cannot write.)
# - What fails takes nothing back: neither a proof nor a look that has no answer, nor a server that has older records. So
#   takeovers go on while only some of the requests succeed.
# - All looks and takes of a round have ended when the next one begins: a partition is never taken twice at once.
# - A takeover from a worker that lives costs time, and breaks nothing: all is compare-and-set.
# - Workers say that they are there by messages that are not stored. They matter for the shares only: a worker that is not
#   heard keeps its partitions as long as it writes their records.

PROOF = "proof"
ROUNDS = 6  # in the time of ``takeover``
PURGE_EVERY = 60.0  # seconds
LAST_WAIT = 3.0  # seconds in which all partitions are given back

logger = getLogger("rbim.jetstream")


class Tally:
    """The numbers of partitions that the workers of one inbox own, and have taken over from silent ones, in any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.owned = 0
        self.takeovers = 0

    def add(self, owned: int, *, takeover: bool = False) -> None:
        """Add to the numbers."""
        with self._lock:
            self.owned += owned
            self.takeovers += takeover


class Watch:
    """How long the values of keys have stood still, on a clock that runs from proof to proof, ``most`` seconds at most."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._clock = 0.0
        self._proven: float | None = None
        self._seen: dict[str, tuple[int, float]] = {}

    def proven(self, now: float) -> None:
        """Note that the servers take writes now."""
        if self._proven is not None:
            self._clock += min(now - self._proven, self._most)
        self._proven = now

    def stood_still(self, key: str, revision: int, now: float) -> float:
        """Note a key's revision as it is read now, after the last proof; return for how long it is the same.

        An older revision than was seen before is that of a server that is behind: nothing is known now.
        """
        known, since = self._seen.get(key, (0, 0.0))
        if revision > known:
            late = 0.0 if self._proven is None else min(now - self._proven, self._most)
            self._seen[key] = revision, self._clock + late
        return max(0.0, self._clock - since) if revision == known else 0.0


class Ownership:
    """The partitions of one worker, by number (``partitions``); :meth:`run` does the rounds."""

    def __init__(  # noqa: PLR0913  # the parts that its backlog puts together
        self,
        streams: Streams,
        lanes: Lanes,
        *,
        boot: str,
        takeover: float,
        retention: float,
        now: Callable[[], float],
        tally: Tally,
    ) -> None:
        self._tally = tally
        self.partitions: dict[int, Partition] = {}
        self._by_share: dict[Share, Partition] = {}
        self._streams = streams
        self._lanes = lanes
        self._boot = boot
        self._takeover = takeover
        self._retention = retention
        self._now = now
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._others: dict[str, float] = {}  # boot ids of other workers, and when they were heard
        self._watch = Watch(2 * takeover / ROUNDS)
        self._again = asyncio.Event()
        self._listening: Client | None = None

    def of(self, share: Share) -> Partition | None:
        """Return the partition of a share, or None if it is not owned any more."""
        return self._by_share.get(share)

    async def run(self) -> None:
        """Do rounds, and delete what is old, until cancelled."""
        async with asyncio.TaskGroup() as tasks:  # of its own: to delete may take long
            tasks.create_task(self._keep_deleting(), name="rbim-old-events")
            await self._do_rounds()

    async def _do_rounds(self) -> None:
        while True:
            self._again.clear()
            try:
                await self._round()
            except InvalidRequest:  # of another version: this worker must not touch it
                logger.exception("no partition can be taken")
            except asyncio.CancelledError as error:
                if is_being_cancelled():
                    raise
                logger.debug("a round of the partitions: %r", error)  # of something that it awaited
            except Exception as error:  # no answer, no leader
                logger.debug("a round of the partitions: %r", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._takeover / ROUNDS * random.uniform(0.7, 1.3)):  # noqa: S311  # no secret
                    await self._again.wait()

    async def leave(self) -> None:
        """Give all partitions back, within LAST_WAIT seconds."""
        for partition in self.partitions.values():
            partition.end()
        tasks = [*self._tasks.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_WAIT)
            for task in tasks:
                task.cancel()
            for task in tasks:
                await ended(task)
        with suppress(Exception):
            await self._say("left")

    async def _round(self) -> None:
        await self._streams.jetstream()
        await self._listen()
        await self._say("here")
        now = asyncio.get_running_loop().time()
        self._others = {boot: heard for boot, heard in self._others.items() if now - heard < self._takeover}
        share = ceil(self._streams.subjects.partitions / (len(self._others) + 1))
        self._give_back(len(self.partitions) - share)
        await self._prove()
        numbers = [n for n in range(self._streams.subjects.partitions) if n not in self._tasks]
        free: list[tuple[int, bytes | None, int]] = []
        for number, found in zip(numbers, await outcomes(map(self._look, numbers)), strict=True):
            if isinstance(found, Exception):
                logger.debug("the record of partition %d: %r", number, found)
            elif self._may_be_taken(number, *found):
                free.append((number, *found))
        random.shuffle(free)
        for failed in await outcomes(self._take(*each) for each in free[: max(0, share - len(self.partitions))]):
            if failed is not None:  # if it was made all the same, the next round finds our boot id
                logger.debug("a partition could not be taken: %r", failed)

    async def _prove(self) -> None:
        """Write a key that all workers write, and no one reads. Raises an error if the servers do not take it."""
        bucket = await self._streams.bucket()
        await bucket.put(PROOF, self._boot.encode())
        self._watch.proven(asyncio.get_running_loop().time())

    async def _look(self, number: int) -> tuple[bytes | None, int]:
        """Return the value and the revision of a partition's record: None and 0 if it has none."""
        bucket = await self._streams.bucket()
        try:
            entry = await bucket.get(key_of(number))
        except NotFoundError:
            return None, 0
        return entry.value, entry.revision or 0

    def _may_be_taken(self, number: int, value: bytes | None, revision: int) -> bool:
        stood = self._watch.stood_still(key_of(number), revision, asyncio.get_running_loop().time())
        if value is None:
            return True
        owner = owner_of(value)
        return owner.boot in {"", self._boot} or stood >= max(owner.takeover, self._takeover)

    async def _take(self, number: int, value: bytes | None, revision: int) -> None:
        """Take a partition, unless another worker is first."""
        record = Record.parse(value)
        record.taken()
        owner = Owner(boot=self._boot, writes=1, takeover=self._takeover)
        bucket, taken = await self._streams.bucket(), asyncio.get_running_loop().time()
        try:
            if value is None:
                revision = await bucket.create(key_of(number), record.value(owner))
            else:
                revision = await bucket.update(key_of(number), record.value(owner), revision)
        except KeyWrongLastSequenceError:
            return
        partition = self.partitions[number] = Partition(
            number,
            record,
            revision,
            owner=owner,
            streams=self._streams,
            lanes=self._lanes,
            now=self._now,
            retention=self._retention,
            taken=taken,
        )
        self._by_share[partition.share] = partition
        silent = value is not None and owner_of(value).boot not in {"", self._boot}
        self._tally.add(0, takeover=silent)
        self._tasks[number] = asyncio.create_task(self._run(partition), name=f"rbim-partition-{number}")

    async def _run(self, partition: Partition) -> None:
        self._tally.add(1)
        try:
            await partition.run()
        except Exception as error:  # the connection was closed, or what is on the servers does not fit any more
            logger.debug("partition %d is given up: %r", partition.number, error)
        finally:
            self._tally.add(-1)
            self.partitions.pop(partition.number, None)
            self._by_share.pop(partition.share, None)
            self._tasks.pop(partition.number, None)
            self._again.set()

    def _give_back(self, surplus: int) -> None:
        idle = [partition for partition in self.partitions.values() if partition.idle]
        for partition in idle[: max(0, surplus)]:
            partition.end()
            del self.partitions[partition.number]
            self._tasks[partition.number].add_done_callback(self._freed)

    def _freed(self, _: object) -> None:
        saying = asyncio.ensure_future(self._say_quietly("free"))
        self._saying = saying  # a task without a reference may vanish

    async def _say_quietly(self, word: str) -> None:
        with suppress(Exception):
            await self._say(word)

    async def _keep_deleting(self) -> None:
        while True:
            await asyncio.sleep(PURGE_EVERY)
            for partition in [*self.partitions.values()]:
                try:
                    await partition.delete_old()
                except Exception as error:  # the next mark deletes more
                    logger.debug("the old events of partition %d: %r", partition.number, error)

    async def _listen(self) -> None:
        client = self._streams.connection.client
        if client is not self._listening:
            await subscribe(client, self._streams.subjects.owners, self._heard)
            self._listening = client

    async def _say(self, word: str) -> None:
        message = json.dumps([self._boot, word]).encode()
        await self._streams.connection.client.publish(self._streams.subjects.owners, message)

    async def _heard(self, message: Msg) -> None:
        try:
            given: Any = json.loads(message.data)
            boot, word = given
        except ValueError:
            return
        if boot == self._boot:
            return
        new = boot not in self._others
        if word == "left":
            self._others.pop(boot, None)
        else:
            self._others[boot] = asyncio.get_running_loop().time()
        if new or word != "here":
            self._again.set()
