"""Runs seeds, each in a process of its own: nothing of one is left for the next, and nothing is closed that was killed."""

from __future__ import annotations

import json
import os
import re
import traceback
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from . import planted_faults
from .scenarios import scenario
from .virtual_time import Stuck
from .world import PROGRESS, World

if TYPE_CHECKING:
    from collections.abc import Mapping

CRASH = "no exception leaves the scenario"
"""The invariant that is broken where a scenario raises."""


@frozen(kw_only=True)
class Order:
    """What to run: a scenario and a seed, without the troubles in ``off``, with other sizes, with a planted fault."""

    scenario: str
    seed: int
    off: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}
    fault: str | None = None
    verbose: bool = False

    @property
    def command(self):
        """The command that runs it."""
        parts = [f"python -m tests.simulation {self.scenario} --seed {self.seed}"]
        parts += [f"--off {','.join(self.off)}"] if self.off else []
        parts += [f"--set {name}={json.dumps(value)}" for name, value in self.settings.items()]
        parts += [f"--fault {self.fault}"] if self.fault else []
        return " ".join(parts)


def simulate(order):
    """Run one order in a process of its own and return its result; see ``World.run``."""
    result = _forked(lambda: _run(order))
    if "not planted" in result:
        raise planted_faults.NotPlanted(result["not planted"])
    return result


def applies(fault):
    """Return None where a fault applies to rbim, or why it does not."""

    def try_it():
        planted_faults.plant(fault)
        return {}

    return _forked(try_it).get("not planted")


def _forked(work):
    """Return what a function returns in a process of its own, as JSON."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.close(read_end)
        try:
            with os.fdopen(write_end, "w", encoding="utf-8") as out:
                try:
                    json.dump(work(), out)
                except planted_faults.NotPlanted as error:
                    json.dump({"not planted": str(error)}, out)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as text:
        told = text.read()
    os.waitpid(child, 0)
    if not told:
        raise RuntimeError("a process of the simulation ended without a result")
    return json.loads(told)


def _run(order):
    if order.fault is not None:
        planted_faults.plant(order.fault)
    world = World(order.seed, off=order.off, verbose=order.verbose)
    made = None

    async def main():
        nonlocal made
        try:
            made = scenario(order.scenario)(world, order.settings)
            await made.main()
        except Stuck as stuck:
            world.fail(PROGRESS, str(stuck))
        except Exception as error:
            lines = traceback.format_exception(error)
            world.fail(CRASH, f"{type(error).__name__}: {error}\n{''.join(lines)[-2500:]}")

    result = world.run(main())
    result["fault_used"] = planted_faults.used()
    return {**result, "sizes": str(made.sizes) if made else "", "served": made.served if made else 0}


def invariants(result):
    """Return the names of the invariants that were broken, in the order in which they were."""
    return list(dict.fromkeys(each["invariant"] for each in result["broken"]))


def minimised(order):
    """Yield ever simpler orders that break the same invariant as this one breaks first: what changed, order, result.

    Troubles are switched off one by one, then sizes are halved as long as that goes.
    """
    result = simulate(order)
    broken = invariants(result)[:1]
    made = scenario(order.scenario)
    for trouble in made.TROUBLES if broken else ():
        if trouble in result["troubles"] or trouble == "task-order":
            simpler = evolve(order, off=(*order.off, trouble))
            found = simulate(simpler)
            if broken[0] in invariants(found):
                order, result = simpler, found
                yield f"without {trouble}", order, result
    for name, least in made.SHRINKS.items() if broken else ():
        value = _size(result, name)
        while value > least:
            value = max(least, value // 2)
            simpler = evolve(order, settings={**order.settings, name: value})
            found = simulate(simpler)
            if broken[0] not in invariants(found):
                break
            order, result = simpler, found
            yield f"with {name}={value}", order, result


def _size(result, name):
    found = re.search(rf"\b{name}=(\d+)", result["sizes"])
    return int(found[1]) if found else 0
