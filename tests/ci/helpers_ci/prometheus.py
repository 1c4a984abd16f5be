"""The text that Prometheus reads from a process that uses everything: calls, a job, two receivers, inboxes."""

import re
import time
from datetime import timedelta

import anyio
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from helpers.credentials import CREDENTIALS
from helpers.jobs import Sending
from helpers.receiving import OLD, body, post
from helpers.stubs import BUSY, GARBAGE, NEVER, NO_PAUSES, OK, READ, Stub, answer, client_over, ending
from helpers.waiting import until
from rbim import Limits, NotSent, Rate, Throttled, Unanswered
from rbim.callbacks import (
    Backoff,
    DeadLettered,
    HungHandler,
    MemorySink,
    PartEnded,
    PartRestarted,
    Receiver,
    RetriedAlone,
    SqliteInbox,
)
from rbim.emulator.clock import EmulatedClock
from rbim.otel import OtelObserver

WRONG_TOKEN = answer("111109")


class Scraped:
    """The samples of a process: for each name, all its labels; for each label, all its values."""

    def __init__(self, text):
        self.labels, self.values = {}, {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.labels.setdefault(sample.name, set()).update(sample.labels)
                for label, value in sample.labels.items():
                    self.values.setdefault(label, set()).add(value)

    def families(self):
        """Return the names of the metrics, of histograms without their endings."""
        return {re.sub("_(bucket|count|sum)$", "", name) for name in self.labels}


async def scraped(tmp_path):
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    otel = OtelObserver(meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    return Scraped(await _use_everything(otel, tmp_path, lambda: generate_latest(registry).decode()))


async def _use_everything(otel, tmp_path, read):
    stub = Stub(GARBAGE, OK, BUSY, OK, NotSent, NotSent, NotSent, WRONG_TOKEN, Unanswered, clock=EmulatedClock(auto=True))
    limits = Limits(rates=[Rate(1, per=2)])
    async with client_over(stub, observers=[otel], name="front", limits=limits, retry=NO_PAUSES) as client:
        with otel.observe_client(client):
            for op in (READ, READ, READ, READ, NEVER):
                await ending(client.send(op))
            await ending(client.tuned(deadline=0.1).send(READ))  # the rate does not let it leave in time
            answers = [Throttled()]
            job = Sending(lambda _: answers.pop() if answers else None, seconds=1.0).job(tmp_path / "journal", chunk=1)
            async with job.run([("g", f"u{number}") for number in range(5)]) as run:
                with otel.observe_job(run, "nightly"):
                    async for _ in run:
                        pass
                    await _receive(otel, tmp_path)
                    async with (
                        SqliteInbox(tmp_path / "events.db") as inbox,
                        Receiver(
                            credentials=CREDENTIALS, sink=MemorySink(), spool=tmp_path / "empty", name="eu"
                        ) as receiver,
                        otel.observe_inbox(inbox),
                        otel.observe_receiver(receiver),
                    ):
                        gauges = {"rbim_receiver_overflow", "rbim_inbox_events", "rbim_inbox_lag_seconds"}
                        await until(lambda: gauges <= Scraped(read()).families())  # each collection begins a reading
                        return read()


async def _receive(otel, tmp_path):
    seen = []
    receiver = Receiver(
        credentials=[CREDENTIALS, OLD],
        sink=MemorySink(),
        backoff=Backoff(first=0.001, attempts=1),
        observers=[otel, seen.append],
        name="eu",
        budget=0.4,
    )

    @receiver.fallback
    async def handle(event):
        if event.body == "fails":
            time.sleep(0.5)  # reported from a quarter of the budget on
            raise KeyError

    await post(receiver, body())  # it is not entered
    async with receiver:
        await post(receiver, body())
        await post(receiver, body(body="other content"))
        await post(receiver, body(msgId="m2", body="fails"))
        await post(receiver, b"no JSON")
        await post(receiver, body(msgId="m3"), credentials=OLD)
        await post(receiver, body(msgId="m4"), at=receiver.clock.now() - timedelta(hours=1))
        await until(lambda: any(isinstance(each, DeadLettered) for each in seen))

    class Full(MemorySink):
        async def accept(self, _delivery, /):
            await anyio.lowlevel.checkpoint()
            raise OSError

    for options in ({"spool": tmp_path / "spool"}, {"mode": "high-guarantee"}):
        async with Receiver(credentials=CREDENTIALS, sink=Full(), observers=[otel], name="eu", **options) as receiver:
            await post(receiver, body(msgId="m5"))
    for rare in (
        PartEnded(receiver="eu", part="worker", error="the pool is gone", pause=0.5),
        PartRestarted(receiver="eu", part="worker", restarts=1),
        HungHandler(receiver="eu", key="k", attempt=1, seconds=60.0, event="Text", handler="handle", app_id="a"),
        RetriedAlone(receiver="eu", key="k", crashes=1, alone=True, app_id="a"),
    ):
        otel(rare)
