"""The page on observers: its programs run, and its tables say what the code says."""

import json
import logging
import re

import pytest
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider

from helpers.pages import blocks_of, run_program
from helpers.paths import ROOT
from helpers.stubs import ALREADY_MEMBER, GARBAGE, INVITE, OK, REFUSED, Stub, client_over, ending
from helpers.telemetry import Telemetry
from rbim import Observation, Unanswered
from rbim.callbacks import (
    Accepted,
    DeliveryEnded,
    DeliveryStarted,
    HandlingEnded,
    HandlingStarted,
    Reason,
    Refused,
    observers as of_receivers,
)
from rbim.client import observers as of_clients
from rbim.otel import OtelObserver
from rbim.otel.metrics import INCIDENTS

PAGE = "docs/observability.md"
TEXT = (ROOT / PAGE).read_text(encoding="utf-8")
PRINTED = [r"0\n", None, r"1\n", r""]  # what each program prints; None where it writes to its log, and nothing else
PROGRAMS = [block for block in blocks_of(PAGE, "python") if block.not_run is None]


@pytest.mark.parametrize(("block", "printed"), [*zip(PROGRAMS, PRINTED, strict=True)], ids=str)
def test_a_program_runs(block, printed, platform, tmp_path):
    if "prometheus_client" in block.text:
        pytest.importorskip("prometheus_client")
    if printed is not None:
        assert re.fullmatch(printed, run_program(block.text, tmp_path, platform))
        return
    out = run_program(block.text.replace("StreamHandler()", "StreamHandler(__import__('sys').stdout)"), tmp_path, platform)
    documents = [json.loads(line) for line in out.splitlines()]
    (call,) = [document for document in documents if document.get("rbim_observation") == "CallEnded"]
    assert (call["level"].upper(), call["rbim_operation"], call["rbim_status"]) == ("INFO", "SearchPublicGroups", 200)
    assert set(keys_of_the_page()) <= call.keys()


def rows(*headings):
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", TEXT, flags=re.MULTILINE):
        lines = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        if [cell.strip("| ") for cell in lines[0]] == list(headings):
            found += lines[2:]
    assert found
    return found


def keys_of_the_page():
    return [re.fullmatch(r"`(\w+)`", row[0])[1] for row in rows("key", "meaning")]


def named_in(cell):
    return re.findall(r"`(\w+)`", cell)


def test_the_levels_of_the_page_are_those_of_the_log():
    table = [*rows("observation", "level"), *rows("incident", "level", "meaning")]
    listed = {name: level for names, level, *_ in table for name in named_in(names)}
    kinds = [kind for module in (of_clients, of_receivers) for kind in vars(module).values() if isinstance(kind, type)]
    logged = {kind.__name__: kind.LEVEL for kind in kinds if issubclass(kind, Observation) and kind.LEVEL is not None}
    assert {name: re.match(r"[A-Z]+", level)[0] for name, level in listed.items()} == {
        name: logging.getLevelName(level) for name, level in logged.items()
    }


def test_the_incidents_of_the_page_are_those_that_are_counted():
    listed = {name for cell, *_ in rows("incident", "level", "meaning") for name in named_in(cell)}
    assert listed == {kind.__name__ for kind in INCIDENTS}


class Meter(NoOpMeter):
    """Notes what is made."""

    def __init__(self, made):
        super().__init__("rbim")
        self.made = made

    def __getattribute__(self, name):
        if not name.startswith("create_"):
            return super().__getattribute__(name)
        kind = name.removeprefix("create_").removeprefix("observable_").replace("up_down_counter", "up-down counter")

        def create(name, *how, **_):
            unit = how[1] if callable(getattr(how[0], "append", None)) else how[0]
            self.made[name] = (kind, unit)

        return create


class Meters(NoOpMeterProvider):
    def __init__(self):
        self.made = {}

    def get_meter(self, *_, **__):
        return Meter(self.made)


def test_the_metrics_of_the_page_are_those_there_are():
    meters = Meters()
    OtelObserver(None, meters)
    listed = {
        row[0].strip("`"): tuple(part.strip("`") for part in row[1].split(", "))
        for row in rows("metric", "kind, unit", "meaning")
    }
    assert listed == meters.made


async def test_the_attributes_of_the_page_are_those_of_spans():
    telemetry = Telemetry()
    for script in ((GARBAGE, OK), (Unanswered, ALREADY_MEMBER), (REFUSED,)):
        async with client_over(Stub(*script), observers=[telemetry.observer], name="a") as client:
            await ending(client.send(INVITE))
    seen = {"call": set(), "attempt": set()}
    for span in telemetry.ended:
        seen["call" if span.name.startswith("rbim ") else "attempt"] |= set(span.attributes)
    listed = {"call": set(), "attempt": set()}
    for names, where in rows("attribute", "span"):
        for kind in ("call", "attempt") if where == "both" else (where,):
            listed[kind] |= set(re.findall(r"`([^`]+)`", names))
    assert listed == seen


async def test_the_attributes_of_the_page_are_those_of_callback_spans():
    telemetry = Telemetry()
    observe = telemetry.observer
    for end in (Accepted(key="k", new=True, elapsed=0.1), Refused(reason=Reason.STALE, detail="d")):
        observe(DeliveryStarted(receiver="r"))
        observe(end)
        observe(DeliveryEnded(key="k", status=503, elapsed=0.1))
    observe(HandlingStarted(receiver="r", key="k", attempt=1, event="Text", handler="f", app_id="a"))
    observe(HandlingEnded(key="k", attempt=1, elapsed=0.1, error=ValueError(), cancelled=False))
    seen = {"delivery": set(), "handling": set()}
    for span in telemetry.ended:
        seen["delivery" if span.name == "rbim delivery" else "handling"] |= set(span.attributes)
    listed = {"delivery": set(), "handling": set()}
    for names, where in rows("attribute", "callback span"):
        for kind in listed if where == "both" else (where,):
            listed[kind] |= set(re.findall(r"`([^`]+)`", names))
    assert listed == seen
