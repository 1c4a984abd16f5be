"""The cost of rbim itself: a call over a transport that answers at once, and each part of the call.

The goal compares it with the least that Python can do for a call over a socket, measured in the same rounds.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.contenders import FLOOR, Rbim, Ready
from benchmarks.httpload import on_cores, process
from benchmarks.results import Goal, Result, Table, interleaved, ratio, versions
from benchmarks.target import BODY
from benchmarks.turns import CORE, Place, Plan, turn
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, Stopwatch
from rbim import Credentials, Dialect, InviteJoinGroup, NotSent, Retry
from rbim._support import json
from rbim.clock import SystemClock
from rbim.http import Response
from rbim.wire.codec import Codec
from rbim.wire.signing import AppSigner

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Self

    from benchmarks.httpload import Served
    from benchmarks.results import Options
    from rbim.http import Request

__all__ = ["NullTransport", "parts", "run"]

ORIGIN = "http://127.0.0.1:1"  # never contacted
JSON_CODECS = ("orjson", "standard json")
WHOLE, READY = "whole call", "whole call, operation made before"
PARTLY = b'{"statusCode":"000000","statusMsg":"ok","fails":[{"member":"account0001","reason":"no such account"}]}'
BATCH = 100  # calls of one part between two readings of the clock


class NullTransport:
    """A transport that answers each request at once."""

    def __init__(self) -> None:
        self._response = Response(200, {"content-type": "application/json;charset=utf-8"}, BODY)

    async def send(self, _request: Request, /, *, timeout: float) -> Response:  # noqa: ARG002, ASYNC109  # a transport's
        """Return the answer."""
        return self._response

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


def parts() -> dict[str, Callable[[], object]]:
    """Return the parts of a call, each as a function that can be called many times."""
    dialect, clock = Dialect(), SystemClock()
    codec = Codec(app_id=APP_ID, base_url=ORIGIN, dialect=dialect, clock=clock)
    signer = AppSigner(Credentials(app_id=APP_ID, app_token=APP_TOKEN), clock=clock)
    retry, failure = Retry(), NotSent("refused")
    operation = InviteJoinGroup(group_id=GROUP, members=ACCOUNTS)
    request, response, partly = codec.encode(operation), Response(200, {}, BODY), Response(200, {}, PARTLY)
    return {
        "make the operation": lambda: InviteJoinGroup(group_id=GROUP, members=ACCOUNTS),
        "encode": lambda: codec.encode(operation),
        "sign": lambda: signer.sign(request),
        "decode a plain success, seen before": lambda: codec.decode(operation, response),
        "decode a list of failures": lambda: codec.decode(operation, partly),
        "retry decision (failed calls only)": lambda: retry.pause(operation, failure, 1),
    }


def run(options: Options) -> Result:
    """Measure the whole call and its parts, with and without orjson, and the floor."""
    plan = Plan(in_flight=(10,), seconds=0.01, warm=0.01) if options.quick else Plan(in_flight=(100,))
    codecs = JSON_CODECS if json.orjson is not None else JSON_CODECS[1:]
    names = (WHOLE, READY, *parts())
    with on_cores(CORE), process("benchmarks.target") as served:
        measures: dict[str, Callable[[], float]] = {FLOOR.name: partial(_floor, served, plan)}
        measures |= {f"{name}, {library}": partial(_on, library, name, plan) for library in codecs for name in names}
        figures = interleaved(measures, options.rounds)
    rows: list[tuple[str | float, ...]] = [
        (name, *(median(figures[f"{name}, {library}"]) for library in codecs)) for name in names
    ]
    rows.append((FLOOR.name, *[median(figures[FLOOR.name])] * len(codecs)))
    goals: tuple[Goal, ...] = ()
    if codecs == JSON_CODECS:  # the goal is about the extra `fast`
        whole, name = f"{WHOLE}, {JSON_CODECS[0]}", f"{WHOLE} over a null transport"
        goals = (
            Goal(name=f"{name} / {FLOOR.name}", value=ratio(figures, whole, FLOOR.name), at_most=1.8),
            Goal(name=f"{name}, CPU us", value=median(figures[whole]), at_most=8),
        )
    return Result(
        part="core",
        tables=(
            Table(
                title="CPU us of a call without a transport",
                columns=("", *codecs),
                rows=tuple(rows),
                digits=2,
                note=f"The floor is a call over a socket, {plan.in_flight[0]} in flight.",
            ),
        ),
        goals=goals,
        notes=(f"{versions('attrs', 'cattrs', 'orjson')}.",),
    )


def _floor(served: Served, plan: Plan) -> float:
    return asyncio.run(turn(FLOOR, Place.of(served), plan.in_flight[0], plan)).ms


def _on(library: str, name: str, plan: Plan) -> float:
    """Return the CPU us of one call of the whole or of a part."""
    with _json_codec(library):
        if name in {WHOLE, READY}:
            kind = Rbim if name == WHOLE else Ready
            return asyncio.run(_whole(kind(NullTransport(), ORIGIN, plan.in_flight[0]), plan))
        return _part(parts()[name], plan)


@contextmanager
def _json_codec(library: str) -> Generator[None]:
    """Read and write JSON with orjson, or with the standard library."""
    installed = json.orjson
    json.orjson = installed if library == JSON_CODECS[0] else None
    try:
        yield
    finally:
        json.orjson = installed


async def _whole(carrier: Rbim, plan: Plan) -> float:
    stopwatch = Stopwatch(skip=0, warm=plan.warm, count=1, seconds=plan.seconds)
    gc.collect()
    async with carrier:
        await carrier.run(stopwatch.more)
    assert stopwatch.lap is not None
    return stopwatch.lap.ms


def _part(part: Callable[[], object], plan: Plan) -> float:
    def batch() -> bool:
        for _ in range(BATCH):
            part()
        return stopwatch.more()

    stopwatch = Stopwatch(skip=1, warm=plan.warm / 5, count=1, seconds=plan.seconds / 5)
    gc.collect()
    while batch():
        pass
    assert stopwatch.lap is not None
    return stopwatch.lap.ms / BATCH
