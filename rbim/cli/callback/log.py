"""What a receiver has to say, on standard error: one line each, and so few a second that a flood fills no disk."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rbim.callbacks.observers import Buried, HandlingFailed, OldToken, Quarantined, Refused, Spooled
from rbim.cli.callback.log_callback_scribe import Scribe
from rbim.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Trickle", "trickling"]

RATE = 10  # lines a second
WAITING = 50  # lines that wait for who reads them
LOGGERS = ("rbim", "uvicorn", "asyncio")

WORDS: dict[type[Any], Callable[[Any], str]] = {
    Refused: lambda fact: f"refused: {fact.reason}: {fact.detail}",
    OldToken: lambda fact: f"signed with an older token: {fact.key}",
    Quarantined: lambda fact: f"in quarantine: {fact.key}: {fact.problem}",
    Spooled: lambda fact: f"{'spooled' if fact.kept else 'answered 503'}: {fact.key}: {fact.why}",
    HandlingFailed: lambda fact: f"failed: {fact.key}: attempt {fact.attempt}: {fact.error}; again in {fact.pause:.0f} s",
    Buried: lambda fact: f"given up: {fact.key}: attempt {fact.attempt}: {fact.error}",
}


class Trickle(logging.Handler):
    """Has written what is logged, from warnings on, and what it is told to say, and never waits for whoever reads it.

    Counts what is past the rate, or past what may wait for the reader, and says that.
    """

    def __init__(self, scribe: Scribe, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._scribe = scribe
        self._monotonic = monotonic
        self._room = float(RATE)
        self._at = monotonic()
        self._left_out = 0
        self._saying = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write what is logged: a fact in words, anything else as it stands."""
        fact = record.args[0] if isinstance(record.args, tuple) and record.args else None
        words = WORDS.get(type(fact))
        text = record.getMessage() if words is None else words(fact)
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        self.say(text)

    def say(self, text: str) -> None:
        """Write one line, if there is room for one."""
        with self._saying:
            now = self._monotonic()
            self._room = min(float(RATE), self._room + (now - self._at) * RATE)
            self._at = now
            if self._room < 1:
                self._left_out += 1
                return
            self._room -= 1
            self._tell(text)

    def tell(self, text: str) -> None:
        """Write one line, whatever the rate."""
        with self._saying:
            self._tell(text)

    def settle(self) -> None:
        """Say how many lines were left out."""
        with self._saying:
            self._settle()

    def _tell(self, text: str) -> None:
        self._settle()
        if not self._write(text):
            self._left_out += 1

    def _settle(self) -> None:
        count = self._left_out
        if count and self._write(f"{count} more {'line was' if count == 1 else 'lines were'} left out"):
            self._left_out = 0

    def _write(self, text: str) -> bool:
        if self._scribe.waiting >= WAITING:
            return False
        self._scribe.write(f"rbim: {printable(text)}\n")  # whether it can be written is no matter to who receives
        return True


@contextmanager
def trickling() -> Generator[Trickle]:
    """Have everything that a receiver and its server log written that way while the block runs."""
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe)
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for logger in loggers:
            logger.addHandler(trickle)
        try:
            yield trickle
        finally:
            for logger in loggers:
                logger.removeHandler(trickle)
            trickle.settle()
