"""Several handlers of an event, predicates that fail, and middleware around them: each attempt is one."""

import json
from threading import current_thread, main_thread

import anyio
import pytest

from helpers.receiving import results_for
from helpers.waiting import until
from helpers.workers import router_of, text
from rbim.callbacks.events import Event, Text
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.observers import Handled, HandlingFailed, Observers
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.worker import Worker


@pytest.fixture
def facts():
    return []


@pytest.fixture
def handled(clock, facts):
    """Handle one event by a router; return the facts."""

    async def handle(router, event=None, **options):
        observers = Observers([results_for(facts.append)])
        async with MemorySink(clock=clock) as inbox:
            await inbox.accept(event or text("hello", "g"))
            worker = Worker(inbox, router, clock=clock, observers=observers, **{"backoff": Backoff(), **options})
            async with anyio.create_task_group() as tasks:
                await tasks.start(worker.run)
                await until(lambda: any(isinstance(fact, Handled) for fact in facts), clock)
                worker.stop()
        return facts

    return handle


async def test_all_are_called_again_after_one_has_failed(handled, facts):
    router, log = router_of(print), []

    @router.on(Text)
    async def first(event):
        log.append(("first", event.body))

    @router.on(Text)
    def second(_event, handling):
        log.append(("second", current_thread() is main_thread()))
        if handling.attempt == 1:
            raise OSError

    @router.on(Text)
    async def third(_event):
        log.append(("third",))

    await handled(router)
    assert log == [("first", "hello"), ("second", False)] * 2 + [("third",)]
    (failed,) = [fact for fact in facts if isinstance(fact, HandlingFailed)]
    names = ", ".join(each.__qualname__ for each in (first, second, third))
    assert (failed.error, failed.handler) == ("OSError", names)


async def test_one_timeout_holds_for_all_together(handled, facts, clock):
    router, log = router_of(print), []

    @router.on(Text)
    def plain(_event):
        log.append("plain")

    @router.on(Text)
    async def slow(_event, handling):
        log.append("slow")
        if handling.attempt == 1:
            await clock.sleep(3)
            await clock.sleep(3)

    await handled(router, timeout=5.0)
    assert log == ["plain", "slow"] * 2
    assert [fact.error for fact in facts if isinstance(fact, HandlingFailed)] == [
        "TimeoutError: the handler took longer than 5 s"
    ]


@pytest.mark.parametrize("error", [ValueError, SystemExit, GeneratorExit])
async def test_a_predicate_that_fails_fails_the_attempt(handled, facts, error):
    router, log = router_of(print), []
    answers = iter([error, True])

    def when(_event):
        answer = next(answers)
        if answer is not True:
            raise answer
        return True

    router.on(Text, when=when)(lambda event: log.append(event.body))
    await handled(router)
    assert log == ["hello"]
    assert [(type(fact), fact.attempt) for fact in facts if isinstance(fact, (HandlingFailed, Handled))] == [
        (HandlingFailed, 1),
        (Handled, 2),
    ]


@pytest.mark.parametrize("blocking", [True, False])
async def test_middleware_runs_around_every_handler(handled, facts, blocking):
    router, log = Router(), []

    if blocking:

        @router.fallback
        def handler(_event):
            log.append("handler")
            return awaited()
    else:

        @router.fallback
        async def handler(_event):
            log.append("handler")
            await awaited()

    async def awaited():
        log.append("awaited")

    @router.middleware
    async def outer(event, handling, call_next):
        log.append(("outer", type(event), handling.attempt))
        await call_next()
        log.append("after")

    @router.middleware
    async def inner(_event, handling, call_next):
        if handling.attempt == 1:
            raise OSError
        await call_next()

    await handled(router)
    assert log == [("outer", Text, 1), ("outer", Text, 2), "handler", "awaited", "after"]
    failed = next(fact for fact in facts if isinstance(fact, HandlingFailed))
    assert failed.handler == handler.__qualname__


async def test_middleware_may_leave_the_handlers_out(handled):
    router, log = router_of(lambda _event: log.append("handler")), []

    @router.middleware
    async def skip(event: Event, _handling, _call_next):
        log.append(event.body)

    await handled(router)
    assert log == ["hello"]


async def test_every_handler_can_reach_the_body_as_it_was_sent(handled):
    router, seen = Router(), []
    router.fallback(lambda event, handling: seen.append((event, handling)))
    delivery = text("hello", "g")
    await handled(router, delivery)
    ((event, handling),) = seen
    assert handling.body == delivery.body
    assert handling.document == json.loads(delivery.body) == event.document
    assert "hello" not in repr(handling)
    assert {handling: 1}[handling] == 1  # it can be a key, whatever the document holds
