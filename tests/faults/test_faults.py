"""Every cell of the fault matrix is what the pages promise, and what docs/proof/faults.json records."""

import json

import pytest
from attrs import asdict, evolve

from helpers.proof import read_proof
from helpers.transports import LOOPS, TRANSPORTS, UVLOOP
from rbim import NotSent, Unanswered
from rbim.transports.asyncio import AsyncioTransport

from .matrix import TESTED, run, scenarios_of, wrong
from .scenarios import SCENARIOS, sees_a_byte

FIRST = [pytest.param(module, TRANSPORTS[module][2][0], id=module) for module in TESTED]
OTHERS = [
    pytest.param(module, loop, id=f"{module} on {'uvloop' if loop is UVLOOP else loop}")
    for module in TESTED
    for loop in TRANSPORTS[module][2][1:]
    if loop in LOOPS
]
OVER_TLS = [
    evolve(each, scheme="https")
    for each in SCENARIOS
    if each.place == "server" and each.scheme == "http" and not each.greeting and sees_a_byte not in each.idle
    if not each.resolves  # the certificate is for the address
]
RECORD = read_proof("faults")


@pytest.mark.parametrize(("module", "anyio_backend"), FIRST)
async def test_every_fault_has_the_promised_outcome_which_is_recorded(module):
    cells = await run(module)
    assert [why for cell in cells if (why := wrong(cell))] == []
    rows = [{"phase": cell.scenario.phase, "fault": cell.scenario.fault, **asdict(cell.told)} for cell in cells]
    assert json.loads(json.dumps(rows)) == RECORD["cells"]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "anyio_backend"), OTHERS)
async def test_so_it_has_on_other_event_loops(module, anyio_backend):
    scenarios = scenarios_of("uvloop" if anyio_backend is UVLOOP else "asyncio")
    assert [why for cell in await run(module, scenarios) if (why := wrong(cell))] == []


@pytest.mark.slow
@pytest.mark.parametrize(("module", "anyio_backend"), FIRST + OTHERS)
async def test_so_it_has_over_tls(module):
    assert [why for cell in await run(module, OVER_TLS) if (why := wrong(cell))] == []


def test_the_record_has_every_scenario_and_no_other():
    assert [f"{each['phase']}: {each['fault']}" for each in RECORD["cells"]] == [each.name for each in SCENARIOS]
    assert len({each.name for each in SCENARIOS}) == len(SCENARIOS)
    assert RECORD["transports"] == list(TESTED)


# ------------------------------------------------------------------------------ the matrix sees what is wrong

FEW = [
    each
    for each in SCENARIOS
    if each.name in {"connecting: refused", "after the effect: reset", "answer headers: HTTP 400, a page"}
]


def told_by(monkeypatch, sends):
    """Let AsyncioTransport send through another function."""
    monkeypatch.setattr(AsyncioTransport, "send", sends(AsyncioTransport.send))


def optimistic(send):
    async def sends(self, request, /, *, timeout):
        try:
            return await send(self, request, timeout=timeout)
        except Unanswered as error:
            raise NotSent(str(error)) from error

    return sends


def pessimistic(send):
    async def sends(self, request, /, *, timeout):
        try:
            return await send(self, request, timeout=timeout)
        except NotSent as error:
            raise Unanswered(str(error)) from error

    return sends


def repeating(send):
    async def sends(self, request, /, *, timeout):
        try:
            return await send(self, request, timeout=timeout)
        except Unanswered:
            return await send(self, request, timeout=timeout)

    return sends


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("sends", "seen", "why"),
    [
        (optimistic, "after the effect: reset", "the platform acted 2 times"),
        (pessimistic, "connecting: refused", "promised Told(error='NotSent'"),
        (repeating, "after the effect: reset", "never: the platform acted 2 times"),
    ],
)
async def test_a_transport_that_breaks_the_rule_is_seen(monkeypatch, sends, seen, why):
    told_by(monkeypatch, sends)
    found = {cell.scenario.name: wrong(cell) for cell in await run("asyncio", FEW)}
    assert [name for name, broken in found.items() if broken] == [seen]
    assert why in found[seen]
