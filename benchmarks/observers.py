"""The cost of observers: CPU microseconds per call over a transport that answers at once, medians of interleaved rounds.

::

    python benchmarks/observers.py [--calls N] [--rounds N]

Needs opentelemetry-sdk. An exporter drops the spans, and log lines go to ``/dev/null``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import statistics
import time
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider

from rbim import AsyncClient, Credentials, LoggingObserver, Observer, QueryGroupDetail, Response
from rbim.otel.observer import OtelObserver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from opentelemetry.sdk.trace import ReadableSpan

    from rbim.http import Request

__all__ = ["main", "observers"]

WARM_UP = 50
ANSWER = Response(200, {}, b'{"statusCode":"000000","statusMsg":"ok","groupId":"g1","name":"x","type":"1"}')
OPERATION = QueryGroupDetail(group_id="g1")
CREDENTIALS = Credentials(app_id="0" * 32, app_token="1" * 32)


class AtOnce:
    """A transport that answers without waiting."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave nothing behind."""

    async def send(self, _request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # the protocol's
        """Answer."""
        del timeout
        return ANSWER


class Nowhere(SpanExporter):
    """An exporter that drops all spans."""

    def export(self, _spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop them."""
        return SpanExportResult.SUCCESS


def _logging(level: int) -> LoggingObserver:
    logger = logging.getLogger(f"observers.{level}")
    logger.setLevel(level)
    logger.propagate = False
    handler = logging.FileHandler(os.devnull, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    return LoggingObserver(logger)


def observers() -> dict[str, list[Observer]]:
    """Return the observers to compare, by name."""
    spans, meters = TracerProvider(), MeterProvider([InMemoryMetricReader()])
    spans.add_span_processor(BatchSpanProcessor(Nowhere()))
    return {
        "no observer": [],
        "LoggingObserver, level ERROR": [_logging(logging.ERROR)],
        "LoggingObserver, level INFO": [_logging(logging.INFO)],
        "LoggingObserver, level DEBUG": [_logging(logging.DEBUG)],
        "OtelObserver, no SDK": [OtelObserver()],
        "OtelObserver, metrics": [OtelObserver(NoOpTracerProvider(), meters)],
        "OtelObserver, metrics, no span sampled": [OtelObserver(TracerProvider(sampler=ALWAYS_OFF), meters)],
        "OtelObserver, metrics and spans": [OtelObserver(spans, meters)],
    }


async def _microseconds(observers: list[Observer], calls: int) -> float:
    client = AsyncClient(base_url="https://im.example", credentials=CREDENTIALS, transport=AtOnce(), observers=observers)
    async with client:
        for _ in range(WARM_UP):
            await client.send(OPERATION)
        began = time.process_time()
        for _ in range(calls):
            await client.send(OPERATION)
        return (time.process_time() - began) / calls * 1e6


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=500, help="calls per turn of each kind (default: 500)")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default: 15)")
    options = parser.parse_args()
    compared = observers()
    taken: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(options.rounds):
        for name, observed in compared.items():
            taken[name].append(asyncio.run(_microseconds(observed, options.calls)))
    least = statistics.median(taken["no observer"])
    for name, values in taken.items():
        middle = statistics.median(values)
        print(f"{name:<40} {middle:7.1f} us per call {middle - least:+7.1f}")


if __name__ == "__main__":
    main()
