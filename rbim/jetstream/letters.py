"""Dead letters and events in quarantine on the servers: written, listed, deleted, made to wait again."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.content import OTHER_CONTENT
from rbim.callbacks.inbox.protocols import DeadLetter
from rbim.jetstream.messages import DEAD, attempts_of, dead_header, fitting, headers_of, message_id, stored
from rbim.jetstream.nats_py import APIError, NotFoundError, parts
from rbim.jetstream.together import together

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.arguments import EventFilter
    from rbim.callbacks.inbox.protocols import Claim
    from rbim.jetstream.nats_py import api
    from rbim.jetstream.publisher import Acknowledgement
    from rbim.jetstream.streams import Streams

__all__ = ["Letter", "Letters", "publish", "write_letter"]

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
