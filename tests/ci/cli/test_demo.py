"""``rbim demo`` as a process at a terminal, interrupted."""

import os
import signal

from helpers_ci.terminal import Terminal
from rbim.cli import Exit


def test_an_interrupt_ends_it_at_once():
    one_each = {"RBIM_DIALECT": "invite_limit=1"}  # 5,000 requests, so that it is still at work
    with Terminal("demo", env={**os.environ, **one_each, "TERM": "xterm"}) as shown:
        shown.see(r"[1-9][0-9]*/5000")
        shown.process.send_signal(signal.SIGINT)
        code = shown.end()

    assert code == Exit.INTERRUPTED
    assert "Traceback" not in shown.text
