"""Which handler an event goes to, what a handler may look like, and when it is called again."""

from functools import partial
from math import inf, nan

import pytest
from hypothesis import given, strategies as st

from rbim import InvalidRequest
from rbim.callbacks.events import At, ConvType, Event, Message, Notification, Picture, TeamKick, TeamQuit, Text, UnknownEvent
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router


def found(router, event):
    (route,) = router.find(event)
    return route.handler(*(event, "handling")[: 1 + route.wants_handling])


def test_the_most_specific_registration_has_the_event():
    router = Router()
    router.fallback(lambda _event: "fallback")
    for kind in (Message, Text, Notification, UnknownEvent):
        router.on(kind)(lambda _event, name=kind.__name__: name)
    router.on(Text, conv_type=ConvType.TEAM)(lambda _event: "Text in TEAM")
    router.on(Message, conv_type="PERSON")(lambda _event: "Message in PERSON")

    assert found(router, Text(conv_type=ConvType.TEAM)) == "Text in TEAM"
    assert found(router, Text(conv_type="TEAM")) == "Text in TEAM"
    assert found(router, Text(conv_type=ConvType.PERSON)) == "Text"  # the class counts before the conversation
    assert found(router, Picture(conv_type=ConvType.PERSON)) == "Message in PERSON"
    assert found(router, Picture(conv_type=ConvType.TEAM)) == "Message"
    assert found(router, At()) == "Message"
    assert found(router, TeamKick(conv_type=ConvType.NOTIFY_TEAM)) == "Notification"
    assert found(router, UnknownEvent()) == "UnknownEvent"
    assert found(router, Event()) == "fallback"


def test_all_events_are_events():
    router = Router()
    router.on(Event)(lambda _event: "any")
    router.on(TeamKick)(lambda _event: "kicked")
    assert found(router, TeamQuit()) == found(router, UnknownEvent()) == found(router, Text()) == "any"
    assert found(router, TeamKick()) == "kicked"


def test_without_a_fallback_the_router_says_how_to_add_one():
    router = Router()
    router.on(Text)(print)
    for ask in (router.check, lambda: router.find(TeamKick())):
        with pytest.raises(InvalidRequest, match="add one: @router"):
            ask()
    router.fallback(print)
    router.check()


class Calls:
    def method(self, _event):
        return "event"

    def method_of_two(self, _event, _handling):
        return "both"

    def __call__(self, _event):
        return "event"


def test_a_handler_is_given_what_it_takes():
    table = [
        (lambda _event: "event", "event"),
        (lambda _event, _handling: "both", "both"),
        (lambda _event, /, _handling: "both", "both"),
        (lambda _event, _context: "both", "both"),
        (lambda _event, handling=None: "both" if handling else "event", "both"),
        (lambda _event, retries=3: "event" if retries == 3 else "both", "event"),
        (lambda _event, *, _log=None: "event", "event"),
        (lambda _event, _handling, _log=None: "both", "both"),
        (lambda *args: {1: "event", 2: "both"}[len(args)], "event"),
        (Calls().method, "event"),
        (Calls().method_of_two, "both"),
        (Calls(), "event"),
        (partial(lambda _x, _event, _handling: "both", 1), "both"),
        (partial(lambda _x, _event: "event", 1), "event"),
    ]
    got = []
    for handler, _ in table:
        router = Router()
        router.fallback(handler)
        got.append(found(router, Text()))
    assert got == [given for _, given in table]


async def awaited(event): ...


class Awaited:
    async def __call__(self, event): ...

    async def method(self, event, handling): ...


def test_a_plain_function_needs_a_thread_and_whatever_is_async_does_not():
    for handler in (print, awaited, partial(awaited), Awaited(), Awaited().method):
        router = Router()
        router.fallback(handler)
        assert router.find(Text())[0].blocking is (handler is print)


def test_what_makes_no_sense_is_refused_at_once():
    no_handlers = [lambda: 0, lambda _a, _b, _c: 0, lambda *, _e: 0, lambda _e, *, _needed: 0, None, 7, "text", type]
    router = Router()
    table = [
        *(("handler", ".", partial(router.on(Text), each)) for each in no_handlers),
        *(("handler", ".", partial(router.fallback, each)) for each in no_handlers),
        *(("kind", "pass a class of events", partial(router.on, each)) for each in (str, object, Text(), "Text", None)),
        *(("conv_type", "a member of ConvType", partial(router.on, Text, conv_type=each)) for each in ("", 7, Text)),
        *(("when", "a plain function", partial(router.on, Text, when=each)) for each in ("text", 7, awaited, Awaited())),
        *(("function", "async function of", partial(router.middleware, each)) for each in (None, 7, print, awaited)),
        ("function", "async function of", partial(router.middleware, lambda _event, _handling, _call_next: 0)),
    ]
    for field, words, register in table:
        with pytest.raises(InvalidRequest, match=words) as raised:
            register()
        assert raised.value.field == field
    assert not router


def test_nothing_is_registered_twice():
    router = Router()
    router.on(Text)(print)
    router.on(Text, conv_type="TEAM")(print)
    router.fallback(print)
    with pytest.raises(InvalidRequest, match="print is registered already"):
        router.on(Text)(print)
    with pytest.raises(InvalidRequest, match="print is registered already"):
        router.on(Text, conv_type=ConvType.TEAM)(print)
    with pytest.raises(InvalidRequest, match="there is one already"):
        router.fallback(repr)
    assert [route.handler for route in router.find(Text())] == [print]


def test_a_predicate_decides_before_the_class_alone():
    router = Router()
    router.fallback(lambda _event: "fallback")
    router.on(Message)(lambda _event: "Message")
    router.on(Text, when=lambda event: event.body == "/help")(lambda _event: "help")
    router.on(Text, conv_type="TEAM")(lambda _event: "Text in TEAM")
    router.on(Text, when=lambda event: event.body == "/top", conv_type="TEAM")(lambda _event: "top in TEAM")
    router.on(TeamKick, when=lambda _event: False)(print)

    assert found(router, Text(body="/help")) == found(router, Text(body="/help", conv_type="TEAM")) == "help"
    assert found(router, Text(body="/top", conv_type="TEAM")) == "top in TEAM"
    assert found(router, Text(body="/top", conv_type="PERSON")) == "Message"
    assert found(router, Text(body="hello", conv_type="TEAM")) == "Text in TEAM"
    assert found(router, TeamKick()) == "fallback"


def test_handlers_that_are_equally_specific_come_in_the_order_of_registration():
    router = Router()
    router.fallback(print)
    for handler in (repr, abs, len):
        router.on(Text)(handler)
    for wanted in ("a", "ab"):
        router.on(Picture, when=lambda event, wanted=wanted: wanted in event.body)(ascii)
    assert [route.handler for route in router.find(Text())] == [repr, abs, len]
    assert [len(router.find(Picture(body=body))) for body in ("a", "ab")] == [1, 2]


# ------------------------------------------------------------------------------------------ backoff


def test_pauses_grow_up_to_the_longest_and_end():
    backoff = Backoff(random=lambda: 1.0)
    assert [backoff.pause(attempt) for attempt in range(1, 10)] == [1, 4, 16, 64, 256, 300, 300, None, None]
    assert Backoff(random=lambda: 0.0).pause(2) == 2.0
    assert Backoff(attempts=1).pause(1) is None


@given(
    backoff=st.builds(
        Backoff,
        attempts=st.integers(1, 10**6),
        first=st.floats(1e-3, 1e9),
        factor=st.floats(1e-3, 1e300),
        most=st.floats(1e-3, 1e9),
    ),
    attempt=st.integers(1, 10**6),
)
def test_a_pause_is_never_longer_than_the_longest(backoff, attempt):
    pause = backoff.pause(attempt)
    assert (pause is None) == (attempt >= backoff.attempts)
    assert pause is None or 0 <= pause <= backoff.most


def test_a_backoff_that_makes_no_sense_is_refused():
    wrong = {"attempts": (0, 1.5), "first": (0, inf), "factor": (-1, nan), "most": (inf, "x")}
    for field, value in ((field, value) for field, values in wrong.items() for value in values):
        with pytest.raises(InvalidRequest) as raised:
            Backoff(**{field: value})
        assert raised.value.field == field
