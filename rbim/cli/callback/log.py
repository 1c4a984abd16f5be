"""The log of a receiver on standard error, written by a thread because the reader of the stream may be slow or stuck.

One line for each record: for each delivery, from INFO on, and for everything else from WARNING on. It uses ``QueueHandler``
of the standard library: logging puts a line into a queue and never waits.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import TYPE_CHECKING

from rbim._support.text import printable
from rbim.cli.background_writer import Line, StreamListener
from rbim.observers import Observation

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["LineHandler", "receiver_log"]

MOST_QUEUED = 10_000  # lines waiting to be written; further ones are omitted and counted
LOGGERS = ("rbim", "uvicorn", "asyncio")
DELIVERIES = "rbim.callbacks"


class LineHandler(QueueHandler):
    """Queues records as lines, while fewer than 10,000 wait. Then lines are omitted, and their number is logged."""

    def __init__(self, lines: SimpleQueue[Line]) -> None:
        super().__init__(lines)
        self._lines = lines
        self._omitted = 0

    def log_text(self, text: str, level: int = logging.WARNING) -> None:
        """Log a text like a record of that level."""
        self.handle(logging.makeLogRecord({"msg": text, "levelno": level}))

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record if there is room, after the number of records that were omitted before it."""
        if self._lines.qsize() >= MOST_QUEUED:
            self._omitted += 1
            return
        self.flush()
        super().emit(record)

    def prepare(self, record: logging.LogRecord) -> Line:
        """Return a record as a line: an observation without its traceback, any other record with its exception."""
        args = record.args if isinstance(record.args, tuple) else ()
        observation = next((each for each in args if isinstance(each, Observation)), None)
        text = record.getMessage() if observation is None else f"{observation.source}{observation}"
        if observation is None and record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return Line(f"rbim: {printable(text)}\n")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: ARG002, N802  # logging's name
        """Count a record whose text cannot be made: the default would write to standard error, and might block."""
        self._omitted += 1

    def flush(self) -> None:
        """Queue the number of omitted lines. The caller holds the lock of the handler."""
        count, self._omitted = self._omitted, 0
        if count:
            self._lines.put(Line(f"rbim: {count} more {'line was' if count == 1 else 'lines were'} omitted\n"))


@contextmanager
def receiver_log() -> Generator[LineHandler]:
    """Write the log of a receiver and its server to standard error while the block runs."""
    lines = SimpleQueue[Line]()  # a finalizer may log into it; the lock of a Queue is not re-entrant
    handler = LineHandler(lines)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    deliveries = logging.getLogger(DELIVERIES)
    level = deliveries.level
    with StreamListener(sys.stderr, lines):
        if deliveries.getEffectiveLevel() > logging.INFO:
            deliveries.setLevel(logging.INFO)
        for logger in loggers:
            logger.addHandler(handler)
        try:
            yield handler
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
            deliveries.setLevel(level)
            handler.acquire()
            handler.flush()
            handler.release()
