"""An inbox's events for people: numbers, replays, dead letters and quarantine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from math import inf
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.conflict import OTHER_CONTENT
from rbim.callbacks.inbox.protocols import Counts, DeadLetter
from rbim.jetstream.connection import together
from rbim.jetstream.messages import DEAD, Stored, attempts_of, dead_header, fitting, headers_of, message_id, stored
from rbim.jetstream.nats_py import APIError, NotFoundError, add_consumer, api, parts
from rbim.jetstream.partition import Reader, key_of
from rbim.jetstream.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.arguments import EventFilter
    from rbim.callbacks.inbox.protocols import Claim
    from rbim.jetstream.publisher import Acknowledgement
    from rbim.jetstream.streams import Streams

__all__ = ["History", "Letter", "Letters", "publish", "write_letter"]

AT_ONCE = 64  # requests
AGAIN = 0.02  # seconds
IN_PROCESS = 10158  # error code of the servers: a message with the same id is being stored
NO_MESSAGE = {10037, 10043, 10057}  # there is no message with this sequence


async def publish(streams: Streams, subject: str, headers: dict[str, str], body: bytes) -> Acknowledgement:
    """Publish a message, compressed if it would be too large; return the acknowledgement.

    While another message with the same ``Nats-Msg-Id`` is being stored, it is tried again.
    """
    publisher = await streams.connection.publisher()
    packed = fitting(headers, body, publisher.client.max_payload)
    while True:
        try:
            return await publisher.publish(subject, packed, headers)
        except APIError as error:
            if error.err_code != IN_PROCESS:
                raise
        await asyncio.sleep(AGAIN)


async def write_letter(streams: Streams, sequence: int, claim: Claim, delivery: Delivery, error: str) -> None:
    """Write a dead letter; a second time has no effect."""
    headers = headers_of(delivery, f"{claim.number}.{sequence}", number=claim.number, replays=claim.replays)
    headers[DEAD] = dead_header(claim.attempt, error)
    await publish(streams, streams.subjects.letter(claim.number), headers, delivery.body)


class Letter:
    """A dead letter or an event in quarantine, and where it is: its stream and its sequence there."""

    def __init__(self, stream: str, message: api.RawStreamMsg) -> None:
        self.stream = stream
        self.sequence, headers, body = parts(message)
        self.event = stored(self.sequence, headers, body)
        self.is_dead = DEAD in headers
        attempts, error = attempts_of(self.sequence, headers) if self.is_dead else (0, "")
        delivery = self.event.delivery
        self.shown = DeadLetter(
            number=self.event.number,
            key=delivery.key,
            conversation=delivery.conversation,
            app_id=delivery.app_id,
            body=delivery.body,
            received=delivery.received,
            attempts=attempts,
            error=error or delivery.problem or "",
            msg_type=delivery.msg_type,
            quarantined=not self.is_dead,
        )

    @property
    def readable(self) -> Delivery:
        """The event as it can be read now."""
        delivery = self.event.delivery
        return delivery_of(delivery.body, app_id=delivery.app_id, received=delivery.received)


class Letters:
    """The dead letters and the events in quarantine of an inbox."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def numbers(self) -> list[int]:
        """Return the numbers of all dead letters, in order."""
        return sorted(int(subject.rpartition(".")[2]) for subject in await self._subjects())

    async def _subjects(self) -> list[str]:
        stream, found = self._streams.subjects.dead, dict[str, int]()
        while True:
            await self._streams.at_hand()
            request = {"subjects_filter": ">", "offset": len(found)}
            answer = await self._streams.connection.client.request(
                f"$JS.API.STREAM.INFO.{stream}", json.dumps(request).encode(), timeout=2
            )
            page: dict[str, Any] = json.loads(answer.data)
            subjects: dict[str, int] = page["state"].get("subjects") or {}
            found.update(subjects)
            if not subjects or len(found) >= page.get("total", 0):
                return [*found]

    async def shown(self, wanted: EventFilter, limit: int, after: int, *, quarantined: bool) -> list[DeadLetter]:
        """Return the oldest dead letters, or events in quarantine, with numbers above ``after``."""
        found: list[DeadLetter] = []
        async for letter in self.letters(after, dead=not quarantined, quarantined=quarantined):
            if wanted.matches(letter.readable):
                found.append(letter.shown)
                if len(found) == limit:
                    break
        return found

    async def letters(self, after: int = 0, *, dead: bool = True, quarantined: bool = True) -> AsyncIterator[Letter]:
        """Yield the dead letters with numbers above ``after``, then such events in quarantine."""
        numbers = [number for number in await self.numbers() if number > after] if dead else []
        for at in range(0, len(numbers), AT_ONCE):
            for letter in await self._found(numbers[at : at + AT_ONCE]):
                yield letter
        jetstream, subjects = await self._streams.at_hand(), self._streams.subjects
        while quarantined:
            try:
                message = await jetstream.get_msg(
                    subjects.events, seq=after + 1, subject=subjects.quarantine, next=True, direct=True
                )
            except NotFoundError:
                return
            letter = Letter(subjects.events, message)
            after = letter.sequence
            yield letter

    async def get(self, number: int) -> DeadLetter | None:
        """Return the dead letter or the event in quarantine with a number, or None."""
        letter = await self._letter(number)
        return None if letter is None else letter.shown

    async def _found(self, numbers: Iterable[int]) -> list[Letter]:
        found: list[Letter] = []
        given = [*dict.fromkeys(numbers)]
        for at in range(0, len(given), AT_ONCE):
            letters = await together(self._letter(number) for number in given[at : at + AT_ONCE])
            found += [letter for letter in letters if letter is not None]
        return found

    async def _letter(self, number: int) -> Letter | None:
        jetstream, subjects = await self._streams.at_hand(), self._streams.subjects
        if number < 1:
            return None
        try:
            return Letter(subjects.dead, await jetstream.get_last_msg(subjects.dead, subjects.letter(number)))
        except NotFoundError:
            pass
        try:
            message = await jetstream.get_msg(subjects.events, seq=number)
        except NotFoundError:
            return None
        return Letter(subjects.events, message) if message.subject == subjects.quarantine else None

    async def requeue(self, numbers: Iterable[int], *, dead: bool, quarantined: bool) -> int:
        """Make letters wait again that can be read; return their number."""
        count = 0
        for letter in await self._found(numbers):
            if dead if letter.is_dead else quarantined:
                count += await self.requeue_one(letter)
        return count

    async def requeue_one(self, letter: Letter) -> bool:
        """Make a letter wait again if it can be read.

        It is published once more, then the letter is deleted: after a crash between the two, a repetition is recognised.
        """
        subjects, event = self._streams.subjects, letter.event
        delivery = event.delivery
        identity = f"{event.number}.{letter.sequence}.{letter.stream}"
        if not letter.is_dead:
            identity = f"{message_id(delivery.key)}.{letter.sequence}"  # as accept() would write a resend
            key, delivery = delivery.key, letter.readable
            if delivery.problem is not None:
                return False
            if delivery.key != key and letter.shown.error.startswith(OTHER_CONTENT):
                delivery = delivery._replace(key=key)
            elif delivery.key != key:  # this version reads more: a resend may have been accepted by its right key meanwhile
                headers = headers_of(delivery, message_id(delivery.key), number=event.number)
                if not (
                    await publish(self._streams, subjects.again(delivery.conversation), headers, delivery.body)
                ).duplicate:
                    return await self._delete(letter.stream, letter.sequence)
                delivery = delivery._replace(key=key)
        headers = headers_of(delivery, identity, number=event.number, replays=event.replays, kind=event.kind)
        await publish(self._streams, subjects.again(delivery.conversation), headers, delivery.body)
        await self._delete(letter.stream, letter.sequence)
        return True

    async def discard(self, numbers: Iterable[int], *, dead: bool, quarantined: bool) -> int:
        """Delete letters; return their number."""
        count = 0
        for letter in await self._found(numbers):
            if dead if letter.is_dead else quarantined:
                count += await self._discard(letter)
        return count

    async def _discard(self, letter: Letter) -> bool:
        if letter.is_dead:  # without the message that was accepted, a resend is a new event
            await self._delete(self._streams.subjects.events, letter.event.number)
        return await self._delete(letter.stream, letter.sequence)

    async def purge(self, *, dead: bool, quarantined: bool, before: float) -> int:
        """Delete letters that were received before an epoch time; return their number."""
        count = 0
        async for letter in self.letters(dead=dead, quarantined=quarantined):
            if letter.shown.received.timestamp() < before:
                count += await self._discard(letter)
        return count

    async def _delete(self, stream: str, sequence: int) -> bool:
        """Delete a message; return False if there is none."""
        jetstream = await self._streams.at_hand()
        try:
            return await jetstream.delete_msg(stream, sequence)
        except APIError as error:
            if error.err_code in NO_MESSAGE:
                return False
            raise


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
