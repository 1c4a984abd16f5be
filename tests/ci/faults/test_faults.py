"""Every cell of the fault matrix is what the pages promise, and what docs/internals/proof/faults.json records."""

import json

import pytest
from attrs import asdict

from helpers.transports import TRANSPORTS
from helpers_ci.proof import read_proof
from rbim import NotSent, Unanswered
from rbim.transports.asyncio import AsyncioTransport

from .matrix import TESTED, run, wrong
from .scenarios import SCENARIOS

FIRST = [pytest.param(module, TRANSPORTS[module][2][0], id=module) for module in TESTED]
RECORD = read_proof("faults")


@pytest.mark.no_cover  # long, and the conformance suite runs the same lines
@pytest.mark.parametrize(("module", "anyio_backend"), FIRST)
async def test_every_fault_has_the_promised_outcome_which_is_recorded(module):
    cells = await run(module)
    assert [why for cell in cells if (why := wrong(cell))] == []
    rows = [{"phase": cell.scenario.phase, "fault": cell.scenario.fault, **asdict(cell.told)} for cell in cells]
    assert json.loads(json.dumps(rows)) == RECORD["cells"]


def test_the_record_has_every_scenario_and_no_other():
    assert [f"{each['phase']}: {each['fault']}" for each in RECORD["cells"]] == [each.name for each in SCENARIOS]
    assert len({each.name for each in SCENARIOS}) == len(SCENARIOS)
    assert RECORD["transports"] == list(TESTED)


FEW = [
    each
    for each in SCENARIOS
    if each.name in {"connecting: refused", "after the effect: reset", "answer headers: HTTP 400, a page"}
]


def optimistic(send):
    async def sends(self, request, /, *, timeout):
        try:
            return await send(self, request, timeout=timeout)
        except Unanswered as error:
            raise NotSent(str(error)) from error

    return sends


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_transport_that_breaks_the_rule_is_seen(monkeypatch):
    monkeypatch.setattr(AsyncioTransport, "send", optimistic(AsyncioTransport.send))
    found = {cell.scenario.name: wrong(cell) for cell in await run("asyncio", FEW)}
    assert [name for name, broken in found.items() if broken] == ["after the effect: reset"]
    assert "the platform acted 2 times" in found["after the effect: reset"]
