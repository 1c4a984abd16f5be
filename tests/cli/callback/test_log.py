"""``rbim callback serve`` and standard error: few lines, and nothing waits for who reads them."""

import itertools
import logging
import os
import signal
import sys
from concurrent.futures import CancelledError
from contextlib import contextmanager
from queue import SimpleQueue

import pytest

from helpers.callback_process import PATIENCE, counts, event, serving
from rbim.callbacks.observers import DeadLettered, HandlingFailed, Quarantined, Refused, Spooled
from rbim.callbacks.signature import Reason
from rbim.cli.background_writer import Line, StreamListener
from rbim.cli.callback.log import MAX_QUEUED, RateLimitedHandler

# -------------------------------------------------------------------------------------------------------- standard error


def record(message, *args, error=None):
    return logging.LogRecord("rbim", logging.WARNING, "", 0, message, args, (type(error), error, None) if error else None)


@contextmanager
def log(monotonic):
    lines = SimpleQueue()
    with StreamListener(sys.stderr, lines):
        yield RateLimitedHandler(lines, monotonic)


def test_facts_are_said_in_words(capsys):
    facts = (
        Refused(reason=Reason.STALE, detail="too old"),
        Quarantined(key="k", problem="p\nq"),
        Spooled(key="k", why="slow", kept=True),
        Spooled(key="k", why="slow", kept=False),
        HandlingFailed(key="k", attempt=2, error="E: e", pause=3.0),
        DeadLettered(key="k", attempt=9, error="E: e"),
    )
    with log(lambda: 0.0) as handler:
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


def test_ten_lines_a_second(capsys):
    now = [0.0]
    with log(lambda: now[0]) as handler:
        for second in range(3):
            now[0] = second
            for _ in range(12):
                handler.log_text("line")
        handler.flush()
    lines = [line.removeprefix("rbim: ") for line in capsys.readouterr().err.splitlines()]
    told = ["line"] * 10, ["2 more lines were omitted"]
    assert lines == [*told[0], *told[1], *told[0], *told[1], *told[0], *told[1]]
    with log(lambda: now[0]) as handler:
        for _ in range(11):
            handler.log_text("line")
        handler.flush()
        handler.flush()
        handler.log_text("said whatever the rate", logging.CRITICAL)
    assert capsys.readouterr().err.splitlines()[10:] == ["rbim: 1 more line was omitted", "rbim: said whatever the rate"]


def test_lines_that_nobody_reads_are_counted():
    lines, now = SimpleQueue(), itertools.count()
    handler = RateLimitedHandler(lines, lambda: float(next(now)))
    for number in range(MAX_QUEUED + 3):
        handler.log_text(f"{number}")
    handler.flush()
    assert [lines.get().text for _ in range(2)] == ["rbim: 0\n", "rbim: 1\n"]
    assert lines.qsize() == MAX_QUEUED - 2
    handler.log_text("another")
    handler.log_text("more", logging.CRITICAL)
    handler.flush()
    written = [lines.get().text for _ in range(MAX_QUEUED)]
    assert written[-3:] == [f"rbim: {MAX_QUEUED - 1}\n", "rbim: 3 more lines were omitted\n", "rbim: another\n"]
    handler.flush()
    assert lines.get().text == "rbim: 1 more line was omitted\n"
    assert lines.empty()


def test_a_record_without_a_text_is_counted(capsys):
    """Logging would write a traceback to standard error, and wait for whoever reads it."""
    with log(lambda: 0.0) as handler:
        handler.handle(record("%d", "no number"))
        handler.log_text("another")
    assert capsys.readouterr().err.splitlines() == ["rbim: 1 more line was omitted", "rbim: another"]


def test_a_listener_waits_for_nobody(monkeypatch):
    """Neither the one who has something written, nor the end."""
    monkeypatch.setattr("rbim.cli.background_writer.FLUSH_TIMEOUT", 0.01)
    reading, writing = os.pipe()
    lines, (first, second, third) = SimpleQueue(), (Line("\udcff" + "x" * 500_000) for _ in range(3))
    with open(writing, "w", encoding="utf-8") as stream:  # noqa: PTH123  # a descriptor
        with StreamListener(stream, lines) as listener:
            thread = listener._thread
            for line in (first, second, third):
                lines.put(line)
            os.read(reading, 1)  # it has begun
            assert second.written.cancel()
            assert not first.written.cancel()
            assert lines.qsize() == 2
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            first.written.result(PATIENCE)
        with pytest.raises(CancelledError):
            second.written.result(PATIENCE)
        with pytest.raises(BrokenPipeError):
            third.written.result(PATIENCE)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_standard_error_that_is_full(tmp_path):
    """Its reader is there and does not read: deliveries are answered all the same, and it stops when it is told to."""
    inbox = tmp_path / "events.db"
    with serving(inbox) as receiver:
        for _ in range(12):
            assert receiver.post(b"", {}, path=f"/{'e' * 15_000}")[0] == 404  # more than a pipe holds
        assert receiver.post(event())[0] == 200
        receiver.popen.send_signal(signal.SIGTERM)
        assert receiver.popen.wait(PATIENCE) == 0
    assert counts(inbox).waiting == 1


def test_nobody_reads_standard_error(tmp_path):
    with serving(tmp_path / "events.db", "--print") as receiver:
        receiver.popen.stderr.close()
        assert [receiver.post(event(), {})[0] for _ in range(3)] == [401] * 3
        assert receiver.post(event())[0] == 200
        assert receiver.line()["msgId"] == "m1"
        receiver.popen.send_signal(signal.SIGTERM)
        assert receiver.popen.wait(PATIENCE) == 0
