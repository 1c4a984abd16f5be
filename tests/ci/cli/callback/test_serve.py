"""``rbim callback serve`` as a process: what is sent to it is kept, printed and completed."""

import json
import os
import signal
import time

import pytest

from helpers.callback_process import PATIENCE, besides_deliveries, counts, event, serving
from rbim.cli import Exit
from rbim.cli.callback.serve import DRAIN_TIMEOUT


def test_what_is_being_handled_is_completed(tmp_path):
    """A line that nobody has read yet is written to its end after the signal, and its event is done."""
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        assert receiver.post(event(body="x" * 500_000))[0] == 200
        begun = os.read(receiver.popen.stdout.fileno(), 1).decode()  # a pipe does not hold the rest
        receiver.popen.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionError):
            receiver.connect_forever()
        out, err = receiver.popen.communicate(timeout=PATIENCE)
    assert (receiver.popen.returncode, besides_deliveries(err)) == (0, "")
    assert len(json.loads(begun + out)["body"]) == 500_000
    counted = counts(inbox)
    assert (counted.done, counted.waiting) == (1, 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, 143)])
def test_a_second_signal_ends_it_at_once(tmp_path, number, code):
    """Whatever it waits for: here for who reads what it prints."""
    inbox = tmp_path / "events.db"
    with serving(inbox, "--print") as receiver:
        assert receiver.post(event(body="x" * 500_000))[0] == 200
        os.read(receiver.popen.stdout.fileno(), 1)
        receiver.popen.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionError):
            receiver.connect_forever()
        began = time.monotonic()
        receiver.popen.send_signal(number)
        assert receiver.popen.wait(PATIENCE) == code
        assert time.monotonic() - began < DRAIN_TIMEOUT
    counted = counts(inbox)
    assert (counted.done, counted.dead) == (0, 0)


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
