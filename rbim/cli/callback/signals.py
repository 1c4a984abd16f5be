"""Ctrl-C, SIGTERM and SIGHUP of a command that runs until it is stopped."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["ASKED", "stopped_by_signals", "stopping_signals"]

ASKED = (signal.SIGINT, signal.SIGTERM)
HANGUP = getattr(signal, "SIGHUP", None)  # the terminal was closed; Windows has none


def stopping_signals() -> Sequence[signal.Signals]:
    """Return the signals that ask a command to stop: ASKED, and SIGHUP unless it is ignored, as under nohup."""
    return ASKED if HANGUP is None or signal.getsignal(HANGUP) == signal.SIG_IGN else (*ASKED, HANGUP)


@contextmanager
def stopped_by_signals(stop: Callable[[], object], numbers: Sequence[signal.Signals] = ASKED) -> Generator[None]:
    """Call ``stop`` on the first of some signals while the block runs; a second one ends the process at once.

    But not a second SIGHUP: of a terminal that is closed, the shell and the system each send one.
    ``stop`` is called in the main thread, between any two instructions. The exit code of the second signal is 128 and its
    number: the inbox survives whatever still runs.
    """
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        if received and number != HANGUP:
            os._exit(128 + number)
        received.append(number)
        if len(received) == 1:
            stop()

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
