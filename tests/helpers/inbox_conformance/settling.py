"""Cases about results: done, retry, dead letter, release, renew, and what a holder may do whose lease is lost."""

from helpers.deliveries import delivery
from helpers.inbox_conformance.case import Cases, accepted, cancelled, check, lost, same, told

CASES = Cases()


@CASES.add("done: the last event ends the lease, and a new event begins another one")
async def _(bench):
    async with bench.open(delivery(1)) as (inbox, backlog):
        (first,) = await bench.claim(backlog)
        same(list(await backlog.done((first,), more=3)), [], "the next events of a conversation without any")
        await bench.nothing(backlog, "its only event is done")
        await inbox.accept(delivery(2))
        (second,) = await bench.claim(backlog)
        same(told([second]), ["2"], "the event")
        check(second.fence > first.fence, f"fence {second.fence} follows {first.fence}; required: fences grow")


@CASES.add("done: the next events come under the same lease, also those that were claimed before")
async def _(bench):
    async with bench.open(*(delivery(n) for n in range(5))) as (_inbox, backlog):
        claims = await bench.claim(backlog)
        following = list(await backlog.done(claims, more=2))
        same(told(following), ["1", "2"], "done(0, more=2)")
        following = list(await backlog.done(following[:1], more=3))
        same(told(following), ["2", "3", "4"], "done(1, more=3)")
        same({claim.fence for claim in following}, {claims[0].fence}, "the fences")
        same(list(await backlog.done(following[:2], more=0)), [], "done(2 and 3, more=0)")
        same(told(await bench.claim(backlog)), ["4"], "the event that is left")


@CASES.add("done: without more the lease ends, and the rest can be claimed")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (_inbox, backlog):
        (first,) = await bench.claim(backlog)
        await backlog.done((first,), more=0)
        (second,) = await bench.claim(backlog)
        same(told([second]), ["2"], "the event")
        check(second.fence > first.fence, f"fence {second.fence} follows {first.fence}; required: fences grow")


@CASES.add("done: a settled event cannot be settled again")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (_inbox, backlog):
        (first,) = await bench.claim(backlog)
        same(told(await backlog.done((first,), more=1)), ["2"], "the next event")
        await lost(backlog.done((first,), more=1), "done of an event that is done")
        await lost(backlog.retry(first, error="", pause=0), "retry of an event that is done")
        await lost(backlog.dead_letter(first, error="", more=0), "dead_letter of an event that is done")


@CASES.add("done: one that is cancelled loses nothing")
async def _(bench):
    for steps in range(8):
        given = [delivery(f"{steps}{n}") for n in range(3)]
        async with bench.open(*given) as (_inbox, backlog):
            (claim,) = await bench.claim(backlog)

            following = []

            async def settle(backlog=backlog, claim=claim, following=following):
                following += await backlog.done((claim,), more=1)

            await cancelled(steps, settle)
            for each in following:
                await backlog.release(each)
            await backlog.release(claim)
            handled = told(await bench.handle(backlog, 2))
            if handled[0] == f"{steps}0":
                handled = [*handled, *told(await bench.handle(backlog, 1))][1:]
            same(handled, [f"{steps}1", f"{steps}2"], "the events behind the one whose done was cancelled")
            await bench.nothing(backlog, "all were handled")


@CASES.add("retry: its conversation pauses, all others do not")
async def _(bench):
    async with bench.open(delivery(1), delivery(2), delivery(3, team="c")) as (_inbox, backlog):
        claims = {told([claim])[0]: claim for claim in await bench.claim(backlog, 2, limit=2)}
        await backlog.release(claims["3"])
        await backlog.retry(claims["1"], error="a traceback", pause=60)
        await lost(backlog.done((claims["1"],), more=0), "done after a retry")
        (other,) = await bench.claim(backlog)
        same(told([other]), ["3"], "the event of the other conversation")
        await backlog.done((other,), more=0)
        await bench.nothing(backlog, "its conversation pauses")
        await bench.place.pass_time(59)
        await bench.nothing(backlog, "its conversation pauses for one more second")
        await bench.place.pass_time(2)
        (again,) = await bench.claim(backlog)
        same((told([again]), again.attempt, again.crashes), (["1"], 2, 0), "event, attempt and crashes after the pause")
        same(told(await backlog.done((again,), more=1)), ["2"], "the event behind it")


@CASES.add("retry: attempts count up, without a pause too")
async def _(bench):
    async with bench.open(delivery(1)) as (_inbox, backlog):
        for attempt in range(1, 5):
            (claim,) = await bench.claim(backlog)
            same(claim.attempt, attempt, "the attempt")
            await backlog.retry(claim, error="", pause=0)


@CASES.add("dead letter: the event is kept with its traceback, and the next one follows")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await backlog.retry(claim, error="the first", pause=0)
        (claim,) = await bench.claim(backlog)
        following = await backlog.dead_letter(claim, error="the \ud800 last\n", more=1)
        same((told(following), [each.fence for each in following]), (["2"], [claim.fence]), "the next event and its fence")
        await lost(backlog.dead_letter(claim, error="", more=1), "dead_letter of a dead letter")
        same(list(await backlog.done(following, more=1)), [], "the next events of a conversation without any")
        (dead,) = await inbox.dead_letters()
        same((dead.number, dead.body, dead.attempts), (claim.number, claim.body, 2), "the dead letter")
        check("last" in dead.error, f"its error is {dead.error!r}; required: the traceback of its last attempt")
        await accepted(inbox, delivery(1), new=False)


@CASES.add("release: the event comes at once, and no attempt counts")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (_inbox, backlog):
        (first,) = await bench.claim(backlog)
        await backlog.release(first)
        await backlog.release(first)
        (again,) = await bench.claim(backlog)
        same((told([again]), again.attempt, again.crashes), (["1"], 1, 0), "event, attempt and crashes")
        check(again.fence > first.fence, f"fence {again.fence} follows {first.fence}; required: fences grow")


OLD = {
    "done": lambda backlog, claim: backlog.done((claim,), more=1),
    "retry": lambda backlog, claim: backlog.retry(claim, error="", pause=60),
    "dead_letter": lambda backlog, claim: backlog.dead_letter(claim, error="", more=1),
    "begin": lambda backlog, claim: backlog.begin(claim),
}


@CASES.add("fences: with an old one nothing is recorded")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (inbox, backlog):
        (old,) = await bench.claim(backlog)
        await backlog.release(old)
        for name, call in OLD.items():
            await lost(call(backlog, old), f"{name} after the release")
        (new,) = await bench.claim(backlog)
        for name, call in OLD.items():
            await lost(call(backlog, old), f"{name} with the fence of an older lease")
        await backlog.release(old)
        await backlog.discount((old,))
        same(list(await backlog.renew((old, new))), [old], "the lost claims of renew(old, new)")
        await bench.nothing(backlog, "its conversation is leased, and a release with an old fence has no effect")
        same((told([new]), new.attempt), (["1"], 1), "event and attempt")
        same(told(await backlog.done((new,), more=1)), ["2"], "the next event")
        same(await inbox.dead_letters(), [], "the dead letters")


@CASES.add("leases: one that is over is lost, though its worker lives", durable=True)
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (inbox, backlog):
        (old,) = await bench.claim(backlog)
        await bench.place.pass_time(inbox.lease + 1)
        async with bench.worker() as other:
            (new,) = await bench.claim(other)
            same(told([new]), ["1"], "the event")
            for name, call in OLD.items():
                await lost(call(backlog, old), f"{name} after the lease")
            same(list(await backlog.renew((old,))), [old], "the lost claims of renew")
            await other.done((new,), more=0)
            same(told(await bench.handle(other, 1)), ["2"], "the next event")


@CASES.add("leases: renewed in time, they last")
async def _(bench):
    async with bench.open(delivery(1)) as (inbox, backlog):
        (claim,) = await bench.claim(backlog)
        async with bench.worker() as other:
            for _ in range(3):
                if inbox.lease != float("inf"):
                    await bench.place.pass_time(inbox.lease * 0.6)
                same(list(await backlog.renew((claim,))), [], "the lost claims of renew")
                await bench.nothing(other, "the lease of its conversation was renewed")
        same(list(await backlog.done((claim,), more=1)), [], "the next events of a conversation without any")


@CASES.add("leases: begin and discount of an ordinary event change nothing for it")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (_inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await backlog.discount((claim,))
        same(told(await backlog.done((claim,), more=1)), ["2"], "the next event")
        await backlog.discount(())
        same(list(await backlog.renew(())), [], "the lost claims of none")


@CASES.add("leaving: what a backlog still holds can be claimed later, and loses nothing")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await backlog.discount((claim,))
        lease = inbox.lease
    if lease != float("inf"):
        await bench.place.pass_time(lease + 1)
    async with bench.worker() as later:
        handled = await bench.handle(later, 2)
        same(told(handled), ["1", "2"], "the events")
        same([claim.crashes for claim in handled], [0, 0], "their crashes")
        await bench.nothing(later, "all were handled")
