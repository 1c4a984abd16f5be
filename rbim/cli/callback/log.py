"""The log of a receiver on standard error, written by a thread because the reader of the stream may be slow or stuck.

One line for each record, at a limited rate so that a flood cannot fill a disk. It uses ``QueueHandler`` of the standard
library: logging puts a line into a queue and never waits.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import contextmanager
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from rbim.callbacks.observers import DeadLettered, HandlingFailed, OldToken, Quarantined, Refused, Spooled
from rbim.cli.background_writer import Line, StreamListener
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["RateLimitedHandler", "receiver_log"]

LINES_PER_SECOND = 10  # lines a second
MAX_QUEUED = 50  # lines waiting to be written
LOGGERS = ("rbim", "uvicorn", "asyncio")

MESSAGES: dict[type[Any], Callable[[Any], str]] = {
    Refused: lambda observation: f"refused: {observation.reason}: {observation.detail}",
    OldToken: lambda observation: f"signed with an older token: {observation.key}",
    Quarantined: lambda observation: f"in quarantine: {observation.key}: {observation.problem}",
    Spooled: lambda observation: (
        f"{'spooled' if observation.kept else 'answered 503'}: {observation.key}: {observation.why}"
    ),
    HandlingFailed: lambda observation: (
        f"failed: {observation.key}: attempt {observation.attempt}: {observation.error}; again in {observation.pause:.0f} s"
    ),
    DeadLettered: lambda observation: f"given up: {observation.key}: attempt {observation.attempt}: {observation.error}",
}


class RateLimitedHandler(QueueHandler):
    """Queues records, from WARNING on, as lines: at most 10 a second, and only while fewer than 50 wait.

    Omitted lines are counted, and their number is logged. CRITICAL records ignore the rate.
    """

    def __init__(self, lines: SimpleQueue[Line], monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lines)
        self.setLevel(logging.WARNING)
        self._lines = lines
        self._monotonic = monotonic
        self._tokens = float(LINES_PER_SECOND)
        self._updated = monotonic()
        self._omitted = 0

    def log_text(self, text: str, level: int = logging.WARNING) -> None:
        """Log a text like a record of that level."""
        self.handle(logging.makeLogRecord({"msg": text, "levelno": level}))

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record if the limits allow it, after the number of records omitted before it."""
        now, limited = self._monotonic(), record.levelno < logging.CRITICAL
        self._tokens = min(float(LINES_PER_SECOND), self._tokens + (now - self._updated) * LINES_PER_SECOND)
        self._updated = now
        if (limited and self._tokens < 1) or self._lines.qsize() + bool(self._omitted) >= MAX_QUEUED:
            self._omitted += 1
            return
        self._tokens -= limited
        self.flush()
        super().emit(record)

    def prepare(self, record: logging.LogRecord) -> Line:
        """Return a record as a line: an observation as text, any other record unchanged."""
        args = record.args if isinstance(record.args, tuple) else ()
        observation = next((each for each in args if type(each) in MESSAGES), None)
        text = record.getMessage() if observation is None else MESSAGES[type(observation)](observation)
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return Line(f"rbim: {printable(text)}\n")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # logging's name
        """Count a record whose text cannot be made: the default would write to standard error, and might block."""
        self._omitted += 1

    def flush(self) -> None:
        """Queue the number of omitted lines if the queue has room. The caller holds the lock of the handler."""
        count = self._omitted
        if count and self._lines.qsize() < MAX_QUEUED:
            self._omitted = 0
            self._lines.put(Line(f"rbim: {count} more {'line was' if count == 1 else 'lines were'} omitted\n"))


@contextmanager
def receiver_log() -> Generator[RateLimitedHandler]:
    """Write the log of a receiver and its server to standard error while the block runs."""
    lines = SimpleQueue[Line]()  # a finalizer may log into it; the lock of a Queue is not re-entrant
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
