"""Ctrl-C and SIGTERM of a command that runs until it is stopped."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["stopped_by_signals"]


@contextmanager
def stopped_by_signals(stop: Callable[[], object]) -> Generator[None]:
    """Call ``stop`` on the first SIGINT or SIGTERM while the block runs; a second one ends the process at once.

    ``stop`` is called in the main thread, between any two instructions. The exit code of the second signal is 128 and its
    number: the inbox survives whatever still runs.
    """
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
