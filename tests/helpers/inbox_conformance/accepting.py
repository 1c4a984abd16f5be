"""Cases about accepting deliveries: new ones, known ones, other content, what cannot be handled, any text in them."""

import anyio

from helpers.deliveries import delivery
from helpers.inbox_conformance.case import AT, Cases, accepted, cancelled, check, same, told
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.protocols import OtherContent

CASES = Cases()

NAMES = [
    *("a.b.c", "*", ">", "a.>", "$JS.API.>", " ", "a b", "\t", "a\nb", "\r\nNats-Msg-Id: x", "\0", "a\0b", "'; --", '"'),
    *("%s", "\\", "\N{CHICKEN}", "客户群", "\u202e", "x" * 1000, "客" * 800, ".", "..", "/", "team/", "null", "0", "_", "-"),
]
"""Names of conversations that an inbox must keep apart, and must not take for patterns, paths or ends of lines."""

BODIES = [b"", b"\0", b"\r\n\r\n", b"\xff\xfe", b'{"msgId": "\\ud800"}', b"{" * 1000, bytes(range(256)), b"x" * 1_048_576]
"""Bodies that an inbox must keep as they are."""


@CASES.add("accept: a new delivery can be claimed as it was accepted")
async def _(bench):
    given = delivery(1)
    async with bench.open(given) as (_inbox, backlog):
        (claim,) = await bench.claim(backlog)
        shown = (claim.key, claim.conversation, claim.app_id, claim.body, claim.received)
        same(shown, (given.key, given.conversation, given.app_id, given.body, given.received), "the claim")
        same((claim.attempt, claim.replays, claim.crashes), (1, 0, 0), "attempt, replays and crashes of a new event")


@CASES.add("accept: a known key is accepted once, before and after it was handled")
async def _(bench):
    async with bench.open(delivery(1)) as (inbox, backlog):
        await accepted(inbox, delivery(1), new=False)
        await bench.handle(backlog, 1)
        await accepted(inbox, delivery(1), new=False)
        await bench.nothing(backlog, "its only event was handled")


@CASES.add("accept: a resend that differs in resendFlag only is known")
async def _(bench):
    given = delivery(1)
    flagged = given.body.replace(b"{", b'{"resendFlag": "1", ', 1)
    async with bench.open(given) as (inbox, _backlog):
        again = delivery_of(flagged, app_id="app", received=AT)
        same(again.key, given.key, "the key of a resend")
        await accepted(inbox, again, new=False)


@CASES.add("accept: other content under a known key is kept apart, once")
async def _(bench):
    given = delivery(1)
    other = given._replace(body=given.body.replace(b'"TEXT"', b'"TEXT", "body": "other"'))
    async with bench.open(given) as (inbox, backlog):
        found = await inbox.accept(other)
        if not isinstance(found, OtherContent):
            check(False, f"accept of other content returned {found!r}; required: OtherContent")  # noqa: FBT003
            return
        check(found.key != given.key, "OtherContent has the key of the known event; required: a key of its own")
        await accepted(inbox, other, new=False)
        (kept,) = await inbox.quarantined()
        same((kept.key, kept.body, kept.error), (found.key, other.body, found.problem), "the event in quarantine")
        same(told(await bench.handle(backlog, 1)), ["1"], "the events to handle")
        await bench.nothing(backlog, "the other content is in quarantine")


@CASES.add("accept: what has a problem goes into quarantine and is never claimed")
async def _(bench):
    unreadable = delivery_of(b"no JSON", app_id="app", received=AT)
    check(unreadable.problem, "this body has no problem")
    async with bench.open(unreadable) as (inbox, backlog):
        await accepted(inbox, unreadable, new=False)
        await bench.nothing(backlog, "its only event is in quarantine")
        (kept,) = await inbox.quarantined()
        same((kept.body, kept.error, kept.attempts), (b"no JSON", unreadable.problem, 0), "the event in quarantine")


@CASES.add("accept: numbers grow in the order of acceptance")
async def _(bench):
    async with bench.open(*(delivery(n, team=f"t{n % 3}") for n in range(9))) as (_inbox, backlog):
        claims = sorted(await bench.handle(backlog, 9), key=lambda claim: claim.number)
        same(told(claims), [str(n) for n in range(9)], "the events by number")
        same(len({claim.number for claim in claims}), 9, "the number of different numbers")


@CASES.add("texts: any name of a conversation, any key and any account")
async def _(bench):
    given = [delivery(n, conversation=name, key=f"{name}#") for n, name in enumerate(NAMES)]
    async with bench.open() as (inbox, backlog):
        for each in given:
            await accepted(inbox, each, new=True)
            await accepted(inbox, each, new=False)
        handled = {claim.body: (claim.conversation, claim.key) for claim in await bench.handle(backlog, len(given))}
        same(handled, {each.body: (each.conversation, each.key) for each in given}, "conversations and keys by body")


@CASES.add("texts: any body stays as it is")
async def _(bench):
    given = [delivery(n, team=f"t{n}", body=body) for n, body in enumerate(BODIES)]
    async with bench.open(*given) as (_inbox, backlog):
        handled = {claim.key: claim.body for claim in await bench.handle(backlog, len(given))}
        check(handled == {each.key: each.body for each in given}, "a body was changed; required: the same bytes")


@CASES.add("accept: of many at once with one key, one is new")
async def _(bench):
    results = []

    async def accept():
        results.append(await inbox.accept(delivery(1)))

    async with bench.inbox() as inbox:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(accept)
        same(sorted(map(str, results)), ["False"] * 9 + ["True"], "the results")


@CASES.add("accept: one that is cancelled is accepted or not, and may be repeated")
async def _(bench):
    async with bench.inbox() as inbox:
        for number in range(8):
            await cancelled(number, inbox.accept, delivery(number))
            check(await inbox.accept(delivery(number)) in {True, False}, "a repeated accept returned no bool")
            await accepted(inbox, delivery(number), new=False)


@CASES.add("accept: keys are known after a restart, and by all processes", durable=True)
async def _(bench):
    async with bench.inbox() as inbox, bench.inbox() as other:
        await accepted(inbox, delivery(1), new=True)
        await accepted(other, delivery(1), new=False)
        await accepted(other, delivery(2), new=True)
    async with bench.inbox() as inbox:
        for number in (1, 2):
            await accepted(inbox, delivery(number), new=False)


@CASES.add("accept: it says whether it is durable, and for how long it knows keys")
async def _(bench):
    inbox = bench.inbox()
    same(inbox.durable, bench.subject.durable, "durable")
    check(not inbox.durable or inbox.retention > 0, f"retention is {inbox.retention!r}; required: seconds, above 0")
