"""The command line of the simulation."""

import argparse
import json
import math

from attrs import evolve

from . import disk, event_loop, planted_faults
from .record import Record, pieces
from .runner import Order, applies, invariants, minimised, simulate
from .scenarios import MODULES, scenario
from .virtual_time import real_monotonic

WITHIN = 200
"""Seeds within which a planted fault must be found."""

EXAMPLES = """
examples:
  python -m tests.simulation job --seed 7 -v              print every event of one run
  python -m tests.simulation job --seeds 1-2000 --seconds 600
  python -m tests.simulation job --seed 7 --minimise      which troubles and sizes the failure needs
  python -m tests.simulation job --seeds 1-10000 --seconds 9000 --record
  python -m tests.simulation job --planted --record       look for each planted fault
"""


def main(arguments=None):
    """Run what the command line says; return 1 where an invariant was broken."""
    told = _parser().parse_args(arguments)
    if told.faults:
        return _faults(told.scenario)
    if told.planted and told.seeds is None:
        told.seeds, told.seconds, told.stop = f"1-{WITHIN}", math.inf, True
    if told.seed is None and told.seeds is None:
        _parser().error("which seed? --seed N, or --seeds A-B")
    disk.install()
    event_loop.install()
    scenario(told.scenario)  # imported before the first fork
    settings = {name: json.loads(value) for name, _, value in (each.partition("=") for each in told.set)}
    off = tuple(filter(None, told.off.split(",")))
    order = Order(
        scenario=told.scenario, seed=told.seed or 0, off=off, settings=settings, fault=told.fault, verbose=told.verbose
    )
    if told.planted:
        return _planted(order, told)
    if told.record:
        return _record(order, told)
    if told.seed is None:
        return _many(order, told)[0]
    return _minimise(order) if told.minimise else _one(order, told)


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description="Simulate rbim with everything around it; one seed decides all that happens.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", choices=list(MODULES))
    parser.add_argument("--seed", type=int, help="one run")
    parser.add_argument("--seeds", metavar="A-B", help="a run for each seed from A to B; several: 1-20,57")
    parser.add_argument("--seconds", type=float, default=50.0, help="with --seeds: begin no run after so many seconds (50)")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every event")
    parser.add_argument("--minimise", action="store_true", help="with --seed: find out what the failure needs")
    parser.add_argument("--off", default="", metavar="A,B", help="kinds of trouble that do not happen")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a size, as JSON")
    parser.add_argument("--fault", choices=list(planted_faults.PLANTED), help="put a fault into rbim first")
    parser.add_argument("--stop", action="store_true", help="with --seeds: end at the first failure")
    parser.add_argument("--faults", action="store_true", help="list the faults, and check that each applies to rbim")
    parser.add_argument("--planted", action="store_true", help=f"look for each fault of the scenario in {WITHIN} seeds")
    parser.add_argument(
        "--record", action="store_true", help="with --seeds or --planted: record the result for the page on reliability"
    )
    parser.add_argument("--json", action="store_true", help="print results as JSON lines")
    return parser


def _say(text=""):
    print(text, flush=True)  # noqa: T201  # a command


def _one(order, told):
    result = simulate(order)
    if told.json:
        _say(json.dumps(result))
    else:
        _report(order, result)
    return 1 if result["broken"] else 0


def _minimise(order):
    found = None
    for change, simpler, result in minimised(order):
        found = simpler, result
        _say(f"still fails {change}")
    if found is None:
        found = order, simulate(order)
    _say()
    _report(*found)
    return 1 if found[1]["broken"] else 0


def _report(order, result):
    """Print what became of one run: each invariant that was broken, and how to see it again."""
    for name in invariants(result):
        first = next(each for each in result["broken"] if each["invariant"] == name)
        count = result["counts"][name]
        times = f", {count} times" if count > 1 else ""
        _say(f"BROKEN in {order.scenario}, seed {order.seed}: {name}{times}")
        _say(f"  {first['what']}")
        _say(f"  the events before {first['at']:.4f} s:")
        for event in first["events"]:
            _say(f"    {event[:170]}")
        _say()
    troubles = ", ".join(f"{name} ({count})" for name, count in sorted(result["troubles"].items())) or "none"
    _say(f"troubles: {troubles}")
    _say(f"sizes:    {result['sizes']}")
    _say(f"{_costs([result])}, trace {result['digest']}")
    if result["broken"]:
        _say(f"replay:   {order.command} -v")
        _say(f"minimise: {order.command} --minimise")


def _record(order, told):
    """Run pieces of seeds that are not recorded yet, and record each."""
    record, began, code = Record(order.scenario), real_monotonic(), 0
    for piece in pieces(_seeds(told.seeds)):
        if record.has_piece(piece):
            continue
        left = told.seconds - (real_monotonic() - began)
        now = argparse.Namespace(**{**vars(told), "seeds": f"{piece[0]}-{piece[-1]}", "seconds": left})
        failed, results = _many(order, now)
        code |= failed
        if len(results) < len(piece):
            break
        record.add_piece(piece, results)
    return code


def _planted(order, told):
    """Look for each fault of the scenario that is not recorded yet; return 1 where one was not found."""
    record, code = Record(order.scenario) if told.record else None, 0
    for fault in planted_faults.PLANTED.values():
        if fault.scenario != order.scenario or (record is not None and record.has_fault(fault.name)):
            continue
        _, results = _many(evolve(order, fault=fault.name), told)
        last = results[-1]
        found = invariants(last)
        code |= not found
        where = f"seed {last['seed']}: {found[0]}" if found else f"NOT FOUND in {len(results)} seeds"
        _say(f"{fault.name}: {where}")
        if record is not None:
            record.add_fault(fault.name, last, found)
    return code


def _many(order, told):
    began, bad = real_monotonic(), 0
    results = []
    for seed in _seeds(told.seeds):
        if real_monotonic() - began > told.seconds or (bad and told.stop):
            break
        now = evolve(order, seed=seed)
        result = simulate(now)
        results.append(result)
        broken = invariants(result)
        bad += bool(broken)
        if told.json:
            _say(json.dumps(result))
        elif broken and not told.planted:
            what = next((each["what"] for each in result["broken"] if each["invariant"] == broken[0]), "")
            _say(f"seed {seed}: {'; '.join(broken)}\n    {what[:400]}\n    {now.command} -v")
    if order.fault is not None and not any(each["fault_used"] for each in results):
        raise planted_faults.NotPlanted(f"{order.fault}: its code was never reached")
    if not (told.json or told.planted):
        _summarise(results, bad)
    return (1 if bad else 0), results


def _seeds(text):
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _faults(name):
    gone = 0
    for each in planted_faults.PLANTED.values():
        if each.scenario == name:
            problem = applies(each.name)
            gone += problem is not None
            _say(f"{each.name}: {problem or each.what}")
    return 1 if gone else 0


def _summarise(results, bad):
    _say(f"{len(results)} seeds, {bad} with a failure; {_costs(results)}")


def _costs(results):
    cpu = max(sum(each["cpu"] for each in results), 1e-9)
    hours, served = sum(each["virtual"] for each in results) / 3600, sum(each["served"] for each in results)
    return (
        f"{hours:.2f} virtual hours, {served} requests, {cpu:.1f} s of CPU:"
        f" {hours / cpu:.2f} virtual hours and {served / cpu:.0f} requests per CPU second"
    )
