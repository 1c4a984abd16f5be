"""Cases about claims: order and gaps, one holder of a conversation at a time, waiting, several workers."""

from collections import defaultdict

import anyio
from anyio.lowlevel import checkpoint

from helpers.deliveries import delivery
from helpers.inbox_conformance.case import Cases, accepted, cancelled, check, same, told

CASES = Cases()


@CASES.add("order: the events of a conversation come in the order of acceptance")
async def _(bench):
    async with bench.open(*(delivery(n, team=f"t{n % 3}") for n in range(18))) as (_inbox, backlog):
        handled = await bench.handle(backlog, 18)
        for team in range(3):
            found = [claim for claim in handled if claim.conversation.endswith(f"t{team}")]
            same(told(found), [str(n) for n in range(team, 18, 3)], f"the events of conversation {team}")


@CASES.add("claims: a conversation's events come without gaps, from the oldest on")
async def _(bench):
    async with bench.open(*(delivery(n) for n in range(6))) as (_inbox, backlog):
        claims = await bench.claim(backlog, limit=4)
        same(told(claims), [str(n) for n in range(len(claims))], "the events of one claim")
        check(len({claim.fence for claim in claims}) == 1, "they have several fences; required: one lease")
        await bench.nothing(backlog, "its conversation is leased")


@CASES.add("claims: never more than the limit, and one of each conversation first")
async def _(bench):
    async with bench.open(*(delivery(n, team=f"t{n % 3}") for n in range(9))) as (_inbox, backlog):
        for limit in (2, 1, 5):
            claims = await bench.claim(backlog, limit=limit)
            conversations = {claim.conversation for claim in claims}
            check(len(claims) <= limit, f"claim({limit}) returned {len(claims)} events")
            check(limit > 2 or len(conversations) == len(claims), "a conversation came twice before another one came")
            for claim in {claim.conversation: claim for claim in reversed(claims)}.values():
                await backlog.release(claim)


@CASES.add("claims: a leased conversation is not claimed again, also by other workers")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await bench.nothing(backlog, "its conversation is leased")
        async with bench.worker() as other:
            await bench.nothing(other, "its conversation is leased by another worker")
            await accepted(inbox, delivery(3), new=True)
            await bench.nothing(other, "its conversation is leased by another worker")
        same(told(await backlog.done((claim,), more=5)), ["2", "3"], "the next events")


@CASES.add("claims: of several tasks at once, no conversation goes to two")
async def _(bench):
    claims = []

    async def claim():
        claims.extend(await backlog.claim(2))

    async with bench.open(*(delivery(n, team=f"t{n % 8}") for n in range(24))) as (_inbox, backlog):
        await backlog.wait()
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(claim)
        fences = defaultdict(set)
        for each in claims:
            fences[each.conversation].add(each.fence)
        same([len(each) for each in fences.values()], [1] * len(fences), "the fences of each conversation")
        same(len({each.number for each in claims}), len(claims), "the number of different events")


@CASES.add("claims: two workers handle every event once, each conversation in order")
async def _(bench):
    handled = []
    busy = set()

    async def work(backlog, over):
        while True:
            for claim in await backlog.claim(1):
                check(claim.conversation not in busy, "a conversation was with two workers at once; required: one")
                busy.add(claim.conversation)
                await checkpoint()
                handled.append(claim)
                busy.discard(claim.conversation)
                await backlog.done((claim,), more=0)
            if len(handled) >= 40:  # all of them
                over.cancel()
            await backlog.wait()

    async with bench.open(*(delivery(n, team=f"t{n % 5}") for n in range(40))) as (_inbox, one), bench.worker() as two:
        with anyio.move_on_after(20) as scope:
            async with anyio.create_task_group() as tasks:
                for backlog in (one, two):
                    tasks.start_soon(work, backlog, tasks.cancel_scope)
        check(not scope.cancelled_caught, f"{len(handled)} events were handled within 20 s; required: 40")
    for team in range(5):
        found = [claim for claim in handled if claim.conversation.endswith(f"t{team}")]
        same(told(found), [str(n) for n in range(team, 40, 5)], f"the events of conversation {team}")


@CASES.add("claims: one that is cancelled loses nothing")
async def _(bench):
    async with bench.open(*(delivery(n, team=f"t{n % 2}") for n in range(4))) as (_inbox, backlog):
        held = []

        async def claim():
            held.extend(await backlog.claim(4))

        for steps in range(8):
            await cancelled(steps, claim)
            for each in {each.conversation: each for each in reversed(held)}.values():
                await backlog.release(each)
            held.clear()
        handled = await bench.handle(backlog, 4)
        for team in range(2):
            found = [claim for claim in handled if claim.conversation.endswith(f"t{team}")]
            same(told(found), [str(team), str(team + 2)], f"the events of conversation {team}")
            same([claim.attempt for claim in found], [1, 1], "their attempts")


async def _wakes(backlog, act, what):
    """Check that one who waits is woken by something."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(backlog.wait)
        await anyio.sleep(0.01)
        await act
        tasks.cancel_scope.deadline = anyio.current_time() + 5
    check(not tasks.cancel_scope.cancelled_caught, f"wait() did not end within 5 s after {what}")


@CASES.add("waiting: it ends at once while an event can be claimed")
async def _(bench):
    async with bench.open(delivery(1)) as (_inbox, backlog):
        for _ in range(2):
            with anyio.fail_after(5):
                await backlog.wait()


@CASES.add("waiting: one that is cancelled at once misses nothing for the next")
async def _(bench):
    async with bench.open(delivery(1)) as (_inbox, backlog):
        await anyio.sleep(0.01)  # the backlog has heard of the event
        with anyio.CancelScope() as scope:
            scope.cancel()
            await backlog.wait()
        with anyio.move_on_after(5) as patience:
            await backlog.wait()
        check(not patience.cancelled_caught, "wait() did not end within 5 s although an event can be claimed")


@CASES.add("waiting: it ends when an event is accepted, and may be cancelled")
async def _(bench):
    async with bench.open() as (inbox, backlog):
        with anyio.move_on_after(0.01) as scope:
            await backlog.wait()
        check(scope.cancelled_caught, "wait() ended although there is no event")
        await _wakes(backlog, inbox.accept(delivery(1)), "an event was accepted")
        await bench.handle(backlog, 1)


@CASES.add("waiting: it ends when another process has accepted an event", durable=True)
async def _(bench):
    async with bench.open() as (_inbox, backlog), bench.inbox() as other:
        await _wakes(backlog, other.accept(delivery(1)), "another process's accept()")
        same(told(await bench.claim(backlog)), ["1"], "the event")


@CASES.add("waiting: it ends when another task gives an event back")
async def _(bench):
    async with bench.open(delivery(1)) as (_inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await _wakes(backlog, backlog.release(claim), "a release")


@CASES.add("waiting: it ends when a pause is over")
async def _(bench):
    async with bench.open(delivery(1)) as (_inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await backlog.retry(claim, error="", pause=1.0)
        await _wakes(backlog, bench.place.pass_time(1.1), "a pause was over")
        same(told(await bench.claim(backlog)), ["1"], "the event")


@CASES.add("backlog: it works without its inbox being entered, and after it was left", durable=True)
async def _(bench):
    async with bench.inbox() as inbox:
        for number in range(2):
            await inbox.accept(delivery(number))
    async with bench.worker() as backlog:
        same(told(await bench.handle(backlog, 2)), ["0", "1"], "the events")


@CASES.add("backlog: one in another thread and event loop handles what is accepted here")
async def _(bench):
    from anyio import from_thread, to_thread

    from rbim._support.event_loops import backend

    found = []

    async def work():
        async with inbox.backlog() as backlog:
            found.append(told(await bench.handle(backlog, 2)))

    def run():
        from_thread.check_cancelled()
        anyio.run(work, backend=kind)

    kind = backend()
    async with bench.inbox() as inbox, anyio.create_task_group() as tasks:
        tasks.start_soon(to_thread.run_sync, run)
        for number in range(2):
            await inbox.accept(delivery(number))
    same(found, [["0", "1"]], "the events that another thread handled")
