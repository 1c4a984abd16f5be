"""An inbox's events for people: how many there are, how old the oldest is, and replays."""

from __future__ import annotations

from collections import Counter
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.content import OTHER_CONTENT
from rbim.callbacks.inbox.protocols import Counts
from rbim.jetstream.letters import AT_ONCE, publish
from rbim.jetstream.messages import Stored, headers_of, stored
from rbim.jetstream.nats_py import NotFoundError, add_consumer, api, parts
from rbim.jetstream.partition import key_of
from rbim.jetstream.reader import Reader
from rbim.jetstream.record import Record
from rbim.jetstream.together import together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rbim.callbacks.inbox.arguments import EventFilter
    from rbim.jetstream.letters import Letter, Letters
    from rbim.jetstream.streams import Streams

__all__ = ["History"]

COUNTED = 5.0  # seconds after which the servers delete a consumer that only counted


class History:
    """The accepted events of an inbox, those that wait and those that were handled."""

    def __init__(self, streams: Streams, letters: Letters) -> None:
        self._streams = streams
        self._letters = letters

    async def counts(self) -> Counts:
        """Return the numbers of events. The time grows with the number of partitions and of dead letters."""
        jetstream, subjects = await self._streams.at_hand(), self._streams.subjects
        info = await jetstream.stream_info(subjects.events, subjects_filter=">")
        per_subject: dict[str, int] = info.state.subjects or {}
        events: Counter[int] = Counter()
        for subject, number in per_subject.items():
            if subject != subjects.quarantine:
                events[_partition(subject)] += number
        waiting = sum(await together(map(self._waiting, events)))
        dead = await self._letters.numbers()
        kept = sum(number >= info.state.first_seq for number in dead)  # the others' messages are deleted
        return Counts(
            waiting=waiting,
            done=max(0, events.total() - waiting - kept),
            dead=len(dead),
            quarantined=per_subject.get(subjects.quarantine, 0),
        )

    async def lag(self, now: float) -> float:
        """Return the age of the oldest waiting event in seconds; 0 if none waits."""
        oldest = await together(map(self._oldest, range(self._streams.subjects.partitions)))
        return max(0.0, now - min(oldest)) if any(each < now for each in oldest) else 0.0

    async def _record(self, partition: int) -> Record:
        """Return a partition's record, from the leader: another server may still have an older one."""
        jetstream, subjects = await self._streams.at_hand(), self._streams.subjects
        try:
            message = await jetstream.get_last_msg(f"KV_{subjects.state}", subjects.record(key_of(partition)))
        except NotFoundError:
            return Record()
        return Record.parse(message.data)

    async def _waiting(self, partition: int) -> int:
        """Return the number of a partition's waiting events: nearly always 0, which needs no consumer to be counted."""
        record, jetstream, subjects = await self._record(partition), await self._streams.at_hand(), self._streams.subjects
        try:
            last = await jetstream.get_last_msg(subjects.events, subjects.of_partition(partition))
        except NotFoundError:
            return 0
        if (last.seq or 0) <= record.floor:
            return 0
        name = f"c{token_hex(8)}"
        consumer = await add_consumer(
            jetstream,
            subjects.events,
            api.ConsumerConfig(
                name=name,
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=record.floor + 1,
                ack_policy=api.AckPolicy.NONE,
                filter_subject=subjects.of_partition(partition),
                inactive_threshold=COUNTED,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        await jetstream.delete_consumer(subjects.events, name)
        return max(0, (consumer.num_pending or 0) - record.settled_above)

    async def _oldest(self, partition: int) -> float:
        """Return the epoch time at which a partition's oldest waiting event was received; infinity without one."""
        record, jetstream, subjects = await self._record(partition), await self._streams.at_hand(), self._streams.subjects
        at = record.floor + 1
        while True:
            try:
                message = await jetstream.get_msg(
                    subjects.events, seq=at, subject=subjects.of_partition(partition), next=True, direct=True
                )
            except NotFoundError:
                return inf
            sequence = message.seq or 0
            if not record.is_settled(sequence):
                return stored(*parts(message)).delivery.received.timestamp()
            at = record.next_waiting(sequence)

    async def replay(self, wanted: EventFilter) -> int:
        """Make events wait again; return their number."""
        count, chosen = 0, list[Stored]()
        async for event in self._handled(wanted):
            chosen.append(event)
            if len(chosen) == AT_ONCE:
                count += await self._publish_again(chosen)
                chosen = []
        count += await self._publish_again(chosen)
        async for letter in self._chosen_letters(wanted):
            count += await self._letters.requeue_one(letter)
        return count

    async def replayable(self, wanted: EventFilter) -> dict[str, int]:
        """Return how many events a replay would make wait again, by ``msgType``, the most first."""
        found: Counter[str] = Counter()
        async for event in self._handled(wanted):
            found[event.delivery.msg_type] += 1
        async for letter in self._chosen_letters(wanted):
            found[letter.readable.msg_type] += 1
        return dict(found.most_common())

    async def _chosen_letters(self, wanted: EventFilter) -> AsyncIterator[Letter]:
        async for letter in self._letters.letters(quarantined=not wanted.dead_only):
            readable = letter.readable
            apart = letter.shown.error.startswith(OTHER_CONTENT) and not letter.is_dead
            if not apart and (letter.is_dead or readable.problem is None) and wanted.matches(readable):
                yield letter

    async def _handled(self, wanted: EventFilter) -> AsyncIterator[Stored]:
        """Yield the handled events that are wanted: each by its last message, if that is settled and no dead letter."""
        if wanted.dead_only:
            return
        jetstream, subjects = await self._streams.at_hand(), self._streams.subjects
        last = (await jetstream.stream_info(subjects.events)).state.last_seq
        dead = set(await self._letters.numbers())
        latest: dict[int, int] = {}
        async for event, _ in self._messages(f"{subjects.name}.again.*", last):
            latest[event.number] = event.sequence
        records = await together(map(self._record, range(subjects.partitions)))
        async for event, partition in self._messages(f"{subjects.name}.*.*", last):
            superseded = latest.get(event.number, event.sequence) != event.sequence
            if superseded or event.number in dead or not records[partition].is_settled(event.sequence):
                continue
            delivery = event.delivery
            if wanted.matches(delivery_of(delivery.body, app_id=delivery.app_id, received=delivery.received)):
                yield event

    async def _publish_again(self, events: list[Stored]) -> int:
        subjects = self._streams.subjects

        async def again(event: Stored) -> bool:
            identity = f"{event.number}.{event.sequence}"
            headers = headers_of(event.delivery, identity, kind=event.kind, number=event.number, replays=event.replays + 1)
            acknowledged = await publish(
                self._streams, subjects.again(event.delivery.conversation), headers, event.delivery.body
            )
            return not acknowledged.duplicate

        return sum(await together(map(again, events)))

    async def _messages(self, subject: str, last: int) -> AsyncIterator[tuple[Stored, int]]:
        """Yield the events of a subject up to a sequence, with their partitions."""
        jetstream, stream = await self._streams.at_hand(), self._streams.subjects.events
        async with Reader(self._streams.connection.client, jetstream, stream, subject, 1) as reader:
            left = reader.pending
            while left:
                for sequence, message in await reader.read():
                    if sequence > last:
                        return
                    left -= 1
                    yield stored(sequence, message.headers, message.data), _partition(message.subject)


def _partition(subject: str) -> int:
    return int(subject.rpartition(".")[2])
