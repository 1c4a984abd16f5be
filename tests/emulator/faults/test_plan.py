"""What both plans of faults share: a seed and a plan give one sequence of verdicts, here as literals, in every release."""

import pytest

from helpers.stubs import CONVERGING, READ
from rbim.emulator import EmulatedClock
from rbim.emulator.faults import (
    Code,
    CopyFault,
    CopyFaults,
    CutShort,
    Delay,
    Duplicate,
    Fault,
    Faults,
    Latency,
    Overtaken,
    Refuse,
    ResetAfter,
    Stale,
    Tamper,
    Throttle,
    injection_of,
)
from rbim.errors import InvalidRequest

PLAN = (
    Fault(effect=Latency(0.5, sigma=1.0), probability=0.5),
    Fault(effect=Refuse(), operation="DeleteGroup", probability=0.4, times=2),
    Fault(effect=Throttle(2, code="160016"), match={"group_id": "g1"}),
    Fault(effect=ResetAfter(), every=3, probability=0.7),
    Fault(effect=Code("999123"), nth=(2, 9), probability=0.9),
    Fault(effect=CutShort(0.25), probability=0.2),
)
COPY_PLAN = (
    CopyFault(effect=Delay(0.5, sigma=1.0), probability=0.4, attempts=()),
    CopyFault(effect=Duplicate(2), every=3, times=2),
    CopyFault(effect=Overtaken(by=2, patience=7), match={"convType": "TEAM"}, probability=0.6),
    CopyFault(effect=Tamper(), nth=(1, 4, 7), probability=0.8, attempts=(1, 2)),
    CopyFault(effect=Stale(900), probability=0.3, times=1),
)


def told(verdict):
    """Return what is out of the ordinary; times to the microsecond, as the last bits of exponentials differ by platform."""
    found = {name: getattr(verdict, name) for name in verdict.names}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.items()}


def twelve_requests(faults, clock):
    verdicts = []
    for number in range(12):
        verdicts.append(told(faults.next_injection((READ, CONVERGING, None)[number % 3])))
        clock.elapsed += 0.25
    return verdicts


def twelve_messages(faults):
    met = [faults.pick({"convType": "TEAM" if number % 2 else "PERSON"}) for number in range(12)]
    return [[told(injection_of(picked, attempt)) for attempt in (1, 2)] for picked in met]


VERDICTS = [
    {},
    {"delay": 1.283694, "code": "999123"},
    {"reset_after": True},
    {"delay": 0.44342, "code": "160016"},
    {},
    {"delay": 1.216515},
    {"delay": 1.008855, "keep": 0.25},
    {"refuse": True, "code": "160016"},
    {"delay": 0.572379, "reset_after": True, "code": "999123"},
    {"delay": 1.630703},
    {"delay": 0.482382, "refuse": True},
    {},
]
COPY_VERDICTS = [
    [{"tampered": 0.223431, "stale": 900.0}, {"tampered": 0.896132}],
    [{"overtaken_by": 2}, {}],
    [{"duplicates": 2}, {}],
    [{"overtaken_by": 2, "tampered": 0.622213}, {"tampered": 0.406584}],
    [{}, {}],
    [{"duplicates": 2}, {}],
    [{"delay": 0.606003, "tampered": 0.201796}, {"delay": 0.971745, "tampered": 0.383178}],
    [{"overtaken_by": 2}, {}],
    [{}, {}],
    [{"overtaken_by": 2}, {}],
    [{}, {}],
    [{"overtaken_by": 2}, {}],
]


def test_a_seed_and_a_plan_of_requests_give_one_sequence_of_verdicts():
    clock = EmulatedClock()
    faults = Faults(clock, seed=7)
    faults.add(*PLAN[:2])
    faults.add(*PLAN[2:])
    assert twelve_requests(faults, clock) == VERDICTS
    faults.clear()
    faults.add(*PLAN)
    assert twelve_requests(faults, clock) == VERDICTS


def test_a_seed_and_a_plan_of_copies_give_one_sequence_of_verdicts():
    faults = CopyFaults(seed=7)
    faults.add(*COPY_PLAN[:2])
    faults.add(*COPY_PLAN[2:])
    assert twelve_messages(faults) == COPY_VERDICTS
    faults.clear()
    faults.add(*COPY_PLAN)
    assert twelve_messages(faults) == COPY_VERDICTS


def test_only_faults_of_its_kind_belong_into_a_plan():
    for plan, wrong, said in [
        (Faults(EmulatedClock()), Latency(1), "faults: use Fault(effect=...), not Latency"),
        (Faults(EmulatedClock()), CopyFault(effect=Delay(1)), "faults: use Fault(effect=...), not CopyFault"),
        (CopyFaults(), Delay(1), "faults: use CopyFault(effect=...), not Delay"),
    ]:
        with pytest.raises(InvalidRequest) as caught:
            plan.add(wrong)
        assert (str(caught.value), list(plan)) == (said, [])
