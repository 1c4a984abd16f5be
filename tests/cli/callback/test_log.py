"""``rbim callback serve`` and standard error: few lines, and nothing waits for who reads them."""

import itertools
import logging
import os
import signal
import sys
from concurrent.futures import CancelledError

import pytest

from helpers.callback_process import PATIENCE, counts, event, serving
from rbim.callbacks.observers import Buried, HandlingFailed, Quarantined, Refused, Spooled
from rbim.callbacks.signature import Reason
from rbim.cli.callback.log import WAITING, Trickle
from rbim.cli.callback.log_callback_scribe import Scribe

# -------------------------------------------------------------------------------------------------------- standard error


def record(message, *args, error=None):
    return logging.LogRecord("rbim", logging.WARNING, "", 0, message, args, (type(error), error, None) if error else None)


def test_facts_are_said_in_words(capsys):
    facts = (
        Refused(reason=Reason.STALE, detail="too old"),
        Quarantined(key="k", problem="p\nq"),
        Spooled(key="k", why="slow", kept=True),
        Spooled(key="k", why="slow", kept=False),
        HandlingFailed(key="k", attempt=2, error="E: e", pause=3.0),
        Buried(key="k", attempt=9, error="E: e"),
    )
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe, lambda: 0.0)
        for fact in facts:
            trickle.handle(record("%s", fact))
        trickle.handle(record("another %s", "thing", error=ValueError("wrong")))
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
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe, lambda: now[0])
        for second in range(3):
            now[0] = second
            for _ in range(12):
                trickle.say("line")
        trickle.settle()
    lines = [line.removeprefix("rbim: ") for line in capsys.readouterr().err.splitlines()]
    told = ["line"] * 10, ["2 more lines were left out"]
    assert lines == [*told[0], *told[1], *told[0], *told[1], *told[0], *told[1]]
    with Scribe(sys.stderr) as scribe:
        trickle = Trickle(scribe, lambda: now[0])
        for _ in range(11):
            trickle.say("line")
        trickle.settle()
        trickle.settle()
        trickle.tell("said whatever the rate")
    assert capsys.readouterr().err.splitlines()[10:] == ["rbim: 1 more line was left out", "rbim: said whatever the rate"]


def test_lines_that_nobody_reads_are_counted():
    class Full:
        waiting = WAITING
        written = ()

        def write(self, text):
            self.written = (*self.written, text)

    scribe, now = Full(), itertools.count()
    trickle = Trickle(scribe, lambda: float(next(now)))
    for _ in range(3):
        trickle.say("line")
    trickle.settle()
    assert scribe.written == ()
    scribe.waiting = WAITING - 1
    trickle.say("another")
    assert scribe.written == ("rbim: 3 more lines were left out\n", "rbim: another\n")


def test_a_scribe_waits_for_nobody(monkeypatch):
    """Neither the one who has something written, nor the end."""
    monkeypatch.setattr("rbim.cli.callback.log_callback_scribe.LAST_WORDS", 0.01)
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as stream:  # noqa: PTH123  # a descriptor
        with Scribe(stream) as scribe:
            first, second, third = (scribe.write("\udcff" + "x" * 500_000) for _ in range(3))
            os.read(reading, 1)  # it has begun
            assert second.cancel()
            assert not first.cancel()
            assert scribe.waiting == 2
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            first.result(PATIENCE)
        with pytest.raises(CancelledError):
            second.result(PATIENCE)
        with pytest.raises(BrokenPipeError):
            third.result(PATIENCE)
        scribe._thread.join(PATIENCE)


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
