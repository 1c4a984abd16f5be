"""Faults put into ``rbim.jetstream``, and into the servers, on purpose; see ``planted_faults``."""

from __future__ import annotations

import asyncio
from typing import Any

from .planted_faults import fault, replace

__all__: list[str] = []


@fault("jetstream_inbox")
def take_over_trusted_early() -> None:
    """A partition is taken over whose record stood still for a tenth of the time."""
    from rbim.jetstream.ownership import Watch

    stood_still = Watch.stood_still

    def faulty(self: Any, key: str, revision: int, now: float) -> float:
        return 10 * stood_still(self, key, revision, now)

    replace(Watch, "stood_still", faulty)


@fault("jetstream_inbox")
def accepted_before_it_is_stored() -> None:
    """A delivery is answered before the servers have acknowledged it."""
    from rbim.jetstream.inbox import JetStreamInbox

    accept, tasks = JetStreamInbox.accept, set[Any]()

    async def faulty(self: Any, delivery: Any) -> Any:
        tasks.add(asyncio.create_task(accept(self, delivery)))
        return True

    replace(JetStreamInbox, "accept", faulty)


@fault("jetstream_inbox")
def no_id_for_a_message() -> None:
    """Messages have no id by which the servers recognise a resend."""
    from rbim.jetstream import inbox

    headers_of = inbox.headers_of

    def faulty(delivery: Any, identity: Any, *, kind: Any = "", number: Any = 0, replays: Any = 0) -> Any:
        headers = headers_of(delivery, identity, kind=kind, number=number, replays=replays)
        del headers["Nats-Msg-Id"]
        return headers

    replace(inbox, "headers_of", faulty)


@fault("jetstream_inbox")
def records_without_compare_and_set() -> None:
    """The record of a partition is written whoever has written it meanwhile."""
    from rbim.jetstream.partition import Partition, key_of

    async def faulty(self: Any) -> int:
        self._owner.writes += 1
        while True:
            bucket = await self._streams.bucket()
            try:
                self._revision = await bucket.put(key_of(self.number), self.record.value(self._owner))
            except Exception:
                await asyncio.sleep(0.1)
            else:
                return int(self._revision)

    replace(Partition, "_write", faulty)


@fault("jetstream_inbox")
def gaps_not_noticed() -> None:
    """Whether a message of a reader was lost is not looked at."""
    from rbim.jetstream.partition import Reader

    def faulty(self: Any, message: Any) -> int:
        place = message.metadata.sequence
        self._next = place.consumer + 1
        self._asked -= 1
        return int(place.stream)

    replace(Reader, "_sequence", faulty)


@fault("jetstream_inbox")
def heartbeats_not_compared() -> None:
    """The last message may have gone to nobody, and the heartbeats that say so are not read."""
    from rbim.jetstream.partition import Reader

    is_event = Reader._is_event

    def faulty(self: Any, message: Any) -> bool:
        if (message.headers or {}).get("Status") == "100":
            return False
        return is_event(self, message)

    replace(Reader, "_is_event", faulty)


@fault("jetstream_inbox")
def letter_not_written() -> None:
    """An event is settled as dead, and its dead letter is not written."""
    from rbim.jetstream import backlog

    async def faulty(streams: Any, sequence: Any, claim: Any, delivery: Any, error: Any) -> None: ...

    replace(backlog, "write_letter", faulty)


@fault("jetstream_inbox")
def lost_acknowledgement_is_lost_partition() -> None:
    """A write of a record whose acknowledgement was lost is taken for one of another worker."""
    from rbim.jetstream.partition import Partition

    async def faulty(self: Any) -> int:  # noqa: ARG001
        return 0

    replace(Partition, "_found", faulty)


@fault("jetstream_inbox")
def lost_acknowledgement_not_looked_up() -> None:
    """A write of a record whose acknowledgement was lost is made again and again, for the revision that there was."""
    from rbim.jetstream.partition import Partition

    async def faulty(self: Any) -> None:  # noqa: ARG001
        return None

    replace(Partition, "_found", faulty)


@fault("jetstream_inbox")
def lease_not_in_the_record() -> None:
    """What a worker was handling when it died is not suspected."""
    from rbim.jetstream.record import Record

    replace(Record, "taken", lambda self: self.leases.clear())


@fault("jetstream_inbox")
def work_queue_forgets() -> None:
    """The servers forget ids when another one takes the lead, as they do those of a work queue when they start again."""
    from .broker_network import Servers

    seat = Servers._seat

    def faulty(self: Any, stream: str) -> None:
        seat(self, stream)
        if self._leaders.get(stream) is not None and stream in self.broker.streams:
            self.broker.streams[stream].ids.clear()

    replace(Servers, "_seat", faulty)


@fault("jetstream_inbox")
def acknowledged_before_synced() -> None:
    """The servers acknowledge before they sync: ``sync_interval`` has its default, and all lose power."""
    from .broker_network import Servers

    lose_power = Servers._lose_power

    def faulty(self: Any, seconds: float) -> None:
        self.syncs = False
        lose_power(self, seconds)

    replace(Servers, "_lose_power", faulty)
