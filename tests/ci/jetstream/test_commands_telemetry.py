"""Commands report to OpenTelemetry where the process has an SDK, as under ``opentelemetry-instrument``."""

import importlib
import sys

import anyio
import pytest
from jetstream.test_callback_commands import APPLICATION, until, working

from helpers.callback_process import CLEAN, event, serving
from rbim.cli.context import SDK, telemetry
from rbim.otel import OtelObserver

CONFIGURED = """
import os

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def names(data):
    found = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.data.data_points}
    return "".join(f"{name}\\n" for name in found)


def line(span):
    return f"{span.kind.name} {span.name} {span.context.trace_id:x}\\n"


out = open(os.environ["TELEMETRY"], "a")
spans = TracerProvider()
spans.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
trace.set_tracer_provider(spans)
reader = PeriodicExportingMetricReader(ConsoleMetricExporter(out=out, formatter=names), export_interval_millis=200)
metrics.set_meter_provider(MeterProvider([reader]))
"""
"""The ``sitecustomize`` of a process: it does what ``opentelemetry-instrument`` does before the command begins."""


class Told:
    """What processes have told their SDK, in a file for each."""

    def __init__(self, folder):
        self.folder = folder / "telemetry"
        self.folder.mkdir()
        (self.folder / "sitecustomize.py").write_text(CONFIGURED)

    def environment(self, who):
        return {"PYTHONPATH": str(self.folder), "TELEMETRY": str(self.folder / who)}

    def lines(self, who):
        file = self.folder / who
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def names(self, who):
        return {words[0] for words in self.lines(who) if len(words) == 1}

    def spans(self, who):
        """Return the trace id of each span, by its kind and name."""
        return {" ".join(words[:-1]): words[-1] for words in self.lines(who) if len(words) > 1}


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def test_without_an_sdk_in_the_process_nothing_is_observed(monkeypatch):
    importlib.import_module(SDK)
    assert isinstance(telemetry(), OtelObserver)
    monkeypatch.delitem(sys.modules, SDK)
    assert telemetry() is None


async def test_receivers_and_workers_of_callbacks_report_what_they_do(told, nats, tmp_path, name, monkeypatch):
    (tmp_path / "handlers.py").write_text(APPLICATION)
    inbox = f"{nats.urls[0]}/{name}"
    for variable, value in told.environment("work").items():
        monkeypatch.setitem(CLEAN, variable, value)
    with serving(inbox, "--spool", tmp_path / "spool", **told.environment("serve")) as receiver, working(tmp_path, inbox):
        assert (await anyio.to_thread.run_sync(receiver.post, event()))[0] == 200
        await until(lambda: "CONSUMER process Text" in told.spans("work"))
        await until(lambda: {"rbim.receiver.deliveries", "rbim.receiver.overflow"} <= told.names("serve"))
        await until(lambda: "rbim.worker.handling.duration" in told.names("work"))
        assert receiver.stop()[0] == 0
    assert "INTERNAL rbim delivery" in told.spans("serve")
