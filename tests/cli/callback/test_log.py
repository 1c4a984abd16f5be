"""``rbim callback serve`` and standard error: a line for each delivery, and nothing waits for who reads them."""

import logging
import sys
from contextlib import contextmanager
from queue import SimpleQueue

from rbim.callbacks.observers import Accepted, DeadLettered, HandlingFailed, Observers, Quarantined, Refused, Spooled
from rbim.callbacks.signature import Reason
from rbim.cli.background_writer import StreamListener
from rbim.cli.callback.log import MOST_QUEUED, LineHandler, receiver_log

# -------------------------------------------------------------------------------------------------------- standard error


def record(message, *args, error=None):
    return logging.LogRecord("rbim", logging.WARNING, "", 0, message, args, (type(error), error, None) if error else None)


@contextmanager
def log():
    lines = SimpleQueue()
    with StreamListener(sys.stderr, lines):
        yield LineHandler(lines)


def test_facts_are_said_in_words(capsys):
    facts = (
        Refused(reason=Reason.STALE, detail="too old"),
        Quarantined(key="k", problem="p\nq"),
        Spooled(key="k", why="slow", kept=True),
        Spooled(key="k", why="slow", kept=False),
        HandlingFailed(key="k", attempt=2, error="E: e", pause=3.0),
        DeadLettered(key="k", attempt=9, error="E: e"),
    )
    with log() as handler:
        for fact in facts:
            handler.handle(record("%s", fact))
        handler.handle(record("another %s", "thing", error=ValueError("wrong")))
    assert capsys.readouterr().err.splitlines() == [
        "rbim: refused: stale: too old",
        "rbim: in quarantine: k: p q",
        "rbim: spooled: k: slow",
        "rbim: answered 503: k: slow",
        "rbim: failed: k: attempt 2: E: e; again in 3 s",
        "rbim: given up: k: attempt 9: E: e",
        "rbim: another thing: ValueError: wrong",
    ]


def test_each_delivery_has_its_line(capsys):
    """Whatever the level of the application's log is."""
    logger = logging.getLogger("rbim.callbacks")
    with receiver_log():
        observers = Observers()
        observers.notify(Accepted, key="k", new=True, elapsed=0.0123)
        observers.notify(Accepted, key="k", new=False, elapsed=0.0004)
    assert capsys.readouterr().err == "rbim: accepted: k: 12.3 ms\nrbim: accepted again: k: 0.4 ms\n"
    assert not logger.isEnabledFor(logging.INFO)


def test_lines_that_nobody_reads_are_counted():
    lines = SimpleQueue()
    handler = LineHandler(lines)
    for _ in range(MOST_QUEUED + 3):
        handler.log_text("line")
    assert lines.qsize() == MOST_QUEUED
    for _ in range(2):
        lines.get()
    handler.log_text("again")
    texts = [lines.get().text for _ in range(lines.qsize())]
    assert texts[-2:] == ["rbim: 3 more lines were omitted\n", "rbim: again\n"]
