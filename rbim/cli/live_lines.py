"""One line on standard error for each request to the emulator when it is answered, and for each delivery of a copy.

The emulator never waits for the reader of the lines: a thread writes them, at most ``LINES`` in a second. Beyond that, and
while the reader is slow, they are counted, and a line before the next one has the number.
"""

from __future__ import annotations

from contextlib import contextmanager
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from rbim._support.text import counted, printable
from rbim.cli.background_writer import Line, StreamListener
from rbim.cli.folding import columns_of, fold, terminal_columns
from rbim.emulator.asgi import OUTCOME, RECORD
from rbim.emulator.logs import OK
from rbim.emulator.server.control import PREFIX
from rbim.wire.codec import SUCCESS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rbim._support.asgi import Scope
    from rbim.clock import Clock
    from rbim.emulator.emulator import Emulator
    from rbim.emulator.logs import DeliveryAttempt, RecordedRequest

__all__ = ["LINES", "LiveLines", "live_lines"]

LINES = 100  # lines a second
WAITING = 200  # lines that may wait for the reader
SECOND = 1.0
NAME, OF = 18, 15  # columns of the operation, and of its group or account
INDENT = " " * 4  # before what is folded

GREEN, YELLOW, RED, DIM = 32, 33, 31, 2
BROKEN = ("refuse", "reset_before")
CUT = ("reset_after", "keep", "invalid_json")
SUBJECTS = ("group_id", "user_name", "task_name", "name")
SHORT, LONG = 1.0, 10.0  # seconds
MAX_REASON = 400  # characters of a reason


class LiveLines:
    """Makes lines of requests and deliveries, and queues them. Call it in the emulator's event loop."""

    def __init__(
        self,
        clock: Clock,
        lines: SimpleQueue[Line],
        *,
        colored: bool,
        columns: Callable[[], int | None],
        timer: Callable[[], float] = perf_counter,
    ) -> None:
        self._clock = clock
        self._lines = lines
        self._colored = colored
        self._columns = columns
        self._timer = timer
        self._second = float("-inf")
        self._shown = 0
        self._omitted = {"request": 0, "delivery": 0}
        self._troubled = 0

    def request(self, scope: Scope, seconds: float) -> None:
        """Note a request that was answered; commands that only read are no news."""
        if scope["type"] != "http":
            return
        record: RecordedRequest | None = scope.get(RECORD)
        status, reason = scope.get(OUTCOME, (None, ""))
        silent = scope["method"] == "GET" and status == OK and scope["path"].startswith(PREFIX)
        if silent or (record is None and status is None):
            return
        if not self._admits("request", troubled=record is None or record.code != SUCCESS or bool(record.trouble)):
            return
        if record is None or status is not None:
            self._line(seconds, (f"{scope['method']} {scope['path']}",), *_told(status, reason))
        elif record.operation is None:
            self._line(seconds, (f"{scope['method']} {record.path}",), *_result(record))
        else:
            self._line(seconds, (record.operation.spec.name, _of(record.operation)), *_result(record))

    def delivery(self, attempt: DeliveryAttempt) -> None:
        """Note an attempt to deliver a copy."""
        if not self._admits("delivery", troubled=not attempt.ok):
            return
        name = f"copy {attempt.number}" + (f", attempt {attempt.attempt}" if attempt.attempt > 1 else "")
        told = "HTTP 200 accepted" if attempt.ok else attempt.reason.replace("status ", "HTTP ", 1)
        again = ", duplicate" if attempt.duplicate else ""
        told += f"{again}{_faults(attempt.trouble)}"
        self._line(attempt.took, (name, attempt.key), told, GREEN if attempt.ok else RED)

    def _admits(self, kind: str, *, troubled: bool) -> bool:
        """Return whether a line may be written now; otherwise count it."""
        now = self._timer()
        if now - self._second >= SECOND:
            self._second, self._shown = now, 0
        if self._shown < LINES and self._lines.qsize() < WAITING:
            self._shown += 1
            self.summarize()
            return True
        self._omitted[kind] += 1
        self._troubled += troubled
        return False

    def summarize(self) -> None:
        """Queue the number of the lines that were omitted, if any."""
        requests, deliveries = self._omitted["request"], self._omitted["delivery"]
        if not requests and not deliveries:
            return
        parts = [counted(requests, "more request")] if requests else []
        parts += [f"{deliveries:,} more {'delivery' if deliveries == 1 else 'deliveries'}"] if deliveries else []
        troubled = f" ({self._troubled:,} refused, failed or with a fault)" if self._troubled else ""
        self._omitted, self._troubled = {"request": 0, "delivery": 0}, 0
        self._put(self._painted(f"{self._time()}  … {', '.join(parts)}{troubled}", DIM))

    def _line(self, seconds: float, what: tuple[str, ...], told: str, color: int) -> None:
        head = f"{self._time()}  {_duration(seconds)}  "
        name, *of = map(printable, what)
        name = f"{_filled(name, NAME)}  {_filled(of[0], OF)}" if of else _filled(name, NAME + 2 + OF)
        columns, before = self._columns(), f"{head}{name}  "
        line = f"{before}{printable(told)[:MAX_REASON]}"
        line = line if columns is None else fold(line, columns, INDENT)
        if self._colored and line.startswith(before):
            line = f"{self._painted(head, DIM)}{name}  {self._painted(line[len(before) :], color)}"
        self._put(line)

    def _put(self, text: str) -> None:
        self._lines.put(Line(f"{text}\n"))

    def _time(self) -> str:
        return self._clock.now().astimezone().strftime("%H:%M:%S.%f")[:-3]

    def _painted(self, text: str, color: int) -> str:
        return f"\x1b[{color}m{text}\x1b[0m" if self._colored else text


@contextmanager
def live_lines(emulator: Emulator, stream: TextIO) -> Generator[LiveLines]:
    """Write lines of the deliveries of an emulator to a stream while the block runs; the result takes its requests."""
    lines = SimpleQueue[Line]()
    shown = LiveLines(emulator.clock, lines, colored=_takes_colors(stream), columns=lambda: terminal_columns(stream))
    with StreamListener(stream, lines):
        emulator.deliveries.watch = shown.delivery
        try:
            yield shown
        finally:
            emulator.deliveries.watch = None
            shown.summarize()


def _takes_colors(stream: TextIO) -> bool:
    from rich.console import Console

    screen = Console(file=stream)  # knows NO_COLOR, TERM, and consoles of Windows
    return screen.is_terminal and screen.color_system is not None and not screen.no_color and not screen.legacy_windows


def _result(record: RecordedRequest) -> tuple[str, int]:
    """Return the result of a request in words, and its color."""
    faults = _faults(record.trouble)
    if record.code == SUCCESS:
        cut = [name for name in record.trouble if name in CUT]
        return f"{record.code} done{faults}", YELLOW if record.trouble and not cut else RED if cut else GREEN
    if record.code is not None:
        return f"{record.code} {record.reason}{faults}", YELLOW
    broken = next((name for name in record.trouble if name in BROKEN), None)
    return f"{'no answer' if broken else 'HTTP error'}, not done{faults}", RED


def _told(status: int, reason: str) -> tuple[str, int]:
    return (f"HTTP {status} {reason}", YELLOW) if reason else (f"HTTP {status} done", GREEN)


def _faults(names: tuple[str, ...]) -> str:
    return f"; fault: {', '.join(names)}" if names else ""


def _of(op: Any) -> str:  # an operation
    """Return the group of an operation, or its account, or the name that it gives."""
    return next((str(value) for name in SUBJECTS if (value := getattr(op, name, None))), "")


def _duration(seconds: float) -> str:
    """Return seconds as eight characters: milliseconds, or seconds from 10 s on."""
    if seconds >= LONG:
        return f"{seconds:6.1f} s"
    return f"{seconds * 1000:5.1f} ms" if seconds < SHORT else f"{seconds * 1000:5.0f} ms"


def _filled(text: str, columns: int) -> str:
    """Return a text in so many columns: of a longer one, beginning and end."""
    shown = text
    for kept in range(len(text) - 1, -1, -1):
        if columns_of(shown) <= columns:
            break
        shown = f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
    return shown + " " * (columns - columns_of(shown))
