"""The parts of an ASGI application that the doors share: a body read within its limit, a server's lifespan."""

from contextlib import asynccontextmanager
from math import inf

import anyio
import pytest

from rbim._support.asgi import TooLarge, body_of, lifespan


class Messages:
    """What a server gives, one message after the other; then nothing for far too long."""

    def __init__(self, *messages):
        self.left = list(messages)

    async def __call__(self):
        if not self.left:
            await anyio.sleep(10)
            pytest.fail("it asks for more than there is")
        return self.left.pop(0)


def part(body, *, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


GONE = {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("messages", "body"),
    [
        ([part(b"", more=False)], b""),
        ([part(b"whole", more=False)], b"whole"),
        ([{"type": "http.request"}], b""),
        ([{"type": "http.request", "body": b"whole"}], b"whole"),
        ([part(b"in "), part(b"parts", more=False)], b"in parts"),
        ([part(b"in "), part(b"parts"), {"type": "http.request"}], b"in parts"),
        ([part(b""), part(b""), part(b"late", more=False)], b"late"),
        ([part(bytes([each])) for each in b"in many parts"] + [part(b"", more=False)], b"in many parts"),
        ([GONE], None),
        ([part(b"half"), GONE], None),
        ([part(b"half"), part(b"more"), GONE], None),
    ],
)
async def test_a_body_is_read_whole_or_not_at_all(messages, body):
    receive = Messages(*messages)
    read = await body_of(receive, 1000)
    assert read == body
    assert read is None or type(read) is bytes
    assert receive.left == []


@pytest.mark.parametrize("limit", [0, 1, 10, inf])
async def test_the_limit_is_exact_and_nothing_is_read_past_it(limit):
    size = 10 if limit == inf else limit
    parts = [part(b"x") for _ in range(size)]
    assert await body_of(Messages(*parts, part(b"", more=False)), limit) == b"x" * size
    assert await body_of(Messages(part(b"x" * size, more=False)), limit) == b"x" * size
    if limit == inf:
        return
    for over in ([part(b"x" * (size + 1), more=False)], [*parts, part(b"x", more=False)], [*parts, part(b"x"), part(b"y")]):
        receive = Messages(*over)
        with pytest.raises(TooLarge, match=f"at most {limit} bytes"):
            await body_of(receive, limit)
        assert receive.left in ([], [part(b"y")])
    receive = Messages(part(b"x" * 100), part(b"y"))
    with pytest.raises(TooLarge):
        await body_of(receive, limit)
    assert receive.left == [part(b"y")]


async def test_who_waits_for_a_body_can_be_cancelled():
    with anyio.move_on_after(0.01) as scope:
        await body_of(Messages(part(b"half")), 1000)
    assert scope.cancelled_caught


STARTUP, SHUTDOWN = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}


class Run:
    """What is entered and left, and what goes wrong with it."""

    def __init__(self, *wrong):
        self.wrong = wrong
        self.log = []

    @asynccontextmanager
    async def of(self):
        self.log.append("in")
        if "in" in self.wrong:
            reason = "no entrance"
            raise OSError(reason)
        try:
            yield
        finally:
            self.log.append("out")
            if "out" in self.wrong:
                reason = "no exit"
                raise OSError(reason)


async def served(*messages, runs=None):
    """Return what is told to the server, and what is raised."""
    sent, error = [], None

    async def send(message):
        sent.append(message)

    try:
        with anyio.move_on_after(0.02):
            await lifespan(Messages(*messages), send, runs)
    except Exception as raised:
        error = raised
    return [(each["type"].removeprefix("lifespan."), each.get("message")) for each in sent], error


async def test_a_lifespan_is_acknowledged_with_and_without_something_to_run():
    run = Run()
    told = [("startup.complete", None), ("shutdown.complete", None)]
    assert await served(STARTUP, SHUTDOWN) == (told, None)
    assert await served(STARTUP, SHUTDOWN, runs=run.of()) == (told, None)
    assert run.log == ["in", "out"]


async def test_what_fails_at_the_start_or_the_end_is_told_and_raised():
    run = Run("in")
    told, error = await served(STARTUP, runs=run.of())
    assert (told, str(error), run.log) == ([("startup.failed", "no entrance")], "no entrance", ["in"])
    run = Run("out")
    told, error = await served(STARTUP, SHUTDOWN, runs=run.of())
    assert (told, str(error)) == ([("startup.complete", None), ("shutdown.failed", "no exit")], "no exit")
    assert run.log == ["in", "out"]


async def test_a_lifespan_that_is_cancelled_leaves_what_it_entered():
    run = Run()
    assert await served(STARTUP, runs=run.of()) == ([("startup.complete", None)], None)
    assert run.log == ["in", "out"]


async def test_a_shutdown_without_a_startup_is_acknowledged():
    run = Run()
    assert await served(SHUTDOWN, runs=run.of()) == ([("shutdown.complete", None)], None)
    assert run.log == []
