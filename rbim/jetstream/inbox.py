"""An inbox on NATS JetStream: several machines accept deliveries and handle events, and each of them may die."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING

from attrs import Factory, define, field, setters

from rbim._support.event_loops import backend
from rbim.callbacks.inbox.arguments import epoch, event_filter, numbers_of, page
from rbim.callbacks.inbox.conflict import is_resend, with_own_key
from rbim.callbacks.inbox.protocols import OtherContent
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest
from rbim.jetstream.archive import History, Letters, publish
from rbim.jetstream.backlog import JetStreamBacklog
from rbim.jetstream.connection import Connection, EngineAway, answered
from rbim.jetstream.messages import OURS, Subjects, headers_of, message_id, stored
from rbim.jetstream.nats_py import NotFoundError, parts
from rbim.jetstream.ownership import Tally
from rbim.jetstream.settings import NatsSettings, addresses, checked_name
from rbim.jetstream.streams import PARTITIONS_KEY, Streams, require_inbox
from rbim.timeouts import unshielded
from rbim.validators import above_zero, at_least_one, finite

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Self

    import attrs

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.events import Event
    from rbim.callbacks.inbox.protocols import Backlog, Counts, DeadLetter
    from rbim.clock import Clock
    from rbim.jetstream.nats_py import JetStreamContext
    from rbim.jetstream.publisher import Acknowledgement

__all__ = ["JetStreamInbox", "existing_inbox"]

logger = getLogger("rbim.jetstream")

HOURS = 3600.0  # seconds
MOST_PARTITIONS = 1024
SLOW = 1.0  # seconds without an answer after which a cancelled request counts as unanswered
SEARCH_TIMEOUT = 5.0  # seconds
MOST_HEADERS = 8  # that ``inject`` adds to an event
LONGEST_HEADER = 2048  # characters


def _settings(given: NatsSettings | None) -> NatsSettings:
    return NatsSettings() if given is None else given


def _clock(given: Clock | None) -> Clock:
    return SystemClock() if given is None else given


def _replicas(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value not in {1, 3, 5}:
        raise InvalidRequest(f"{attribute.name}: use 1, 3 or 5, not {value!r}", field=attribute.name)


def _few(_: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value > MOST_PARTITIONS:
        raise InvalidRequest(f"{attribute.name}: at most {MOST_PARTITIONS}, not {value}", field=attribute.name)


def _fits(header: object) -> bool:
    """Return whether a message can have a header with this name or value."""
    return isinstance(header, str) and 0 < len(header) <= LONGEST_HEADER and header.isascii() and header.isprintable()


@define(eq=False, on_setattr=setters.frozen)
class JetStreamInbox:
    """An inbox on NATS servers with JetStream (2.11 or later). For asyncio; needs ``rbim[nats]``.

    ``servers``: addresses such as ``"nats://h1,nats://h2"``, as a text with commas or a list. ``name``: of the inbox on the
    servers (default: "copies"). ``partitions``: conversations are divided among so many (default: 64), and workers own whole
    partitions, so it is the greatest number of workers; it cannot be changed later. ``replicas``: servers that store each
    event (default: 3; 1 for a single server). ``retention``: seconds for which keys are remembered and handled events are
    kept (default: 6 hours); a key costs the servers some 300 bytes of memory. ``takeover``: seconds that a worker may be
    silent before others take its partitions over (default: 15); also the ``lease``. ``settings``: how to log in (default:
    no credentials). ``clock`` is for pauses before retries and for ages; times of ``takeover`` are real. ``inject``: writes
    headers into a dictionary, which then travel with an event that is accepted to its handler's observers, such as
    ``OtelObserver().inject`` (default: none).

    Accepted events survive the end of any process, and of any minority of the servers. The servers acknowledge before they
    sync to disk unless they are configured with ``sync_interval: always``.

    Entering does not need the network: it connects in the background, again and again, and :meth:`accept` waits. Raises
    InvalidRequest on trio, and if there is another inbox of this name on the servers: of other partitions, another retention
    or another version. If that is found out later, every method raises it. The methods for people, such as :meth:`counts`
    and :meth:`requeue`, raise ConnectionError if no server can be reached for five seconds, or none does what is asked; part
    of it may be done then. Except for :meth:`backlog`, its methods are for the event loop that entered it.
    """

    servers: tuple[str, ...] = field(converter=addresses)
    name: str = field(default="copies", kw_only=True, converter=checked_name)
    partitions: int = field(default=64, kw_only=True, validator=[at_least_one, _few])
    replicas: int = field(default=3, kw_only=True, validator=_replicas)
    retention: float = field(default=6 * HOURS, kw_only=True, validator=[above_zero, finite])
    takeover: float = field(default=15.0, kw_only=True, validator=[above_zero, finite])
    settings: NatsSettings = field(default=None, kw_only=True, converter=_settings, repr=False)
    clock: Clock = field(default=None, kw_only=True, converter=_clock, repr=False)
    inject: Callable[[dict[str, str]], object] | None = field(default=None, kw_only=True, repr=False)
    _subjects: Subjects = field(
        init=False, repr=False, default=Factory(lambda self: Subjects(self.name, self.partitions), takes_self=True)
    )
    _tally: Tally = field(init=False, repr=False, factory=Tally)
    _streams: Streams | None = field(init=False, repr=False, default=None, on_setattr=setters.NO_OP)

    @property
    def durable(self) -> bool:
        """Always True: accepted deliveries survive the end of the process."""
        return True

    @property
    def lease(self) -> float:
        """Seconds that a claim holds without a sign of life of its worker: ``takeover``."""
        return self.takeover

    @property
    def ready(self) -> bool:
        """Whether the servers can be reached now. A receiver with a spool does not wait for them while it is False."""
        return self._streams is not None and self._streams.connection.ready

    @property
    def owned(self) -> int:
        """The number of partitions that the backlogs of this object own now. Together, all workers own ``partitions``."""
        return self._tally.owned

    @property
    def takeovers(self) -> int:
        """The number of partitions that the backlogs of this object took over from workers that were silent."""
        return self._tally.takeovers

    async def __aenter__(self) -> Self:
        if self._streams is not None:
            raise RuntimeError("this inbox is entered already: leave it first, or create another one")
        streams = self._connected_to("receiver")
        await streams.__aenter__()
        self._streams = streams
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            await streams.__aexit__(kind, error, trace)

    def _connected_to(self, part: str) -> Streams:
        return Streams(
            self.servers,
            self.settings,
            self._subjects,
            replicas=self.replicas,
            retention=self.retention,
            label=f"rbim {part} {socket.gethostname()} {os.getpid()}",
        )

    @property
    def _open(self) -> Streams:
        if self._streams is None:
            raise RuntimeError("this inbox is not entered: use it inside `async with inbox`")
        return self._streams

    @unshielded
    async def accept(self, delivery: Delivery, /) -> bool | OtherContent:
        """Store a delivery durably; return True if it is new, False if its key was accepted before.

        If the key is known and the content differs, apart from ``resendFlag``, it is kept in quarantine (OtherContent).

        Waits while no server can be reached. If cancelled, or if this raises an error, it may be accepted or not. Raises
        InvalidRequest for a delivery that is larger than the servers allow (``max_payload``), even compressed.
        """
        subjects = self._subjects
        subject = subjects.accepted(delivery.conversation) if delivery.problem is None else subjects.quarantine
        identity = message_id(delivery.key)
        while True:
            answer = await self._publish(subject, delivery, identity)
            if not answer.duplicate:
                return True
            known = await self._body(answer.sequence)
            if known is not None:
                break
            identity = f"{message_id(delivery.key)}.{answer.sequence}"  # it was discarded: this is a new event
        if is_resend(delivery.body, known):
            return False
        other = with_own_key(delivery, answer.sequence)
        answer = await self._publish(subjects.quarantine, other, message_id(other.key))
        return False if answer.duplicate else OtherContent(key=other.key, problem=other.problem or "")

    async def _publish(self, subject: str, delivery: Delivery, identity: str) -> Acknowledgement:
        streams, loop = self._open, asyncio.get_running_loop()
        await streams.jetstream()
        began = loop.time()
        try:
            headers = {**self._injected(), **headers_of(delivery, identity)}
            return await publish(streams, subject, headers, delivery.body)
        except InvalidRequest:
            raise
        except BaseException as error:
            if isinstance(error, Exception) or loop.time() - began > SLOW:
                streams.connection.suspect(f"{type(error).__name__}: {error}")
            raise

    def _injected(self) -> dict[str, str]:
        if self.inject is None:
            return {}
        headers: dict[str, str] = {}
        try:
            self.inject(headers)
        except Exception:  # an event is never lost because of it
            logger.exception("the headers of an event could not be made")
        fitting = [(name, value) for name, value in headers.items() if _fits(name) and _fits(value) and ":" not in name]
        return {name: value for name, value in fitting[:MOST_HEADERS] if not name.startswith(OURS)}

    async def _body(self, sequence: int) -> bytes | None:
        """Return the body of a message, or None if it was deleted."""
        try:
            message = await (await self._open.jetstream()).get_msg(self._subjects.events, seq=sequence)
        except NotFoundError:
            return None
        return stored(*parts(message)).delivery.body

    @asynccontextmanager
    async def backlog(self) -> AsyncGenerator[Backlog, None]:
        """Return a backlog for the event loop that enters it, in any thread. The inbox itself need not be entered.

        On leaving, the partitions are given back; those with events that are still claimed are taken over by other workers
        after ``takeover`` seconds.
        """
        if backend() != "asyncio":
            raise InvalidRequest("rbim.jetstream runs on asyncio only: nats-py does not know trio")
        streams = self._connected_to("worker")
        async with JetStreamBacklog(
            streams, takeover=self.takeover, retention=self.retention, clock=self.clock, tally=self._tally
        ) as backlog:
            yield backlog

    @property
    def _letters(self) -> Letters:
        return Letters(self._open)

    @answered
    async def counts(self) -> Counts:
        """Return the numbers of waiting, done, dead and quarantined events. It asks the servers about every partition.

        An event that was made to wait again, and then handled, counts as done twice.
        """
        return await History(self._open, self._letters).counts()

    @answered
    async def lag(self) -> float:
        """Return the age of the oldest waiting event in seconds; 0 if none waits.

        It asks the servers about every partition.
        """
        return await History(self._open, self._letters).lag(self.clock.now().timestamp())

    @answered
    async def dead_letters(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest dead letters: at most ``limit``, with numbers above ``after`` (next page: the last number).

        ``since``: only those received since then (with a time zone). ``kind``: a class of events, including its subclasses,
        or the text of a ``msgType``. ``conversation``: its name, with or without ``app_id`` and ``/`` in front. (Default of
        each: any.) Raises InvalidRequest for an invalid argument.
        """
        wanted = event_filter(since, kind, conversation)
        return await self._letters.shown(wanted, *page(limit, after), quarantined=False)

    @answered
    async def quarantined(
        self,
        limit: int = 100,
        after: int = 0,
        *,
        since: datetime | None = None,
        kind: type[Event] | str | None = None,
        conversation: str | None = None,
    ) -> list[DeadLetter]:
        """Return the oldest events in quarantine; the arguments as in :meth:`dead_letters`."""
        wanted = event_filter(since, kind, conversation)
        return await self._letters.shown(wanted, *page(limit, after), quarantined=True)

    @answered
    async def event(self, number: int) -> DeadLetter | None:
        """Return a dead letter or an event in quarantine; None if there is none with this number."""
        return await self._letters.get(number) if numbers_of([number]) else None

    @answered
    async def requeue(self, numbers: Iterable[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Make dead letters, and events in quarantine that can be read now, wait again; return their number.

        Attempts count from 1 again. An event keeps its place in the order of its conversation, before all that wait behind
        it. One in quarantine whose key is known by now is handled as an event of its own.
        With False for ``dead`` or ``quarantined``, numbers of that kind are left out.
        """
        return await self._letters.requeue(numbers_of(numbers), dead=dead, quarantined=quarantined)

    @answered
    async def discard(self, numbers: Iterable[int], *, dead: bool = True, quarantined: bool = True) -> int:
        """Delete dead letters and events in quarantine; return their number. A resend would be accepted as a new event.

        With False for ``dead`` or ``quarantined``, numbers of that kind are left out.
        """
        return await self._letters.discard(numbers_of(numbers), dead=dead, quarantined=quarantined)

    @answered
    async def purge(self, *, dead: bool = True, quarantined: bool = True, before: datetime | None = None) -> int:
        """Delete all dead letters and events in quarantine, or one kind of them; return their number.

        ``before``: only those received before this time (with a time zone; default: all). Raises InvalidRequest for an
        invalid ``before``.
        """
        limit = inf if before is None else epoch(before, "before")
        return await self._letters.purge(dead=dead, quarantined=quarantined, before=limit)

    @answered
    async def replay(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> int:
        """Make events wait again, in their old order, and return their number.

        Replays handled events, as long as they are kept, and dead letters that were received since ``since`` (with a time
        zone; default: all) and are of ``kind``: a class of events, including its subclasses, or the text of a ``msgType``
        (default: any). Events in quarantine are checked again and replayed if they can be read now. ``dead_only`` limits the
        replay to dead letters. Attempts count from 1 again. If cancelled, it may have replayed some events. Raises
        InvalidRequest for an invalid ``since`` or ``kind``.
        """
        return await History(self._open, self._letters).replay(event_filter(since, kind, dead_only=dead_only))

    @answered
    async def replayable(
        self, since: datetime | None = None, kind: type[Event] | str | None = None, *, dead_only: bool = False
    ) -> dict[str, int]:
        """Return how many events :meth:`replay` would make wait again, by ``msgType``, the most first. Changes nothing."""
        return await History(self._open, self._letters).replayable(event_filter(since, kind, dead_only=dead_only))


async def existing_inbox(servers: tuple[str, ...], *, name: str, settings: NatsSettings) -> JetStreamInbox | None:
    """Return the inbox of this name as it is on the servers, not entered; None if there is none.

    Raises ConnectionError if no server answers within 5 seconds, and InvalidRequest if what has this name is no inbox, or
    one of another version.
    """
    connection = Connection(servers, settings, name="rbim", prepare=_nothing)
    async with connection:
        try:
            async with asyncio.timeout(SEARCH_TIMEOUT):
                found = (await (await connection.jetstream()).stream_info(name)).config
        except NotFoundError:
            return None
        except TimeoutError:
            cause = connection.failure or f"no answer within {SEARCH_TIMEOUT:g} s"
            raise EngineAway(f"{cause}: is NATS running there, with JetStream?") from None
    require_inbox(found)
    partitions, retention = (found.metadata or {}).get(PARTITIONS_KEY, ""), found.duplicate_window
    if not partitions.isdecimal() or not retention:
        raise InvalidRequest(f"name: the stream {name} is not an inbox of rbim: use another name", field="name")
    return JetStreamInbox(
        servers,
        name=name,
        partitions=int(partitions),
        replicas=found.num_replicas or 1,
        retention=retention,
        settings=settings,
    )


async def _nothing(_: JetStreamContext) -> None:
    pass
