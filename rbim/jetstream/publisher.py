"""Publishes messages into streams and waits for their acknowledgements: one subscription and one timer serve all of them."""

# Theory of operation: one message that was published.
#
#   PENDING       It was given to nats-py, with a subject of its own for the answer, and a place in ``_pending``.
#   ANSWERED      A server has answered: an acknowledgement, or an error.
#   UNANSWERED    It had no answer for ``timeout`` seconds, or the client was closed. It may be stored or not.
#   LEFT          Its caller was cancelled. It may be stored or not.
#
# PENDING -> ANSWERED     a message came on its subject for the answer
# PENDING -> UNANSWERED   the timer, or close()
# PENDING -> LEFT         the caller is cancelled
#
# What must always hold:
# - Only an answer of a server is an acknowledgement. Each answer is for one message: a subject is never used twice, and
#   another client has other ones. So an answer that comes late, or over a later connection, is for its own message, or for
#   none.
# - Each message waits ``timeout`` seconds and no longer, whatever becomes of the connection. All wait equally long, so the
#   first in ``_pending`` is the first that is due, and the timer is set for that one only.
# - Whatever ends a message takes it out of ``_pending``.
#
# nats-py's own ``publish`` has a timer for each message, and costs twice as much. It also gives out all answers of one read
# before anything else runs: then all callers publish again at once, and servers and callers work in turns. Here callers run
# in between (``ANSWERS``).

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from rbim._support.json import loads
from rbim.jetstream.nats_py import (
    APIError,
    KeyWrongLastSequenceError,
    NatsError,
    NoStreamResponseError,
    api_error,
    subscribe,
)

if TYPE_CHECKING:
    from rbim.jetstream.nats_py import Client, Msg

__all__ = ["Acknowledgement", "Publisher"]

ANSWERS = 64
"""Answers after which the callers that have got one run."""

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
WRONG_LAST = {10071, 10164}  # error codes of the servers: the subject has another last message
NO_RESPONDERS = "503"


class Acknowledgement(NamedTuple):
    """The answer of a stream that has stored a message: its place there. A duplicate has the place of the first one."""

    sequence: int
    duplicate: bool


class Publisher:
    """Publishes with one client, in the event loop that started it. ``timeout``: seconds for which an answer is awaited."""

    def __init__(self, client: Client, *, timeout: float) -> None:
        self.client = client
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._inbox = f"{client.new_inbox()}."
        self._count = 0
        self._answers = 0
        self._pending: dict[str, tuple[asyncio.Future[Msg | Exception], float]] = {}  # by the subject for the answer
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    async def start(self) -> None:
        """Subscribe to the answers. Raises NatsError."""
        await subscribe(self.client, f"{self._inbox}*", self._on_answer)

    @property
    def pending(self) -> int:
        """The number of messages that wait for their answer."""
        return len(self._pending)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> Acknowledgement:
        """Publish a message and return its acknowledgement.

        Raises APIError for an error of the stream, NoStreamResponseError if no stream has the subject, TimeoutError if there
        is no answer, ConnectionError if the client is closed meanwhile, MaxPayloadError, other NatsErrors. After the errors
        of time and connection, and if it is cancelled, the message may be stored or not.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a connection to NATS servers is for the event loop that entered it")
        if self._closed:
            raise ConnectionError("the connection is closed")
        self._count += 1
        reply = f"{self._inbox}{self._count}"
        answered: asyncio.Future[Msg | Exception] = self._loop.create_future()
        due = self._loop.time() + self._timeout
        self._pending[reply] = answered, due
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._expire)
        try:
            await self.client.publish(subject, body, reply, headers)
            answer = await answered
        finally:
            self._pending.pop(reply, None)
        if isinstance(answer, Exception):
            raise answer
        return _acknowledgement(answer)

    async def put(self, subject: str, value: bytes, last: int) -> int:
        """Store the value of a key if the last message of its subject is number ``last`` (0: none); return its number.

        Raises KeyWrongLastSequenceError if it is another one, and what :meth:`publish` raises.
        """
        try:
            return (await self.publish(subject, value, {EXPECTED_LAST: str(last)})).sequence
        except APIError as error:
            if error.err_code in WRONG_LAST:
                raise KeyWrongLastSequenceError(description=error.description) from error
            raise

    def close(self) -> None:
        """End all that wait: no answer comes any more."""
        self._closed = True
        for answered, _ in self._pending.values():
            _end(answered, ConnectionError("the connection was closed before the answer"))

    async def _on_answer(self, message: Msg) -> None:
        found = self._pending.pop(message.subject, None)
        if found is not None and not found[0].done():
            found[0].set_result(message)
        self._answers += 1
        if self._answers % ANSWERS == 0:
            await asyncio.sleep(0)

    def _expire(self) -> None:
        """End those that are due, and set the timer for the next one."""
        self._timer, now = None, self._loop.time()
        for answered, due in self._pending.values():
            if due > now:
                self._timer = self._loop.call_at(due, self._expire)
                return
            _end(answered, TimeoutError(f"no answer for {self._timeout:g} s"))


def _end(answered: asyncio.Future[Msg | Exception], error: Exception) -> None:
    if not answered.done():
        answered.set_result(error)  # as a result: asyncio complains of an exception that no caller sees, if it is cancelled


def _acknowledgement(answer: Msg) -> Acknowledgement:
    if answer.headers is not None and answer.headers.get("Status") == NO_RESPONDERS:
        raise NoStreamResponseError
    try:
        fields = loads(answer.data)
        failure = fields.get("error")
        if failure is None:
            return Acknowledgement(int(fields["seq"]), bool(fields.get("duplicate")))
        raise api_error(failure)
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        raise NatsError("an answer that no stream of NATS sends: does another program answer on this subject?") from wrong
