"""Cases about the archive: counts, ages, dead letters and quarantine, and what people do with them; restarts."""

from datetime import timedelta

from helpers.deliveries import delivery
from helpers.inbox_conformance.case import AT, Cases, accepted, check, same, told
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.events import Message, Picture, Text
from rbim.errors import InvalidRequest

CASES = Cases()

QUARANTINED = "a problem of these tests"


async def _bury(bench, backlog, count):
    numbers = []
    for _ in range(count):
        (claim,) = await bench.claim(backlog)
        await backlog.dead_letter(claim, error=f"error of {told([claim])[0]}", more=0)
        numbers.append(claim.number)
    return numbers


def _bodies(letters):
    return [letter.body for letter in letters]


async def _counted(inbox):
    counts = await inbox.counts()
    return counts.waiting, counts.dead, counts.quarantined


@CASES.add("archive: counts of waiting, dead and quarantined events")
async def _(bench):
    unreadable = delivery_of(b"no JSON", app_id="app", received=AT)
    async with bench.open(*(delivery(n) for n in range(4)), unreadable) as (inbox, backlog):
        same(await _counted(inbox), (4, 0, 1), "waiting, dead and quarantined events")
        await _bury(bench, backlog, 1)
        same(await _counted(inbox), (3, 1, 1), "the same after one became a dead letter")
        (claim,) = await bench.claim(backlog)
        same(await _counted(inbox), (3, 1, 1), "the same while one is claimed")
        await backlog.done((claim,), more=0)
        same(await _counted(inbox), (2, 1, 1), "the same after one was handled")
        same((await inbox.counts()).done, 1, "the handled events")


@CASES.add("archive: the newest events of every state, and when they came")
async def _(bench):
    unreadable = delivery_of(b"no JSON", app_id="app", received=AT)
    async with bench.open(*(delivery(n) for n in range(3)), unreadable) as (inbox, backlog):
        await _bury(bench, backlog, 1)
        found = await inbox.newest()
        same([each.state for each in found], ["quarantined", "waiting", "waiting", "dead"], "the states, the newest first")
        same([each.number for each in found], sorted((each.number for each in found), reverse=True), "the order")
        same(found[0].body, b"no JSON", "the body of the newest")
        check(found[0].error and found[-1].error and not found[1].error, "the errors of failed events alone")
        same(await inbox.newest(2), found[:2], "at most two")
        same(await inbox.newest(before=found[1].number), found[2:], "those before the second one")
        same(await inbox.newest(state="waiting"), found[1:3], "those that wait")
        same(await inbox.received(), [(each.received.timestamp(), each.state) for each in found], "when they came")


@CASES.add("archive: the lag is the age of the oldest event that waits")
async def _(bench):
    early = AT - timedelta(seconds=100)
    async with bench.open() as (inbox, backlog):
        same(await inbox.lag(), 0.0, "the lag without events")
        await inbox.accept(delivery(1, at=early))
        await inbox.accept(delivery(2, team="c", at=early + timedelta(seconds=50)))
        first = await inbox.lag()
        claims = {told([claim])[0]: claim for claim in await bench.claim(backlog, 2, limit=2)}
        await backlog.done((claims["1"],), more=0)
        second = await inbox.lag()
        check(49 < first - second < 51, f"the lag was {first:g} s, then {second:g} s; required: 50 s less")
        await backlog.done((claims["2"],), more=0)
        same(await inbox.lag(), 0.0, "the lag when all was handled")


@CASES.add("archive: dead letters and events in quarantine are shown in pages, and one by one")
async def _(bench):
    problems = [delivery(f"q{n}", problem=f"{QUARANTINED} {n}") for n in range(3)]
    given = [delivery(n, team=f"t{n}") for n in range(5)]
    async with bench.open(*given, *problems) as (inbox, backlog):
        numbers = sorted(await _bury(bench, backlog, 5))
        letters = await inbox.dead_letters()
        same([letter.number for letter in letters], numbers, "the numbers of the dead letters")
        same(_bodies(letters), [each.body for each in given], "their bodies")
        first = letters[0]
        shown = (first.key, first.conversation, first.app_id, first.received, first.attempts, first.error, first.msg_type)
        required = (given[0].key, given[0].conversation, "app", AT, 1, "error of 0", "TEXT")
        same(shown, required, "a dead letter")
        page = await inbox.dead_letters(2)
        same([letter.number for letter in page], numbers[:2], "the first two")
        page = await inbox.dead_letters(2, page[-1].number)
        same([letter.number for letter in page], numbers[2:4], "the next two")
        kept = await inbox.quarantined()
        same(_bodies(kept), [each.body for each in problems], "the events in quarantine")
        same([letter.error for letter in kept], [each.problem for each in problems], "their errors")
        same({letter.state for letter in letters}, {"dead"}, "the state of dead letters")
        same({letter.state for letter in kept}, {"quarantined"}, "the state of events in quarantine")
        page = await inbox.quarantined(1, kept[0].number)
        same(page, [kept[1]], "the second one in quarantine")
        same(await inbox.event(numbers[3]), letters[3], "a dead letter by its number")
        same(await inbox.event(kept[2].number), kept[2], "an event in quarantine by its number")
        same(await inbox.event(max(numbers[-1], kept[-1].number) + 1000), None, "an event that there is not")


@CASES.add("archive: pages of letters of a kind, of a conversation, and since a time")
async def _(bench):
    late = AT + timedelta(seconds=60)
    given = [delivery(1), delivery(2, team="c"), delivery(3, msg_type="PICTURE"), delivery(4, at=late)]
    problems = [each._replace(key=f"q{n}", problem=QUARANTINED) for n, each in enumerate(given)]
    wishes = [
        ({}, [0, 1, 2, 3]),
        ({"kind": Text}, [0, 1, 3]),
        ({"kind": "PICTURE"}, [2]),
        ({"conversation": given[1].conversation}, [1]),
        ({"conversation": "team/b"}, [0, 2, 3]),
        ({"since": late}, [3]),
        ({"kind": Text, "conversation": "team/b", "limit": 1}, [0]),
        ({"conversation": "*"}, []),
    ]
    async with bench.open(*given, *problems) as (inbox, backlog):
        await _bury(bench, backlog, 4)
        for wish, required in wishes:
            bodies = [given[place].body for place in required]
            same(_bodies(await inbox.dead_letters(**wish)), bodies, f"dead_letters({wish})")
            same(_bodies(await inbox.quarantined(**wish)), bodies, f"quarantined({wish})")


@CASES.add("archive: an event that waits or was handled is no letter")
async def _(bench):
    async with bench.open(delivery(1), delivery(2)) as (inbox, backlog):
        (done,) = await bench.handle(backlog, 1)
        (waiting,) = await bench.claim(backlog)
        for number in (done.number, waiting.number):
            same(await inbox.event(number), None, "event() of it")
            same(await inbox.requeue([number]), 0, "requeue() of it")
            same(await inbox.discard([number]), 0, "discard() of it")
        same(list(await backlog.done((waiting,), more=1)), [], "the next events")


@CASES.add("requeue: dead letters wait again, before what waits behind them, and attempts count from 1")
async def _(bench):
    async with bench.open(*(delivery(n) for n in range(4))) as (inbox, backlog):
        (claim,) = await bench.claim(backlog)
        await backlog.retry(claim, error="", pause=0)
        numbers = await _bury(bench, backlog, 2)
        (held,) = await bench.claim(backlog)
        same(await inbox.requeue([*numbers, *numbers, 10_000]), 2, "the number of requeued events")
        await backlog.release(held)
        handled = await bench.handle(backlog, 4)
        same(told(handled), ["0", "1", "2", "3"], "the events")
        same([claim.attempt for claim in handled], [1, 1, 1, 1], "their attempts")
        same([claim.number for claim in handled][:2], numbers, "the numbers of those that were requeued")
        same(await inbox.dead_letters(), [], "the dead letters")
        await accepted(inbox, delivery(0), new=False)


@CASES.add("requeue: a dead letter that fails again is a dead letter again")
async def _(bench):
    async with bench.open(delivery(1)) as (inbox, backlog):
        numbers = await _bury(bench, backlog, 1)
        for _ in range(2):
            same(await inbox.requeue(numbers), 1, "the number of requeued events")
            same(await _bury(bench, backlog, 1), numbers, "the number of the dead letter")
        same([letter.number for letter in await inbox.dead_letters()], numbers, "the dead letters")


@CASES.add("requeue: an event in quarantine waits if it can be read now")
async def _(bench):
    given = (delivery(1, problem=QUARANTINED), delivery_of(b"no JSON", app_id="app", received=AT))
    async with bench.open(*given) as (inbox, backlog):
        numbers = [letter.number for letter in await inbox.quarantined()]
        same(await inbox.requeue(numbers), 1, "the number of requeued events")
        same(told(await bench.handle(backlog, 1)), ["1"], "the events")
        same([letter.number for letter in await inbox.quarantined()], numbers[1:], "what stays in quarantine")
        await accepted(inbox, delivery(1), new=False)


@CASES.add("requeue: other content of a known key is an event of its own")
async def _(bench):
    first = delivery(1)
    other = first._replace(body=first.body.replace(b'"TEXT"', b'"TEXT", "body": "other"'))
    async with bench.open(first) as (inbox, backlog):
        await bench.handle(backlog, 1)
        await inbox.accept(other)
        same(await inbox.replay(), 1, "a replay, which leaves it in quarantine")
        await bench.handle(backlog, 1)
        same(await inbox.requeue([letter.number for letter in await inbox.quarantined()]), 1, "requeued events")
        (claim,) = await bench.handle(backlog, 1)
        same(claim.body, other.body, "its body")


@CASES.add("discard: letters are gone, and a resend is a new event")
async def _(bench):
    async with bench.open(delivery(1), delivery(2, problem=QUARANTINED)) as (inbox, backlog):
        numbers = [*await _bury(bench, backlog, 1), *(letter.number for letter in await inbox.quarantined())]
        same(await inbox.discard([*numbers, 10_000]), 2, "the number of discarded events")
        same(await inbox.discard(numbers), 0, "the number of events discarded again")
        same(await _counted(inbox), (0, 0, 0), "waiting, dead and quarantined events")
        for number in (1, 2):
            await accepted(inbox, delivery(number), new=True)
            await accepted(inbox, delivery(number), new=False)
        same(told(await bench.handle(backlog, 2)), ["1", "2"], "the events")


@CASES.add("purge: it deletes what is asked for")
async def _(bench):
    late = AT + timedelta(seconds=60)
    given = [delivery(n, at=AT + timedelta(seconds=60 * n)) for n in range(3)]
    problems = [delivery(f"q{n}", problem=QUARANTINED, at=AT + timedelta(seconds=60 * n)) for n in range(3)]
    async with bench.open(*given, *problems) as (inbox, backlog):
        await _bury(bench, backlog, 3)
        same(await inbox.purge(quarantined=False, before=late), 1, "purge of old dead letters")
        same(await _counted(inbox), (0, 2, 3), "waiting, dead and quarantined events")
        same(await inbox.purge(dead=False, before=late), 1, "purge of old events in quarantine")
        same(await inbox.purge(dead=False), 2, "purge of the quarantine")
        same(await inbox.purge(), 2, "purge of everything")
        same(await _counted(inbox), (0, 0, 0), "waiting, dead and quarantined events")


@CASES.add("replay: dead letters and readable events in quarantine")
async def _(bench):
    given = (delivery(1), delivery(2, problem=QUARANTINED), delivery_of(b"no JSON", app_id="app", received=AT))
    async with bench.open(*given) as (inbox, backlog):
        await _bury(bench, backlog, 1)
        same(await inbox.replayable(dead_only=True), {"TEXT": 1}, "what can be replayed of dead letters only")
        same(await inbox.replayable(), {"TEXT": 2}, "what can be replayed")
        same(await inbox.replay(), 2, "a replay")
        handled = await bench.handle(backlog, 2)
        same(sorted(told(handled)), ["1", "2"], "the events")
        same([claim.attempt for claim in handled], [1, 1], "their attempts")
        same(await _counted(inbox), (0, 0, 1), "waiting, dead and quarantined events")


@CASES.add("replay: handled events come again in their old order")
async def _(bench):
    async with bench.open(*(delivery(n) for n in range(5))) as (inbox, backlog):
        first = await bench.handle(backlog, 5)
        same(await inbox.replayable(), {"TEXT": 5}, "what can be replayed")
        same(await inbox.replay(), 5, "a replay")
        same(await inbox.replay(), 0, "a replay while all wait")
        same(await inbox.replayable(), {}, "what can be replayed while all wait")
        again = await bench.handle(backlog, 5)
        same(told(again), [str(n) for n in range(5)], "the events")
        same([claim.number for claim in again], [claim.number for claim in first], "their numbers")
        same({(claim.attempt, claim.replays) for claim in again}, {(1, 1)}, "attempts and replays")
        same(await inbox.replay(), 5, "a second replay")
        same({claim.replays for claim in await bench.handle(backlog, 5)}, {2}, "replays")
        await accepted(inbox, delivery(0), new=False)


@CASES.add("replay: only what was received since then, and of a kind")
async def _(bench):
    times = {1: ("TEXT", 0), 2: ("PICTURE", 60), 3: ("TEXT", 120)}
    given = [delivery(n, msg_type=kind, at=AT + timedelta(seconds=at)) for n, (kind, at) in times.items()]
    wishes = [
        ({"since": AT + timedelta(seconds=60)}, ["2", "3"]),
        ({"kind": Text}, ["1", "3"]),
        ({"kind": "PICTURE"}, ["2"]),
        ({"kind": Message}, ["1", "2", "3"]),
        ({"since": AT + timedelta(seconds=1), "kind": Text}, ["3"]),
        ({"since": AT + timedelta(seconds=61), "kind": Picture}, []),
    ]
    async with bench.open(*given) as (inbox, backlog):
        await _bury(bench, backlog, 3)
        for wish, required in wishes:
            same(await inbox.replay(**wish), len(required), f"replay({wish})")
            for number in required:
                (claim,) = await bench.claim(backlog)
                same(told([claim]), [number], f"the events of replay({wish})")
                await backlog.dead_letter(claim, error="", more=0)


async def _refused(call, what):
    try:
        await call
    except InvalidRequest:
        return
    raise AssertionError(f"{what} was not refused; required: InvalidRequest")


@CASES.add("archive: wrong arguments are refused")
async def _(bench):
    naive = AT.replace(tzinfo=None)
    async with bench.open() as (inbox, _backlog):
        await _refused(inbox.dead_letters(0), "dead_letters(0)")
        await _refused(inbox.quarantined(-1), "quarantined(-1)")
        await _refused(inbox.replay(naive), "replay() with a time without time zone")
        await _refused(inbox.purge(before=naive), "purge() with a time without time zone")
        await _refused(inbox.replay(kind=7), "replay(kind=7)")


@CASES.add("restart: everything is as it was", durable=True)
async def _(bench):
    unreadable = delivery_of(b"no JSON", app_id="app", received=AT)
    async with bench.open(*(delivery(n, team=f"t{n % 2}") for n in range(6)), unreadable) as (inbox, backlog):
        claims = {told([claim])[0]: claim for claim in await bench.claim(backlog, 2, limit=2)}
        await backlog.done((claims["0"],), more=0)
        await backlog.dead_letter(claims["1"], error="the error", more=0)
        (claim,) = await bench.claim(backlog)
        await backlog.retry(claim, error="", pause=30)
        failed = told([claim])[0]
        before = await inbox.counts(), await inbox.dead_letters()
    async with bench.open() as (inbox, backlog):
        after = await inbox.counts(), await inbox.dead_letters()
        same(after, before, "counts and dead letters")
        for number in range(6):
            await accepted(inbox, delivery(number, team=f"t{number % 2}"), new=False)
        await accepted(inbox, unreadable, new=False)
        await bench.place.pass_time(31)
        handled = await bench.handle(backlog, 4)
        for team in range(2):
            found = [told([claim])[0] for claim in handled if claim.conversation.endswith(f"t{team}")]
            same(found, [str(team + 2), str(team + 4)], f"the events of conversation {team}")
        attempts = {told([claim])[0]: claim.attempt for claim in handled}
        same(attempts, {"2": 1, "3": 1, "4": 1, "5": 1} | {failed: 2}, "events and attempts")
        await bench.nothing(backlog, "all were handled")
