"""``rbim callback serve`` as a process, and standard error that nobody reads."""

import signal

from helpers.callback_process import PATIENCE, counts, event, serving


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
