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

from rbim.errors import InvalidRequest
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
# In each round a worker looks at the records of all partitions that it does not own, and takes
#
#   free ones       without an owner, at once;
#   abandoned ones  whose record stood still for ``takeover`` seconds (its owner's or its own, whichever is longer);
#   its own ones    that have its boot id though it does not know them: a write whose answer was lost,
#
# until it has its share: the number of partitions, divided by that of the workers that it hears. It gives idle ones back
# that are more than its share. All taking is compare-and-set: of several workers one succeeds.
#
# What must always hold:
# - No clock but the worker's own is used to measure how long a record stands still. Only time between two looks counts that
#   both succeeded, over one connection, and never more than a round's usual time: neither a frozen worker nor one whose
#   servers were away takes anything over because of that.
# - Workers say that they are there by messages that are not stored. They matter for the shares only: a worker that is not
#   heard keeps its partitions as long as it writes their records.

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
    """How long the values of keys have stood still, in seconds of looking."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked: float | None = None

    def elapsed(self, now: float, connected_for: float) -> float:
        """Return the seconds since the last look that count, given those for which the connection has stood."""
        if self._looked is None or connected_for < now - self._looked:
            return 0.0
        return min(now - self._looked, self._most)

    def stood_still(self, key: str, revision: int, elapsed: float) -> float:
        """Note a key's revision; return for how long it is the same."""
        known, stood = self._seen.get(key, (0, 0.0))
        stood = stood + elapsed if known == revision else 0.0
        self._seen[key] = revision, stood
        return stood

    def done(self, now: float) -> None:
        """Note the end of a look."""
        self._looked = now

    def failed(self) -> None:
        """Note that a look failed: the time until the next one does not count."""
        self._looked = None


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
        self._purged = asyncio.get_running_loop().time()

    def of(self, share: Share) -> Partition | None:
        """Return the partition of a share, or None if it is not owned any more."""
        return self._by_share.get(share)

    async def run(self) -> None:
        """Do rounds until cancelled."""
        while True:
            self._again.clear()
            try:
                await self._round()
            except InvalidRequest:  # of another version: this worker must not touch it
                logger.exception("no partition can be taken")
            except Exception as error:  # no answer, no leader
                self._watch.failed()
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
            await asyncio.gather(*tasks, return_exceptions=True)
        with suppress(Exception):
            await self._say("left")

    async def _round(self) -> None:
        await self._streams.jetstream()
        await self._listen()
        await self._say("here")
        loop, connection = asyncio.get_running_loop(), self._streams.connection
        now = loop.time()
        self._others = {boot: heard for boot, heard in self._others.items() if now - heard < self._takeover}
        share = ceil(self._streams.subjects.partitions / (len(self._others) + 1))
        self._give_back(len(self.partitions) - share)
        elapsed = self._watch.elapsed(now, connection.ready_for)
        numbers = [n for n in range(self._streams.subjects.partitions) if n not in self._tasks]
        found = await asyncio.gather(*(self._look(number) for number in numbers))
        self._watch.done(loop.time())
        free = [
            (number, value, revision)
            for number, (value, revision) in zip(numbers, found, strict=True)
            if self._may_be_taken(number, value, revision, elapsed)
        ]
        random.shuffle(free)
        await asyncio.gather(*(self._take(*each) for each in free[: max(0, share - len(self.partitions))]))
        await self._delete_old(now)

    async def _look(self, number: int) -> tuple[bytes | None, int]:
        """Return the value and the revision of a partition's record: None and 0 if it has none."""
        bucket = await self._streams.bucket()
        try:
            entry = await bucket.get(key_of(number))
        except NotFoundError:
            return None, 0
        return entry.value, entry.revision or 0

    def _may_be_taken(self, number: int, value: bytes | None, revision: int, elapsed: float) -> bool:
        stood = self._watch.stood_still(key_of(number), revision, elapsed)
        if value is None:
            return True
        owner = owner_of(value)
        return owner.boot in {"", self._boot} or stood >= max(owner.takeover, self._takeover)

    async def _take(self, number: int, value: bytes | None, revision: int) -> None:
        """Take a partition, unless another worker is first."""
        record = Record.parse(value)
        record.taken()
        owner = Owner(boot=self._boot, writes=1, takeover=self._takeover)
        bucket = await self._streams.bucket()
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

    async def _delete_old(self, now: float) -> None:
        if now - self._purged < PURGE_EVERY:
            return
        self._purged = now
        for partition in [*self.partitions.values()]:
            await partition.delete_old()

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
