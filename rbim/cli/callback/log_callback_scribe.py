"""Writes to a standard stream from a thread of its own, so that a reader who does not read holds up nobody else."""

from __future__ import annotations

import os
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Scribe"]

LAST_WORDS = 0.25  # seconds that what is still to be written has at the end


class Scribe:
    """Writes texts one after the other while the ``with`` block lasts.

    On leaving, what is left has a quarter of a second. A thread whose reader does not read by then ends with the process.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: SimpleQueue[tuple[Future[None], str] | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="rbim-scribe", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._texts.put(None)
        self._thread.join(LAST_WORDS)

    @property
    def waiting(self) -> int:
        """How many texts have not been begun."""
        return self._texts.qsize()

    def write(self, text: str) -> Future[None]:
        """Have a text written when its turn comes. What is cancelled before that is not written."""
        written: Future[None] = Future()
        self._texts.put((written, text))
        return written

    def _run(self) -> None:
        while (entry := self._texts.get()) is not None:
            written, text = entry
            if not written.set_running_or_notify_cancel():
                continue
            try:
                _put(self._stream, text)
            except BaseException as error:
                written.set_exception(error)
            else:
                written.set_result(None)


def _put(stream: TextIO, text: str) -> None:
    """Write a text, past the stream's buffer where there is a file beneath it.

    Whoever waits in a write of the stream has its lock, for which the interpreter would wait at its end.
    """
    try:
        number = None if os.name == "nt" and stream.isatty() else stream.fileno()  # Windows' consoles take no bytes
    except (AttributeError, OSError):
        number = None
    if number is None:
        stream.write(text)
        stream.flush()
        return
    rest = text.encode(stream.encoding, "backslashreplace")
    while rest:
        rest = rest[os.write(number, rest) :]
