"""What must hold of a job whose requests others send: judged by what left, what the platform did and the input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import broker_network
from .job_checks import DONE_WORDS, UNEVEN, _excess, _had_no_effect, _is_so, _states, _took_effect, check_report
from .network import ALL_TROUBLES
from .virtual_time import TIME

if TYPE_CHECKING:
    from .jetstream_job import JetStreamJobScenario
    from .job_checks import Pair
    from .network import Sending

__all__ = ["check_all", "check_worker"]

SLOW = 0.5
"""Seconds of a usual round trip from which on an attempt may last longer than it may."""

LATE = 0.1
"""Seconds after its time in which a worker uses a slot."""


def check_worker(job: JetStreamJobScenario, sending: Sending) -> None:
    """Check that a worker sends, and that it keeps its places."""
    workers = {role.name for role in job.roles}
    process = sending.process
    assert process is not None
    by_worker = process.name.partition(".")[0] in workers
    job.world.check("workers send, and nobody else", by_worker, lambda: f"{sending} leaves {process.name}")
    count = job.network.in_flight[process]
    job.world.check("concurrency holds", count <= job.sizes.places, lambda: f"{sending} is the {count}th in flight")


def check_all(job: JetStreamJobScenario) -> None:
    """Check everything that must hold once a job is done."""
    states = _states(job)
    effects = {pair: [each for each in job.sent_for[pair] if _took_effect(each, pair)] for pair in job.pairs}
    check_report(job, states)
    for pair in job.pairs:
        if pair in states:
            _check_account(job, pair, states[pair], effects[pair])
    _check_rate(job)


def _check_account(job: JetStreamJobScenario, pair: Pair, state: tuple[str, str], effects: list[Sending]) -> None:
    world, sent = job.world, job.sent_for[pair]
    said, why = state
    done = said in DONE_WORDS
    told = f"{pair[1]} in {pair[0]} is {said} ({why}); sent: {'; '.join(map(str, sent)) or 'never'}"
    world.check("no account is lost", not said.startswith("waiting"), told)
    world.check("done is done", not done or (_is_so(job, pair) and pair[1] not in job.poison), told)
    world.check("refused is not done", said not in {"refused", "failed"} or not effects, told)
    if said == "unknown":
        world.check("unknown only after trouble", _troubled(job), told)
    world.check("no effect is unreported", not effects or done or said == "unknown", told)
    if job.never:
        world.check("never is at most once", len(effects) <= 1, told)
        certain = all(_had_no_effect(each) for each in sent[:-1])
        world.check("never is sent again only if it had no effect", certain, told)


def _troubled(job: JetStreamJobScenario) -> bool:
    happened = job.world.happened
    names = ("kill", "worker-kill", "freeze", "interruption", "disk-error", *ALL_TROUBLES, *broker_network.TROUBLES)
    return any(happened[name] for name in names) or job.weather.latency >= SLOW


def _check_rate(job: JetStreamJobScenario) -> None:
    """Check the rate of all workers by the times at which requests left; but where clocks of servers differ, and jump."""
    rate, world = job.sizes.shared, job.world
    if rate is None or world.happened["broker-clocks"]:
        return
    times = [each.left for each in job.network.sendings if each.process is not None]
    frozen = [each for each in job.network.sendings if each.process in job.frozen]
    late = min(len(frozen), job.sizes.places) * len(job.frozen)  # what was about to leave when its worker was frozen
    worst = max(0.0, _excess(rate, sorted(times))) if times else 0.0
    allowed = UNEVEN + rate.limit / rate.per * LATE + late
    text = f"{rate.limit:g}/s: {worst:.1f} requests too many of {len(times)} until {TIME.now:.1f} s"
    world.check("workers keep one rate together", worst <= allowed, text)
