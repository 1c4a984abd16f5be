"""Commands report to OpenTelemetry where the process has an SDK, as under ``opentelemetry-instrument``."""

import importlib
import signal
import subprocess
import sys

import pytest

from helpers.callback_process import COMMAND, event, serving
from helpers.processes import CLEAN, PATIENCE, running, wait_until
from rbim.cli.context import telemetry
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

HANDLERS = """
from rbim.callbacks import Event, Router

router = Router()


@router.fallback
async def handle(event: Event) -> None:
    pass
"""


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
        return {" ".join(words[:-1]): words[-1] for words in self.lines(who) if len(words) > 1}


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path)


def test_without_an_sdk_in_the_process_nothing_is_observed(monkeypatch):
    importlib.import_module("opentelemetry.sdk")
    assert isinstance(telemetry(), OtelObserver)
    monkeypatch.delitem(sys.modules, "opentelemetry.sdk")
    assert telemetry() is None


def test_receivers_and_workers_of_callbacks_report_what_they_do(told, tmp_path):
    (tmp_path / "handlers.py").write_text(HANDLERS)
    inbox = tmp_path / "copies.db"
    command = [*COMMAND, "work", "handlers:router", "--inbox", str(inbox)]
    environment = CLEAN | told.environment("work")
    with (
        serving(inbox, **told.environment("serve")) as receiver,
        running(*command, stderr=subprocess.DEVNULL, env=environment, cwd=tmp_path) as worker,
    ):
        assert receiver.post(event())[0] == 200
        wait_until(lambda: "CONSUMER process Text" in told.spans("work"))
        wait_until(lambda: {"rbim.receiver.deliveries", "rbim.receiver.overflow"} <= told.names("serve"))
        wait_until(lambda: "rbim.worker.handling.duration" in told.names("work"))
        assert receiver.stop()[0] == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    assert "INTERNAL rbim delivery" in told.spans("serve")
