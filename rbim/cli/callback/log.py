"""The log of a receiver on standard error, and the thread that writes to a standard stream whose reader may not read.

One line for each record, and so few a second that a flood fills no disk. It is made of the standard library's
``QueueHandler`` and ``QueueListener``: who logs puts a line into a queue and never waits.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from concurrent.futures import Future
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TextIO

from attrs import field, frozen

from rbim.callbacks.observers import DeadLettered, HandlingFailed, OldToken, Quarantined, Refused, Spooled
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

__all__ = ["Line", "RateLimitedHandler", "StreamListener", "receiver_log"]

RATE = 10  # lines a second
WAITING = 50  # lines that wait for who reads them
LAST_WORDS = 0.25  # seconds that what is still to be written has at the end
LOGGERS = ("rbim", "uvicorn", "asyncio")

WORDS: dict[type[Any], Callable[[Any], str]] = {
    Refused: lambda fact: f"refused: {fact.reason}: {fact.detail}",
    OldToken: lambda fact: f"signed with an older token: {fact.key}",
    Quarantined: lambda fact: f"in quarantine: {fact.key}: {fact.problem}",
    Spooled: lambda fact: f"{'spooled' if fact.kept else 'answered 503'}: {fact.key}: {fact.why}",
    HandlingFailed: lambda fact: f"failed: {fact.key}: attempt {fact.attempt}: {fact.error}; again in {fact.pause:.0f} s",
    DeadLettered: lambda fact: f"given up: {fact.key}: attempt {fact.attempt}: {fact.error}",
}


@frozen(eq=False)
class Line:
    """A text to be written, and the future that tells when it was. Cancelled before it is begun, it is not written."""

    text: str
    written: Future[None] = field(factory=Future[None])


class RateLimitedHandler(QueueHandler):
    """Queues what is logged, from warnings on, as lines: at most 10 a second, and while fewer than 50 wait.

    Counts what is left out, and says that. What is critical is queued whatever the rate.
    """

    def __init__(self, lines: SimpleQueue[Line], monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lines)
        self.setLevel(logging.WARNING)
        self._lines = lines
        self._monotonic = monotonic
        self._room = float(RATE)
        self._at = monotonic()
        self._left_out = 0

    def say(self, text: str, level: int = logging.WARNING) -> None:
        """Handle a text like a record of that level."""
        self.handle(logging.makeLogRecord({"msg": text, "levelno": level}))

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, where there is room, after the number of those that were left out before it."""
        now, limited = self._monotonic(), record.levelno < logging.CRITICAL
        self._room = min(float(RATE), self._room + (now - self._at) * RATE)
        self._at = now
        if (limited and self._room < 1) or self._lines.qsize() + bool(self._left_out) >= WAITING:
            self._left_out += 1
            return
        self._room -= limited
        self.flush()
        super().emit(record)

    def prepare(self, record: logging.LogRecord) -> Line:
        """Return a record as a line: a fact in words, anything else as it stands."""
        fact = record.args[0] if isinstance(record.args, tuple) and record.args else None
        words = WORDS.get(type(fact))
        text = record.getMessage() if words is None else words(fact)
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return Line(f"rbim: {printable(text)}\n")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # logging's name
        """Count a record whose text cannot be made: what logging does is to write to standard error, and wait."""
        self._left_out += 1

    def flush(self) -> None:
        """Queue how many were left out, where one more line may wait. Who calls it has the handler's lock."""
        count = self._left_out
        if count and self._lines.qsize() < WAITING:
            self._left_out = 0
            self._lines.put(Line(f"rbim: {count} more {'line was' if count == 1 else 'lines were'} left out\n"))


class StreamListener(QueueListener):
    """Writes queued lines to a standard stream, from a thread of its own, while the ``with`` block lasts.

    On leaving, what is left has 0.25 seconds. A thread whose reader does not read by then ends with the process.
    """

    def __init__(self, stream: TextIO, lines: SimpleQueue[Line]) -> None:
        super().__init__(lines)
        self._stream = stream

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        stopping = Thread(target=self.stop, daemon=True)  # it joins the other thread, however long that takes
        stopping.start()
        stopping.join(LAST_WORDS)

    def handle(self, record: Any) -> None:  # a Line; in a handler's stead, whose lock logging takes when Python exits
        """Write one line."""
        if not record.written.set_running_or_notify_cancel():
            return
        try:
            _put(self._stream, record.text)
        except BaseException as error:
            record.written.set_exception(error)
        else:
            record.written.set_result(None)


def _put(stream: TextIO, text: str) -> None:
    """Write a text, past the stream's buffer where there is a file beneath it.

    Whoever waits in a write of the stream has its lock, for which the interpreter would wait at its end.
    """
    try:
        number = None if os.name == "nt" and stream.isatty() else stream.fileno()  # Windows' consoles take no bytes
    except (AttributeError, OSError):
        number = None
    if number is None:
        stream.write(text)
        stream.flush()
        return
    rest = text.encode(stream.encoding, "backslashreplace")
    while rest:
        rest = rest[os.write(number, rest) :]


@contextmanager
def receiver_log() -> Generator[RateLimitedHandler]:
    """Write what a receiver and its server log to standard error while the block runs."""
    lines = SimpleQueue[Line]()  # the only queue into which a finalizer may log: a Queue's lock is not re-entrant
    handler = RateLimitedHandler(lines)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    with StreamListener(sys.stderr, lines):
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield handler
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
            handler.acquire()
            handler.flush()
            handler.release()
