"""Lines on a standard stream, written by a thread because the reader of the stream may be slow, stuck or gone."""

from __future__ import annotations

import os
from concurrent.futures import Future
from logging.handlers import QueueListener
from threading import Thread
from typing import TYPE_CHECKING, Any, TextIO

from attrs import field, frozen

if TYPE_CHECKING:
    from queue import SimpleQueue
    from typing import Self

__all__ = ["FLUSH_TIMEOUT", "Line", "StreamListener"]

FLUSH_TIMEOUT = 0.25  # seconds for the remaining lines at the end


@frozen(eq=False)
class Line:
    """A text to write, and a future that is done when it is written; if it is cancelled in time, it is not written."""

    text: str
    written: Future[None] = field(factory=Future[None])


class StreamListener(QueueListener):
    """Writes queued lines to a standard stream in a thread while the ``with`` block lasts.

    At the end the remaining lines get 0.25 seconds. A thread that is still blocked then ends with the process.
    """

    def __init__(self, stream: TextIO, lines: SimpleQueue[Line]) -> None:
        super().__init__(lines)
        self._stream = stream

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        stopping = Thread(target=self.stop, daemon=True)  # it joins the writing thread, which may block
        stopping.start()
        stopping.join(FLUSH_TIMEOUT)

    def handle(self, record: Any) -> None:  # a Line. No handler is used: logging takes its lock when Python exits
        """Write one line."""
        if not record.written.set_running_or_notify_cancel():
            return
        try:
            _put(self._stream, record.text)
        except BaseException as error:
            record.written.set_exception(error)
        else:
            record.written.set_result(None)


def _put(stream: TextIO, text: str) -> None:
    """Write a text, bypassing the buffer of the stream if it has a file descriptor.

    A blocked write of the stream would hold its lock, and the interpreter would wait for that lock when it exits.
    """
    try:
        number = None if os.name == "nt" and stream.isatty() else stream.fileno()  # consoles of Windows take no bytes
    except (AttributeError, OSError):
        number = None
    if number is None:
        stream.write(text)
        stream.flush()
        return
    rest = text.encode(stream.encoding, "backslashreplace")
    while rest:
        rest = rest[os.write(number, rest) :]
