"""Cases about workers that die: their events are claimed again, and those that may be the cause are handled alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from helpers.inbox_conformance.case import Bench, Cases, check, delivery, same, told

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.callbacks.inbox.protocols import Backlog, Claim

__all__ = ["CASES"]

CASES = Cases("inbox", "deaths", "durable")


async def _dies(bench: Bench, work: Callable[[Backlog], Awaitable[object]]) -> None:
    """Let a worker do something and die."""
    async with bench.worker() as backlog:
        await work(backlog)
        await bench.place.kill(backlog)


async def _claims_one(bench: Bench) -> None:
    await _dies(bench, bench.claim)


async def _claim_suspect(bench: Bench, backlog: Backlog, crashes: int) -> Claim:
    claims = await bench.claim(backlog, limit=10)
    same([claim.crashes for claim in claims], [crashes], "the crashes of what was claimed, a suspect alone")
    return claims[0]


@CASES.add("deaths: what was claimed is claimed again, what was done is not")
async def _(bench: Bench) -> None:
    async def work(backlog: Backlog) -> None:
        (claim,) = await bench.claim(backlog)
        await anyio.sleep(bench.subject.delay)
        same(told(await backlog.done((claim,), more=1)), ["2"], "the next event")

    async with bench.inbox() as inbox:
        for number in range(1, 4):
            await inbox.accept(delivery(number))
        await _dies(bench, work)
        async with bench.worker() as later:
            claim = await _claim_suspect(bench, later, 1)
            same((told([claim]), claim.attempt), (["2"], 1), "event and attempt: a crash is no attempt")
            await later.begin(claim)
            same(list(await later.done((claim,), more=3)), [], "the next events: the lease of a suspect ends with it")
            (claim,) = await bench.claim(later)
            same((told([claim]), claim.crashes), (["3"], 0), "the event behind it and its crashes")


@CASES.add("deaths: the oldest event of each lease is suspected, and nothing else")
async def _(bench: Bench) -> None:
    async def work(backlog: Backlog) -> None:
        await anyio.sleep(bench.subject.delay)
        claims = await bench.claim(backlog, 2, limit=2)
        same(sorted(told(claims)), ["1", "3"], "the events of two conversations")

    async with bench.inbox() as inbox:
        for number, team in enumerate("bbcc", start=1):
            await inbox.accept(delivery(number, team=team))
        await _dies(bench, work)
        await inbox.accept(delivery(5, team="d"))
        async with bench.worker() as later:
            handled: list[tuple[str, int]] = []
            while len(handled) < 5:  # all of them
                for claim in await bench.claim(later):
                    handled += [(told([claim])[0], claim.crashes)]
                    if claim.crashes:
                        await later.begin(claim)
                    await later.done((claim,), more=0)
            same(sorted(handled), [("1", 1), ("2", 0), ("3", 1), ("4", 0), ("5", 0)], "events and crashes")


@CASES.add("deaths: at most one suspect is leased at a time by a worker")
async def _(bench: Bench) -> None:
    async def work(backlog: Backlog) -> None:
        await bench.claim(backlog, 2, limit=1)

    async with bench.inbox() as inbox:
        for number, team in enumerate("bc"):
            await inbox.accept(delivery(number, team=team))
        await _dies(bench, work)
        async with bench.worker() as later:
            first = await _claim_suspect(bench, later, 1)
            await anyio.sleep(bench.subject.delay)
            same(list(await later.claim(10)), [], "what can be claimed while a suspect is leased")
            await later.begin(first)
            same(list(await later.claim(10)), [], "what can be claimed while a suspect is on trial")
            await later.done((first,), more=0)
            second = await _claim_suspect(bench, later, 1)
            check(second.number != first.number, "the same suspect was claimed again; required: the other one")


@CASES.add("deaths: only a suspect that has begun crashes again")
async def _(bench: Bench) -> None:
    async def claims(backlog: Backlog) -> None:
        await _claim_suspect(bench, backlog, 1)

    async def begins(backlog: Backlog) -> None:
        await backlog.begin(await _claim_suspect(bench, backlog, 1))

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        for work in (bench.claim, claims, begins):
            await _dies(bench, work)
        async with bench.worker() as later:
            claim = await _claim_suspect(bench, later, 2)
            same(claim.attempt, 1, "the attempt: a crash is none")


@CASES.add("deaths: of a worker that is being stopped, nothing is suspected")
async def _(bench: Bench) -> None:
    async def absolves(backlog: Backlog) -> None:
        await backlog.absolve(await bench.claim(backlog))

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _dies(bench, absolves)
        async with bench.worker() as later:
            (claim,) = await bench.claim(later)
            same((claim.crashes, claim.attempt), (0, 1), "crashes and attempt")


@CASES.add("deaths: a suspect that is absolved on trial stays one, and has not crashed again")
async def _(bench: Bench) -> None:
    async def begins(backlog: Backlog) -> None:
        claim = await _claim_suspect(bench, backlog, 1)
        await backlog.begin(claim)
        await backlog.absolve((claim,))

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _claims_one(bench)
        await _dies(bench, begins)
        async with bench.worker() as later:
            await _claim_suspect(bench, later, 1)


@CASES.add("deaths: a suspect that is given back stays one; a failed attempt clears it")
async def _(bench: Bench) -> None:
    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _claims_one(bench)
        async with bench.worker() as later:
            await later.release(await _claim_suspect(bench, later, 1))
            claim = await _claim_suspect(bench, later, 1)
            await later.begin(claim)
            await later.release(claim)
            claim = await _claim_suspect(bench, later, 1)
            await later.begin(claim)
            await later.retry(claim, error="", pause=0)
            (claim,) = await bench.claim(later)
            same((claim.crashes, claim.attempt), (0, 2), "crashes and attempt after a failed attempt")


@CASES.add("deaths: a suspect that is cleared is an ordinary event, and others go beside it")
async def _(bench: Bench) -> None:
    async def claims_all(backlog: Backlog) -> None:
        await bench.claim(backlog, 2, limit=1)

    async with bench.inbox() as inbox:
        for number, team in enumerate("bc"):
            await inbox.accept(delivery(number, team=team))
        await _dies(bench, claims_all)
        async with bench.worker() as later:
            first = await _claim_suspect(bench, later, 1)
            await later.begin(first)
            await later.clear(first)
            await later.clear(first)
            second = await _claim_suspect(bench, later, 1)
            check(second.number != first.number, "the same suspect was claimed again; required: the other one")
            await later.retry(first, error="", pause=0)
            await later.begin(second)
            await later.done((second,), more=0)
            await later.clear(second)
            (again,) = await bench.claim(later)
            same((again.number, again.crashes, again.attempt), (first.number, 0, 2), "number, crashes and attempt")


@CASES.add("deaths: a suspect becomes a dead letter like others", "archive")
async def _(bench: Bench) -> None:
    async with bench.inbox() as inbox:
        for number in range(2):
            await inbox.accept(delivery(number))
        await _claims_one(bench)
        async with bench.worker() as later:
            claim = await _claim_suspect(bench, later, 1)
            same(list(await later.dead_letter(claim, error="it crashed", more=1)), [], "the next events")
            (claim,) = await bench.claim(later)
            same((told([claim]), claim.crashes), (["1"], 0), "the event behind it and its crashes")
        (dead,) = await bench.archive(inbox).dead_letters()
        same(dead.error, "it crashed", "the error of the dead letter")


@CASES.add("deaths: attempts and pauses survive")
async def _(bench: Bench) -> None:
    async def fails(backlog: Backlog) -> None:
        (claim,) = await bench.claim(backlog)
        await backlog.retry(claim, error="", pause=1000)

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _dies(bench, fails)
        async with bench.worker() as later:
            await bench.nothing(later, "its conversation pauses")
            await bench.place.pass_time(1000)
            (claim,) = await bench.claim(later)
            same((claim.attempt, claim.crashes), (2, 0), "attempt and crashes")
