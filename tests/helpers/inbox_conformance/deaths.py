"""Cases about workers that die: their events are claimed again, and those that had begun are retried alone."""

from attrs import evolve

from helpers.deliveries import delivery
from helpers.inbox_conformance.case import Cases, check, same, told

CASES = Cases(durable=True)


async def _dies(bench, work):
    async with bench.worker() as backlog:
        await work(backlog)
        await bench.place.kill(backlog)


async def _claim_alone(bench, backlog, crashes):
    claims = await bench.claim(backlog, limit=10)
    same([claim.crashes for claim in claims], [crashes], "the crashes of an event that is retried alone")
    return claims[0]


@CASES.add("deaths: what was claimed is claimed again, what was done is not")
async def _(bench):
    async def work(backlog):
        (claim,) = await bench.claim(backlog)
        same(told(await backlog.done((claim,), more=1)), ["2"], "the next event")

    async with bench.inbox() as inbox:
        for number in range(1, 4):
            await inbox.accept(delivery(number))
        await _dies(bench, work)
        async with bench.worker() as later:
            claim = await _claim_alone(bench, later, 1)
            same((told([claim]), claim.attempt), (["2"], 1), "event and attempt: a crash is no attempt")
            await later.begin(claim)
            same(list(await later.done((claim,), more=3)), [], "the next events: its lease ends with it")
            (claim,) = await bench.claim(later)
            same((told([claim]), claim.crashes), (["3"], 0), "the event behind it and its crashes")


@CASES.add("deaths: the oldest event of each lease is retried alone, and nothing else")
async def _(bench):
    async def work(backlog):
        claims = await bench.claim(backlog, 2, limit=2)
        same(sorted(told(claims)), ["1", "3"], "the events of two conversations")

    async with bench.inbox() as inbox:
        for number, team in enumerate("bbcc", start=1):
            await inbox.accept(delivery(number, team=team))
        await _dies(bench, work)
        await inbox.accept(delivery(5, team="d"))
        async with bench.worker() as later:
            handled = []
            while len(handled) < 5:  # all of them
                for claim in await bench.claim(later):
                    handled += [(told([claim])[0], claim.crashes)]
                    if claim.crashes:
                        await later.begin(claim)
                    await later.done((claim,), more=0)
            same(sorted(handled), [("1", 1), ("2", 0), ("3", 1), ("4", 0), ("5", 0)], "events and crashes")


@CASES.add("deaths: a worker leases one event to retry alone at a time")
async def _(bench):
    async def work(backlog):
        await bench.claim(backlog, 2, limit=1)

    async with bench.inbox() as inbox:
        for number, team in enumerate("bc"):
            await inbox.accept(delivery(number, team=team))
        await _dies(bench, work)
        async with bench.worker() as later:
            first = await _claim_alone(bench, later, 1)
            same(list(await later.claim(10)), [], "what can be claimed while one is leased")
            await later.begin(first)
            same(list(await later.claim(10)), [], "what can be claimed while one is retried alone")
            await later.done((first,), more=0)
            second = await _claim_alone(bench, later, 1)
            check(second.number != first.number, "the same event was claimed again; required: the other one")


@CASES.add("deaths: only what has begun alone crashes again")
async def _(bench):
    async def claims(backlog):
        await _claim_alone(bench, backlog, 1)

    async def begins(backlog):
        await backlog.begin(await _claim_alone(bench, backlog, 1))

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        for work in (bench.claim, claims, begins):
            await _dies(bench, work)
        async with bench.worker() as later:
            claim = await _claim_alone(bench, later, 2)
            same(claim.attempt, 1, "the attempt: a crash is none")


@CASES.add("deaths: of a worker that is being stopped, nothing is retried alone")
async def _(bench):
    async def discounts(backlog):
        await backlog.discount(await bench.claim(backlog))

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _dies(bench, discounts)
        async with bench.worker() as later:
            (claim,) = await bench.claim(later)
            same((claim.crashes, claim.attempt), (0, 1), "crashes and attempt")


@CASES.add("deaths: what is discounted while it is retried alone is retried alone again, and has not crashed")
async def _(bench):
    async def begins(backlog):
        claim = await _claim_alone(bench, backlog, 1)
        await backlog.begin(claim)
        await backlog.discount((claim,))

    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _dies(bench, bench.claim)
        await _dies(bench, begins)
        async with bench.worker() as later:
            await _claim_alone(bench, later, 1)


@CASES.add("deaths: what a worker gives back that ends without being stopped is retried alone")
async def _(bench):
    async with bench.open(delivery(1), delivery(2, team="c")) as (_inbox, backlog):
        claims = {told([claim])[0]: claim for claim in await bench.claim(backlog, 2, limit=2)}
        await backlog.release(claims["1"], died=True)
        await backlog.release(claims["2"])
        first = await _claim_alone(bench, backlog, 1)
        same(told([first]), ["1"], "the event")
        await backlog.begin(first)
        await backlog.release(first, died=True)
        first = await _claim_alone(bench, backlog, 2)
        await backlog.begin(first)
        await backlog.done((first,), more=0)
        (second,) = await bench.claim(backlog)
        same((told([second]), second.crashes, second.attempt), (["2"], 0, 1), "event, crashes and attempt")


@CASES.add("deaths: what is given back is retried alone again; after a failed attempt it is not")
async def _(bench):
    async with bench.inbox() as inbox:
        await inbox.accept(delivery(1))
        await _dies(bench, bench.claim)
        async with bench.worker() as later:
            await later.release(await _claim_alone(bench, later, 1))
            claim = await _claim_alone(bench, later, 1)
            await later.begin(claim)
            await later.release(claim)
            claim = await _claim_alone(bench, later, 1)
            await later.begin(claim)
            await later.retry(claim, error="", pause=0)
            (claim,) = await bench.claim(later)
            same((claim.crashes, claim.attempt), (0, 2), "crashes and attempt after a failed attempt")


@CASES.add("deaths: what counts no longer is an ordinary event, and others go beside it")
async def _(bench):
    async def claims_all(backlog):
        await bench.claim(backlog, 2, limit=1)

    async with bench.inbox() as inbox:
        for number, team in enumerate("bc"):
            await inbox.accept(delivery(number, team=team))
        await _dies(bench, claims_all)
        async with bench.worker() as later:
            first = await _claim_alone(bench, later, 1)
            await later.begin(first)
            cleared = evolve(first, crashes=0)
            await later.discount((cleared,))
            await later.discount((cleared,))
            second = await _claim_alone(bench, later, 1)
            check(second.number != first.number, "the same event was claimed again; required: the other one")
            await later.retry(first, error="", pause=0)
            await later.begin(second)
            await later.done((second,), more=0)
            await later.discount((evolve(second, crashes=0),))
            (again,) = await bench.claim(later)
            same((again.number, again.crashes, again.attempt), (first.number, 0, 2), "number, crashes and attempt")


@CASES.add("deaths: what is retried alone becomes a dead letter like others")
async def _(bench):
    async with bench.inbox() as inbox:
        for number in range(2):
            await inbox.accept(delivery(number))
        await _dies(bench, bench.claim)
        async with bench.worker() as later:
            claim = await _claim_alone(bench, later, 1)
            same(list(await later.dead_letter(claim, error="it crashed", more=1)), [], "the next events")
            (claim,) = await bench.claim(later)
            same((told([claim]), claim.crashes), (["1"], 0), "the event behind it and its crashes")
        (dead,) = await inbox.dead_letters()
        same(dead.error, "it crashed", "the error of the dead letter")


@CASES.add("deaths: attempts and pauses survive")
async def _(bench):
    async def fails(backlog):
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
