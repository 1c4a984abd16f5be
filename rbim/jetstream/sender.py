"""``RemoteSender``: hands operations to workers on other machines. It needs no credentials of the platform."""

# Theory of operation: one request in the hands of the coordinator, which is the process with the RemoteSender.
#
#   PUBLISHING   The message is published, again and again until a server has acknowledged it. A server that got it already
#                knows its id; even if it does not, the record allows one claim only.
#   WAITING      Its worker tells the outcome. If nothing is heard, its record is looked up, from time to time.
#   OVER         The outcome is known.
#
# PUBLISHING -> WAITING   a server has acknowledged it
# WAITING -> OVER         the outcome was told, or found
# WAITING -> OVER         no worker has claimed it, and none has ended anything, for ``patience`` seconds: it is withdrawn,
#                         by making its record, and is NotTaken. If that fails, a worker was faster, and it goes on waiting
# WAITING -> OVER         it was claimed, nothing came of it for ANSWER_PATIENCE seconds, and its worker does not answer that
#                         it works on it, several times: Unanswered
#
# What must always hold:
# - While no server answers, nothing is concluded: the seconds above are seconds in which the connection was ready, together.
# - A recalled request was published by another process, or not at all. It is WAITING, for RECALL_PATIENCE seconds.
# - What was concluded is recorded, so that all who ask later get the same outcome.

from __future__ import annotations

import asyncio
import json
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, frozen

from rbim.errors import ClientClosed, InvalidRequest, NotTaken, Outcome, RbimError, Unanswered
from rbim.jetstream.connection import Connection
from rbim.jetstream.nats_py import MaxPayloadError, NatsError, client_of, subscribe
from rbim.jetstream.observers import ClaimGivenUp, Observers, RequestStarted, RequestWithdrawn, carried
from rbim.jetstream.requests import CONSUMER, MESSAGES_FOR, RECORDS_FOR, Record, Requests, Store, checked_key, lives
from rbim.jetstream.settings import NatsSettings, addresses, checked_name
from rbim.operations.carrier import Carried
from rbim.wire.portable import answer_from_json, error_from_json, error_to_json, operation_to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Self

    from rbim.jetstream.nats_py import Client, JetStreamContext, Msg
    from rbim.jetstream.observers import Observation
    from rbim.operations.base import Operation

__all__ = ["QueueState", "RemoteSender", "WorkerState"]

R = TypeVar("R")

PATIENCE = 30.0
ANSWER_PATIENCE = 60.0
ASKED = 3  # times in a row that a worker does not answer: it may have to connect again, too
RECALL_PATIENCE = 5.0
FIRST_LOOK, LONGEST_LOOK = 2.0, 8.0  # seconds without a word before a record is looked up; twice as long each time
RECALL_LOOK = 0.5
HEARING = 1.0  # seconds in which workers answer


@frozen(kw_only=True)
class WorkerState:
    """The state of one worker: operations it works on (``working``), has in hand (``held``, with those), and has ended."""

    worker: str
    host: str
    process: int
    concurrency: int
    working: int
    held: int
    ended: int


@frozen(kw_only=True)
class QueueState:
    """The state of a queue: its workers, operations that wait for one (``waiting``), and that are in hand (``taken``)."""

    workers: tuple[WorkerState, ...]
    waiting: int
    taken: int


class RemoteSender:
    """A sender, and a :class:`~rbim.Carrier`, whose operations are run by workers: ``rbim worker``, or :func:`serve`.

    ::

        async with RemoteSender("nats://h1,h2,h3", name="bulk") as sender:
            report = await InviteJob(sender, journal="customers.journal", rates=["50/s"]).run(rows)

    ``servers``: addresses such as ``nats://h1:4222``. ``name`` of the queue. ``patience``: seconds in which no worker takes
    or ends anything, after which an operation is withdrawn and NotTaken is raised (default: 30). ``settings`` and
    ``replicas``: see :func:`serve`. ``observers``: functions that get each observation, from
    :class:`RequestStarted` to :class:`RequestEnded`, such as ``OtelObserver().on_operation``.

    Each operation is sent by at most one worker, at most once, whichever process or machine dies. Entering does not need the
    network. Runs on asyncio. Raises InvalidRequest.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        servers: str | Iterable[str],
        *,
        name: str = "bulk",
        patience: float = PATIENCE,
        settings: NatsSettings | None = None,
        replicas: int | None = None,
        observers: Iterable[Callable[[Observation], object]] = (),
    ) -> None:
        self._servers = addresses(servers)
        self._name = checked_name(name)
        if not patience > 0:
            raise InvalidRequest(f"patience: a number of seconds above 0, not {patience}", field="patience")
        self._patience = patience
        self._observers = Observers(observers)
        self._store = Store(name, servers=self._servers, replicas=replicas)
        self._id = token_hex(8)
        self._connection = Connection(
            self._servers, settings or NatsSettings(), name=f"rbim job {self._id}", prepare=self._prepare
        )
        self._requests = Requests(self._connection, self._store)
        self._inbox = f"_INBOX.{token_hex(11)}"
        self._client: Client | None = None
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._sent = 0
        self._sign_of_life = 0.0
        self._entered = False

    async def __aenter__(self) -> Self:
        await self._connection.__aenter__()
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._entered = False
        await self._connection.__aexit__(kind, error, trace)

    @property
    def address(self) -> str:
        """The addresses and the name, without credentials: ``nats://h1:4222,h2:4222/bulk``."""
        scheme = "tls" if any(each.startswith("tls://") for each in self._servers) else "nats"
        return f"{scheme}://{','.join(each.partition('://')[2] for each in self._servers)}/{self._name}"

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._name

    @property
    def trouble(self) -> str:
        """Why no server can be used now; empty if one can."""
        return "" if self._connection.ready else f"{', '.join(self._servers)}: {self._connection.failure}"

    @property
    def keeps(self) -> float:
        """Seconds for which the outcome of a request is kept: two days and a half, with a margin for clocks."""
        return RECORDS_FOR * 5 / 6

    async def _prepare(self, jetstream: JetStreamContext) -> None:
        await self._store.prepare(jetstream)
        client = client_of(jetstream)
        if client is not self._client:
            await subscribe(client, f"{self._inbox}.>", self._on_outcome)
            self._client = client

    async def _on_outcome(self, message: Msg) -> None:
        self._sign_of_life = self._connection.ready_time
        future = self._waiting.get(message.subject.removeprefix(f"{self._inbox}."))
        if future is not None and not future.done():
            future.set_result(json.loads(message.data))

    async def send(self, operation: Operation[R], /) -> R:
        """Run one operation and return its answer. Raises what :meth:`carry` raises."""
        self._sent += 1
        return (await self.carry(operation, key=f"{self._id}.{self._sent}")).answer

    async def carry(self, operation: Operation[R], /, *, key: str) -> Carried[R]:
        """Run one operation, once for its key, and return its answer with the seconds that the platform took.

        ``key``: two words with a dot between, used for this request only. Raises what the worker's client raised, with its
        outcome and attempts; NotTaken if no worker took it and none will; Unanswered if a worker took it and was not heard
        of again. While no server answers, it waits.
        """
        document = {"key": checked_key(key), "reply": f"{self._inbox}.{key}", "operation": operation_to_json(operation)}
        message = json.dumps(document, separators=(",", ":")).encode()
        started = RequestStarted(**self._about(operation, key), headers={})
        return await self._observers.around(
            started, lambda: self._carried(key, operation, message, carried(started.headers))
        )

    async def recall(self, operation: Operation[R], /, *, key: str) -> Carried[R]:
        """Return the answer of an operation that another process may have begun with this key. It is not sent for this call.

        Raises what :meth:`carry` raises.
        """
        return await self._carried(checked_key(key), operation, None, {})

    async def state(self) -> QueueState:
        """Return the workers that answer within a second, and how many operations wait or are in hand.

        Raises ConnectionError if no server answers.
        """
        jetstream = self._connection.require()
        workers: list[WorkerState] = []
        inbox = f"_INBOX.{token_hex(11)}"

        async def heard(message: Msg) -> None:
            if message.data:
                workers.append(WorkerState(**json.loads(message.data)))

        client = client_of(jetstream)
        subscription = await subscribe(client, inbox, heard)
        await client.publish(self._store.names.workers, b"", reply=inbox)
        try:
            await asyncio.sleep(HEARING)
            found = await jetstream.consumer_info(self._store.names.stream, CONSUMER)
        except NatsError:  # no worker has ever been there
            return QueueState(workers=tuple(workers), waiting=0, taken=0)
        finally:
            await subscription.unsubscribe()
        return QueueState(
            workers=tuple(sorted(workers, key=lambda each: (each.host, each.process))),
            waiting=found.num_pending or 0,
            taken=found.num_ack_pending or 0,
        )

    async def _carried(
        self, key: str, operation: Operation[R], message: bytes | None, headers: dict[str, str]
    ) -> Carried[R]:
        if not self._entered:
            raise ClientClosed("the sender is not open: use it with `async with`")
        if key in self._waiting:
            raise InvalidRequest(f"key: {key} is in use: each request needs a key of its own", field="key")
        future = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            if message is not None:
                await self._publish(key, message, operation, headers)
            fields = await self._settled(key, operation, future, recalled=message is None)
        except RuntimeError as error:
            if self._entered:
                raise
            raise ClientClosed("the sender was closed during this call", outcome=Outcome.UNKNOWN) from error
        finally:
            del self._waiting[key]
        return _result(fields, operation)

    def _about(self, operation: Operation[Any], key: str) -> dict[str, str]:
        return {"queue": self._name, "operation": operation.spec.name, "key": key}

    async def _publish(self, key: str, message: bytes, operation: Operation[Any], headers: dict[str, str]) -> None:
        headers = {**headers, "Nats-Msg-Id": key}

        async def publish() -> None:
            publisher = await self._connection.publisher()
            await publisher.publish(self._store.names.subject, message, headers)

        try:
            await self._requests.persist(publish)
        except MaxPayloadError:
            raise InvalidRequest(
                f"{operation.spec.name}: {len(message):,} bytes are more than the NATS servers take (max_payload)"
            ) from None

    async def _settled(
        self, key: str, operation: Operation[Any], future: asyncio.Future[dict[str, Any]], *, recalled: bool
    ) -> dict[str, Any]:
        """Return the record of the outcome."""
        connection = self._connection
        began = connection.ready_time
        waiting = _Waiting(0.0 if recalled else FIRST_LOOK)  # the outcome is told to the process that published it
        while True:
            await asyncio.wait((future,), timeout=waiting.pause)
            if future.done():
                return future.result()
            waiting.pause = RECALL_LOOK if recalled else min(2 * waiting.pause, LONGEST_LOOK)
            found = await self._requests.look(key)
            now = connection.ready_time
            if found is not None and found.is_over:
                return found.fields
            if found is not None:
                self._sign_of_life = now
                if await self._is_silent(key, found, waiting):
                    return await self._given_up(key, operation, found)
            else:
                since = began if recalled else max(began, self._sign_of_life)
                untaken = now - since >= (RECALL_PATIENCE if recalled else self._patience)
                if untaken or now - began >= MESSAGES_FOR:
                    error = NotTaken("no worker took it")
                    withdrawn, record = await self._requests.create(key, _over(error))
                    if withdrawn:
                        self._observers.notify(RequestWithdrawn(**self._about(operation, key)))
                    if withdrawn or record.is_over:
                        return record.fields

    async def _is_silent(self, key: str, claim: Record, waiting: _Waiting) -> bool:
        """Return whether nothing came of a claim for long, and its worker was asked several times and did not answer."""
        now = self._connection.ready_time
        waiting.since = now if waiting.since is None else waiting.since
        if now - waiting.since < ANSWER_PATIENCE:
            return False
        if await lives(self._client, f"{self._store.names.workers}.{claim.fields.get('boot')}", key):
            waiting.since, waiting.asked = self._connection.ready_time, 0
        else:
            waiting.asked, waiting.pause = waiting.asked + 1, FIRST_LOOK
        return waiting.asked == ASKED

    async def _given_up(self, key: str, operation: Operation[Any], claim: Record) -> dict[str, Any]:
        """Record that nothing was heard of a claimed request; return what is recorded then."""
        error = Unanswered(f"worker {claim.fields.get('boot')} took it, and no answer came")
        done, found = await self._requests.update(key, _over(error), claim.revision)
        if done:
            self._observers.notify(ClaimGivenUp(**self._about(operation, key)))
        return found.fields if found.is_over else _over(error)


@define
class _Waiting:
    """How a request waits: the seconds until the next look, since when it is claimed, how often its worker was asked."""

    pause: float
    since: float | None = None
    asked: int = 0


def _over(error: RbimError) -> dict[str, Any]:
    return {"state": "over", "error": error_to_json(error)}


def _result(fields: dict[str, Any], operation: Operation[R]) -> Carried[R]:
    """Return the answer in a record, or raise the error in it."""
    try:
        if "answer" in fields:
            return Carried(answer=answer_from_json(fields["answer"]), elapsed=float(fields["elapsed"]))
        error = error_from_json(fields["error"])
    except (InvalidRequest, KeyError, TypeError, ValueError) as unreadable:
        error = Unanswered(f"the outcome that a worker recorded cannot be read: {unreadable}")
        error.operation = operation.spec.name
        raise error from unreadable
    error.operation = error.operation or operation.spec.name
    raise error
