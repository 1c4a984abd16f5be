"""``serve``: run the operations of a queue with a client, on a machine that has the credentials."""

# Theory of operation: one message in the hands of a worker.
#
#   HELD      It was delivered. The server is told every third of ``takeover`` that it is worked on.
#   CLAIMED   Its record was made by this delivery: the operation may be sent, once.
#   OVER      Its outcome is recorded and told to the coordinator, and the message is acknowledged.
#
# HELD    -> CLAIMED    the shared pace gave a slot, and there was no record
# HELD    -> (gone)     there is a record: it is over (acknowledged), or another worker lives and has the claim (left alone)
# HELD    -> OVER       the worker with the claim gives no sign of life for ``takeover`` seconds: Unanswered
# HELD    -> (gone)     this worker stops, or cannot read the message: it is given back to the others
# CLAIMED -> OVER       the client answered or raised; the worker is cancelled: Unanswered if the request may have left
#
# What must always hold:
# - Nothing is sent without a claim of this delivery, so a message that comes twice is sent once.
# - The slot comes right before the claim: a worker that dies while it waits for a slot leaves no claim, and an outage
#   of the servers between the two makes the slot late, so that another one is taken.
# - The client does not repeat: the job decides about that, with a new key.
# - An outcome is recorded before it is told, and told before the message is acknowledged.

from __future__ import annotations

import asyncio
import json
import os
import socket
from contextlib import suppress
from logging import getLogger
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rbim.client.client import View
from rbim.client.retry import Retry
from rbim.client.settings import rates_of
from rbim.errors import AnswerTooLarge, ClientClosed, InvalidRequest, NotTaken, Outcome, RbimError, Throttled, Unanswered
from rbim.jetstream.connection import Connection, ended
from rbim.jetstream.nats_py import MaxPayloadError, NatsError, add_consumer, api, client_of, subscribe
from rbim.jetstream.observers import ClaimGivenUp, ClaimStarted, Observers
from rbim.jetstream.pull import Pull
from rbim.jetstream.rate import SharedPace
from rbim.jetstream.requests import CONSUMER, Record, Requests, Store, lives
from rbim.jetstream.settings import NatsSettings, addresses, checked_name
from rbim.validators import require
from rbim.wire.portable import answer_to_json, error_to_json, operation_from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rbim.client.limits import Rate
    from rbim.jetstream.nats_py import Client, JetStreamContext, Msg
    from rbim.jetstream.observers import Observation
    from rbim.operations.base import Operation

__all__ = ["TAKEOVER", "serve"]

TAKEOVER = 10.0
"""Seconds without a sign of life after which a worker is taken for dead."""

ASKED = 3  # times that a worker is asked whether it lives, within the takeover
LAST_WORDS = 2.0  # seconds in which a cancelled worker records what it knows
LEFT = 5.0  # seconds for which a message that cannot be read is left to other workers
OLD = 5.0  # seconds in the stream from which a message may have been withdrawn
MANY = 10_000  # messages in the hands of all workers

logger = getLogger("rbim.jetstream")


async def serve(  # noqa: PLR0913  # options, each by keyword and with a default
    client: View,
    servers: str | Iterable[str],
    *,
    name: str = "bulk",
    concurrency: int = 50,
    rates: Iterable[Rate | str] = (),
    takeover: float = TAKEOVER,
    settings: NatsSettings | None = None,
    replicas: int | None = None,
    stop: asyncio.Event | None = None,
    observers: Iterable[Callable[[Observation], object]] = (),
) -> None:
    """Run operations of the queue ``name`` until it is cancelled, or until ``stop`` is set and those begun have ended.

    ``client``: an entered client, or a view of one; its own retries are off. ``servers``: addresses such as
    ``nats://h1:4222``. ``concurrency``: operations at a time in this worker (default: 50). ``rates``: limits of requests for
    all workers of the queue together (default: none); each worker must be given the same. ``takeover``: seconds without a
    sign of life after which the others take a worker for dead (default: 10); the worker that starts last decides for all.
    ``settings``: how to log in to the servers. ``replicas``: copies of the queue on the servers, if it has to be created
    (default: 3 with at least three addresses, else 1). ``observers``: functions that get each observation, from
    :class:`ClaimStarted` to :class:`ClaimEnded`, such as ``OtelObserver().on_operation``; the client has its own observers.

    Runs on asyncio. Raises InvalidRequest, ClientClosed if the client is closed.
    """
    if not isinstance(cast("object", client), View):
        require("client", client, (), "a client, or a view of one,")
    require("concurrency", concurrency, int, "a number of operations")
    if isinstance(concurrency, bool) or concurrency < 1:
        raise InvalidRequest(f"concurrency: at least 1, not {concurrency}", field="concurrency")
    if not takeover > 0:
        raise InvalidRequest(f"takeover: a number of seconds above 0, not {takeover}", field="takeover")
    found = addresses(servers)
    worker = _Worker(
        client.tuned(retry=Retry(attempts=1)),
        _Options(checked_name(name), concurrency, rates_of(tuple(rates)), takeover, Observers(observers)),
        Store(name, servers=found, replicas=replicas),
    )
    connection = Connection(found, settings or NatsSettings(), name=f"rbim worker {worker.boot}", prepare=worker.prepare)
    await worker.run(connection, asyncio.Event() if stop is None else stop)


class _Options(NamedTuple):
    name: str
    concurrency: int
    rates: tuple[Rate, ...]
    takeover: float
    observers: Observers


class _Request(NamedTuple):
    """The content of a message: the key, where to tell the outcome, and the document of the operation."""

    key: str
    reply: str
    operation: Any


class _Worker:
    def __init__(self, client: View, options: _Options, store: Store) -> None:
        self._client = client
        self._options = options
        self._store = store
        self.boot = token_hex(8)  # an earlier process with the same number of process is another worker
        self._pull = Pull(store.names.stream, CONSUMER, options.concurrency, self._take)
        self._nats: Client | None = None
        self._requests: Requests
        self._pace: SharedPace
        self._held: dict[asyncio.Task[None], Msg] = {}  # by the task that works on it
        self._working: set[str] = set()  # keys that it has claimed, or is about to claim
        self._ended = 0
        self._ending = asyncio.Event()
        self._failure: ClientClosed | None = None

    async def prepare(self, jetstream: JetStreamContext) -> None:
        """Create what is missing on the servers, and subscribe. Called after each connect."""
        names = self._store.names
        await self._store.prepare(jetstream)
        config = api.ConsumerConfig(
            durable_name=CONSUMER,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=self._options.takeover,
            max_deliver=-1,
            max_ack_pending=MANY,
        )
        await add_consumer(jetstream, names.stream, config)
        client = client_of(jetstream)
        if client is not self._nats:
            await subscribe(client, names.workers, self._tell_state)
            await subscribe(client, f"{names.workers}.{self.boot}", self._tell_life)
            self._nats = client
        await self._pull.connected(client)

    async def run(self, connection: Connection, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set or it is cancelled."""
        self._requests = Requests(connection, self._store)
        self._pace = SharedPace(self._requests, self._options.rates)
        async with connection:
            keeping = [asyncio.create_task(each) for each in (self._pace.keep(), self._keep_pulling(), self._keep_alive())]
            stopping = [asyncio.create_task(each.wait()) for each in (stop, self._ending)]
            try:
                done, _ = await asyncio.wait((*keeping, *stopping), return_when=asyncio.FIRST_COMPLETED)
                await self._pull.stop()
                while self._held:
                    await asyncio.wait(self._held)
                for each in done:
                    each.result()
            finally:
                tasks: list[asyncio.Task[Any]] = [*self._held, *keeping, *stopping]
                for each in tasks:
                    each.cancel()
                for each in (*keeping, *stopping):  # the others have their last words
                    await ended(each)
                await asyncio.gather(*tasks, return_exceptions=True)
        if self._failure is not None:
            raise self._failure

    async def _keep_pulling(self) -> None:
        await self._pace.clock.known.wait()
        while True:
            with suppress(NatsError):
                await self._pull.run()
            await asyncio.sleep(0.1)

    async def _keep_alive(self) -> None:
        """Tell the server that what is held is worked on."""
        while True:
            await asyncio.sleep(self._options.takeover / 3)
            for message in tuple(self._held.values()):
                with suppress(NatsError):
                    await message.in_progress()

    async def _tell_state(self, message: Msg) -> None:
        state = {
            "worker": self.boot,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "concurrency": self._options.concurrency,
            "working": len(self._working),
            "held": len(self._held),
            "ended": self._ended,
        }
        with suppress(NatsError):
            await message.respond(json.dumps(state).encode())

    async def _tell_life(self, message: Msg) -> None:
        """Answer a process that found a claim of this worker."""
        with suppress(NatsError):
            await message.respond(b"yes" if message.data.decode() in self._working else b"no")

    # One message.

    def _take(self, message: Msg) -> None:
        task = asyncio.create_task(self._handle(message))
        self._held[task] = message
        task.add_done_callback(self._given_up)

    def _given_up(self, task: asyncio.Task[None]) -> None:
        del self._held[task]
        self._pull.free()

    async def _handle(self, message: Msg) -> None:
        try:
            await self._work_on(message)
        except Exception:  # it is delivered again
            logger.exception("an operation could not be handled")

    async def _work_on(self, message: Msg) -> None:
        try:
            request = _Request(**json.loads(message.data))
            operation = operation_from_json(request.operation)
        except (ValueError, TypeError) as error:  # InvalidRequest is a ValueError
            logger.warning("an operation is left to other workers: %s", error)
            await _give_back(message, LEFT)
            return
        if self._is_old(message) and (found := await self._requests.look(request.key)) is not None:
            await self._found(message, request, operation, found)
            return
        slot = await self._pace.take(operation)
        if self._pull.stopped:
            await _give_back(message)
            return
        if request.key in self._working:  # an earlier delivery of the same message
            return
        self._working.add(request.key)
        try:
            claimed, record = await self._requests.create(request.key, {"state": "claimed", "boot": self.boot})
            if claimed:
                await self._send(request, operation, record, slot, message.headers or {})
        finally:
            self._working.discard(request.key)
        if claimed:
            await _acknowledge(message)
        else:
            await self._found(message, request, operation, record)

    def _is_old(self, message: Msg) -> bool:
        """Whether there may be a record of the message already."""
        metadata = message.metadata
        return metadata.num_delivered > 1 or self._pace.clock.now() - metadata.timestamp.timestamp() > OLD

    async def _found(self, message: Msg, request: _Request, operation: Operation[Any], found: Record) -> None:
        """Leave a request alone that has a record; give its claim up if the worker with the claim is dead."""
        owner = found.fields.get("boot")
        for _ in range(ASKED):
            if found.is_over:
                await _acknowledge(message)
                return
            if request.key in self._working or await lives(self._nats, f"{self._store.names.workers}.{owner}", request.key):
                return
            await asyncio.sleep(self._options.takeover / ASKED)
            found = await self._requests.look(request.key) or found
        if not found.is_over:
            error = Unanswered(f"worker {owner} took it and was not heard of again")
            if await self._record(request, found, {"error": error_to_json(error)}):
                self._options.observers.notify(ClaimGivenUp(**self._about(request, operation)))
        await _acknowledge(message)

    async def _send(
        self, request: _Request, operation: Operation[Any], record: Record, slot: float, headers: Mapping[str, str]
    ) -> None:
        """Send an operation that is claimed, and record its outcome."""
        loop = asyncio.get_running_loop()
        began = loop.time()

        def leaves() -> None:
            nonlocal began
            began = loop.time()

        prepared = self._client.prepare(operation, leaves)
        outcome: dict[str, Any] | None = None
        try:
            if self._pace.is_late(slot):  # the servers were slow to answer
                await self._pace.take(operation)
            await self._pace.sent(operation)
            try:
                claimed = ClaimStarted(**self._about(request, operation), headers=headers)
                answer = await self._options.observers.around(claimed, prepared.send)
                outcome = {"elapsed": loop.time() - began, "answer": answer_to_json(operation, answer)}
            except RbimError as error:
                outcome = self._failed(error)
                if isinstance(error, Throttled) and error.retry_after:
                    await self._pace.throttled(operation, error.retry_after)
            except Exception as error:  # of a transport or a signer that violates its protocol
                logger.exception("an operation failed")
                outcome = _unclear(f"its worker failed: {type(error).__name__}", acted=prepared.may_have_acted)
            await self._record(request, record, outcome)
        except asyncio.CancelledError:
            outcome = outcome or _unclear("its worker was stopped", acted=prepared.may_have_acted)
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self._record(request, record, outcome)
            raise

    def _about(self, request: _Request, operation: Operation[Any]) -> dict[str, str]:
        return {"queue": self._options.name, "operation": operation.spec.name, "key": request.key}

    def _failed(self, error: RbimError) -> dict[str, Any]:
        """Return the outcome for an error of the client. A closed client ends this worker, but says nothing to the job."""
        if not isinstance(error, ClientClosed):
            return {"error": error_to_json(error)}
        self._failure = error
        self._ending.set()
        return _unclear(error.message, acted=error.outcome is Outcome.UNKNOWN)

    async def _record(self, request: _Request, claim: Record, outcome: dict[str, Any]) -> bool:
        """Record the outcome of a claimed request, unless another gave it up meanwhile, and tell the coordinator.

        Returns whether it was recorded.
        """
        fields = {"state": "over", "boot": claim.fields.get("boot"), **outcome}
        try:
            done, found = await self._requests.update(request.key, fields, claim.revision)
        except MaxPayloadError:
            limit = 0 if self._nats is None else self._nats.max_payload
            error = AnswerTooLarge(f"the answer is larger than the NATS servers take: {limit:,} bytes", limit=limit)
            fields = {"state": "over", "error": error_to_json(error)}
            done, found = await self._requests.update(request.key, fields, claim.revision)
        self._ended += 1
        if self._nats is not None and found.is_over:
            with suppress(NatsError):  # it looks for itself when it hears nothing
                await self._nats.publish(request.reply, json.dumps(found.fields).encode())
        return done


def _unclear(text: str, *, acted: bool) -> dict[str, Any]:
    return {"error": error_to_json(Unanswered(text) if acted else NotTaken(text))}


async def _acknowledge(message: Msg) -> None:
    with suppress(NatsError):  # it is delivered again, and found to be over
        await message.ack()


async def _give_back(message: Msg, seconds: float | None = None) -> None:
    with suppress(NatsError):
        await message.nak(delay=seconds)
