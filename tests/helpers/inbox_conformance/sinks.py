"""Cases about sinks, also those that give nothing out: new and known deliveries, many at once, any text in them."""

import anyio
from anyio.lowlevel import checkpoint

from helpers.inbox_conformance.case import AT, Cases, accepted, check, delivery, same
from rbim.callbacks.delivery import delivery_of

CASES = Cases()

NAMES = [
    *("a.b.c", "*", ">", "a.>", "$JS.API.>", " ", "a b", "\t", "a\nb", "\r\nNats-Msg-Id: x", "\0", "a\0b", "'; --", '"'),
    *(
        "%s",
        "\\",
        "\N{CHICKEN}",
        "客户群",
        "\u202e",
        "x" * 1000,
        "客" * 800,
        ".",
        "..",
        "/",
        "team/",
        "null",
        "0",
        "_",
        "-",
    ),
]
"""Names of conversations that a sink must keep apart, and must not take for patterns, paths or ends of lines."""

BODIES = [b"", b"\0", b"\r\n\r\n", b"\xff\xfe", b'{"msgId": "\\ud800"}', b"{" * 1000, bytes(range(256)), b"x" * 1_048_576]
"""Bodies that a sink must keep as they are."""


@CASES.add("sink: a key is new once")
async def _(bench):
    async with bench.inbox() as sink:
        for number in range(3):
            await accepted(sink, delivery(number), new=True)
        for number in range(3):
            await accepted(sink, delivery(number), new=False)


@CASES.add("sink: of many at once with one key, one is new")
async def _(bench):
    results = []

    async def accept():
        results.append(await sink.accept(delivery(1)))

    async with bench.inbox() as sink:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(accept)
        same(sorted(map(str, results)), ["False"] * 9 + ["True"], "the results")


@CASES.add("sink: what has a problem is stored, too")
async def _(bench):
    unreadable = delivery_of(b"no JSON", app_id="app", received=AT)
    check(unreadable.problem, "this body has no problem")
    async with bench.inbox() as sink:
        await accepted(sink, unreadable, new=True)
        await accepted(sink, unreadable, new=False)


@CASES.add("sink: one that is cancelled is accepted or not, and may be repeated")
async def _(bench):
    async with bench.inbox() as sink:
        for number in range(8):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sink.accept, delivery(number))
                for _ in range(number):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            check(await sink.accept(delivery(number)) in {True, False}, "a repeated accept returned no bool")
            await accepted(sink, delivery(number), new=False)


@CASES.add("sink: any name of a conversation, any key and any body")
async def _(bench):
    given = [delivery(n, conversation=name, key=f"{name}#") for n, name in enumerate(NAMES)]
    given += [delivery(f"b{n}", body=body) for n, body in enumerate(BODIES)]
    async with bench.inbox() as sink:
        for each in given:
            await accepted(sink, each, new=True)
        for each in given:
            await accepted(sink, each, new=False)


@CASES.add("sink: keys are known after a restart, and by all processes", "durable")
async def _(bench):
    async with bench.inbox() as sink, bench.inbox() as other:
        await accepted(sink, delivery(1), new=True)
        await accepted(other, delivery(1), new=False)
        await accepted(other, delivery(2), new=True)
    async with bench.inbox() as sink:
        for number in (1, 2):
            await accepted(sink, delivery(number), new=False)


@CASES.add("sink: it says whether it is durable, and for how long it knows keys")
async def _(bench):
    sink = bench.inbox()
    same(sink.durable, bench.subject.durable, "durable")
    check(not sink.durable or sink.retention > 0, f"retention is {sink.retention!r}; required: seconds, above 0")
