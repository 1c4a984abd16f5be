"""The work of every client: invite fifty accounts; with helpers that a hand-written client needs."""

from __future__ import annotations

import asyncio
import base64
import time
from datetime import datetime, timedelta, timezone
from hashlib import md5
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType
    from typing import Self

__all__ = [
    "ACCOUNTS",
    "APP_ID",
    "APP_TOKEN",
    "GROUP",
    "HEADERS",
    "PATH",
    "TIMEOUT",
    "Carrier",
    "Lap",
    "Stopwatch",
    "document",
    "signature",
    "success",
    "together",
]

APP_ID = "20150314000000110000000000000010"
APP_TOKEN = "9c1d2c1f4b7e4a3f8d6e5c4b3a291807"
PATH = f"/2013-12-26/Application/{APP_ID}/IM/Group/InviteJoinGroup"
HEADERS = {"Accept": "application/json", "Content-Type": "application/json;charset=utf-8"}
GROUP = "gg80000001"
ACCOUNTS = [f"account{number:04d}" for number in range(50)]
TIMEOUT = 300.0  # seconds: slow clients are measured, too
ZONE = timezone(timedelta(hours=8))


@frozen
class Lap:
    """A measurement: ``count`` answers, CPU seconds, wall seconds, and CPU seconds of the server."""

    count: int
    cpu: float
    wall: float
    elsewhere: float

    @property
    def ms(self) -> float:
        """CPU ms of 1000 answers."""
        return self.cpu / self.count * 1e6

    def since(self, then: Lap) -> Lap:
        """Return the difference to an earlier reading."""
        return Lap(self.count - then.count, self.cpu - then.cpu, self.wall - then.wall, self.elsewhere - then.elsewhere)


class Stopwatch:
    """Measures continuous work, from the end of the warm-up until enough is measured.

    Call ``more`` after each answer. The first ``skip`` answers, and those of the first ``warm`` seconds, are not measured.
    Then it measures at least ``count`` answers and at least ``seconds``. Neither part lasts longer than ``most`` seconds.
    ``elsewhere`` returns the CPU seconds of the server.
    """

    def __init__(  # noqa: PLR0913  # each by keyword
        self,
        *,
        skip: int,
        warm: float,
        count: int,
        seconds: float,
        most: float = inf,
        elsewhere: Callable[[], float] = float,
    ) -> None:
        self.lap: Lap | None = None
        self._answers = 0
        self._next = skip
        self._until = time.monotonic() + warm
        self._most = most
        self._latest = time.monotonic() + most
        self._count = count
        self._seconds = seconds
        self._elsewhere = elsewhere
        self._begun: Lap | None = None

    def more(self) -> bool:
        """Count an answer, and return whether to send another request."""
        self._answers += 1
        now = time.monotonic()
        if (self._answers < self._next or now < self._until) and now < self._latest:
            return True
        if self._begun is None:
            self._next = self._answers + self._count
            self._until = now + self._seconds
            self._latest = now + self._most
            self._begun = self._now()
            return True
        if self.lap is None:
            self.lap = self._now().since(self._begun)
        return False

    def _now(self) -> Lap:
        return Lap(self._answers, time.process_time(), time.perf_counter(), self._elsewhere())


class Carrier(Protocol):
    """A client with its connections: tasks or threads that repeat the work."""

    async def run(self, more: Callable[[], bool], /) -> None:
        """Let each task do the work once, and again while ``more``, called after each answer, returns True."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> bool | None: ...


def document(group: str, accounts: list[str]) -> dict[str, Any]:
    """Return the JSON document of an invitation."""
    return {"groupId": group, "members": accounts, "confirm": "1"}


def signature() -> tuple[str, str]:
    """Return ``sig`` and ``Authorization`` for this second."""
    stamp = datetime.now(ZONE).strftime("%Y%m%d%H%M%S")
    sig = md5(f"{APP_ID}{APP_TOKEN}{stamp}".encode()).hexdigest().upper()
    return sig, base64.b64encode(f"{APP_ID}:{stamp}".encode()).decode()


def success(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer. Raises RuntimeError if the platform refused."""
    if answer["statusCode"] != "000000":
        raise RuntimeError(f"{answer['statusCode']}: {answer.get('statusMsg')}")
    return answer


async def together(ask: Callable[[int], Awaitable[object]], in_flight: int, more: Callable[[], bool]) -> None:
    """Let ``in_flight`` tasks, each with its number, call ``ask`` once, and again while ``more`` returns True."""

    async def one(number: int) -> None:
        await ask(number)
        while more():
            await ask(number)

    await asyncio.gather(*[one(number) for number in range(in_flight)])
