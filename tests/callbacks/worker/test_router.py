"""Which handler an event goes to, what a handler may look like, and when it is called again."""

from functools import partial

import pytest
from hypothesis import given, strategies as st

from helpers.workers import NOON
from rbim import InvalidRequest
from rbim.callbacks.events.enums import ConvType
from rbim.callbacks.events.types import At, Event, Message, Notification, Picture, TeamKick, TeamQuit, Text, UnknownEvent
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import HandlerContext, Router


def found(router, event):
    (route,) = router.find(event)
    return route.call(event, "handling")


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


def test_a_context_can_be_a_key_of_a_dictionary_though_its_document_cannot():
    facts = {"key": "k", "attempt": 1, "received": NOON, "replays": 0, "number": 7, "app_id": "app", "resource": None}
    one, same = (HandlerContext(**facts, body=b"{}", document={"a": []}) for _ in range(2))
    other = HandlerContext(**facts, document={"b": []})
    assert {one: 1, other: 2}[same] == 1


def test_without_a_fallback_the_router_says_how_to_add_one():
    router = Router()
    router.on(Text)(print)
    for ask in (router.check, lambda: router.find(TeamKick())):
        with pytest.raises(InvalidRequest, match="add one: @router"):
            ask()
    router.fallback(print)
    router.check()


def test_a_router_is_true_when_it_has_a_handler():
    first, second = Router(), Router()
    assert not first
    first.on(Text)(print)
    second.fallback(print)
    assert first
    assert second


def test_decorators_give_the_function_back():
    router = Router()

    def one(event): ...

    async def two(event, handling): ...

    assert router.on(Text)(one) is one
    assert router.on(TeamKick)(two) is two
    assert router.fallback(two) is two


class Calls:
    def method(self, _event):
        return "event"

    def method_of_two(self, _event, _handling):
        return "both"

    def __call__(self, _event):
        return "event"


@pytest.mark.parametrize(
    ("handler", "given"),
    [
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
    ],
)
def test_a_handler_is_given_what_it_takes(handler, given):
    router = Router()
    router.fallback(handler)
    assert found(router, Text()) == given


@pytest.mark.parametrize(
    "handler",
    [lambda: 0, lambda _a, _b, _c: 0, lambda *, _event: 0, lambda _event, *, _needed: 0, None, 7, "text", type],
)
def test_what_cannot_be_called_with_an_event_is_refused_at_once(handler):
    router = Router()
    for register in (router.on(Text), router.fallback):
        with pytest.raises(InvalidRequest) as raised:
            register(handler)
        assert raised.value.field == "handler"
    assert not router


async def awaited(event): ...


class Awaited:
    async def __call__(self, event): ...

    async def method(self, event, handling): ...


@pytest.mark.parametrize("handler", [awaited, partial(awaited), Awaited(), Awaited().method])
def test_whatever_is_async_needs_no_thread(handler):
    router = Router()
    router.fallback(handler)
    assert not router.find(Text())[0].blocking


def test_a_plain_function_needs_a_thread():
    router = Router()
    router.fallback(print)
    assert router.find(Text())[0].blocking


@pytest.mark.parametrize("kind", [str, object, Text(), "Text", None, Event | None])
def test_what_is_no_class_of_events_is_refused(kind):
    with pytest.raises(InvalidRequest, match="pass a class of events"):
        Router().on(kind)


@pytest.mark.parametrize("conv_type", ["", 7, Text])
def test_what_is_no_kind_of_conversation_is_refused(conv_type):
    with pytest.raises(InvalidRequest, match="pass a member of ConvType"):
        Router().on(Text, conv_type=conv_type)


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


@pytest.mark.parametrize("when", ["text", 7, awaited, Awaited()])
def test_what_is_no_predicate_is_refused(when):
    with pytest.raises(InvalidRequest, match="pass a plain function of the event") as raised:
        Router().on(Text, when=when)
    assert raised.value.field == "when"


@pytest.mark.parametrize("function", [None, 7, print, lambda _event, _handling, _call_next: 0, awaited])
def test_what_is_no_middleware_is_refused(function):
    router = Router()
    with pytest.raises(InvalidRequest, match="async function of") as raised:
        router.middleware(function)
    assert raised.value.field == "function"


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("attempts", 1.5),
        ("first", 0),
        ("first", float("inf")),
        ("factor", -1),
        ("factor", float("nan")),
        ("most", float("inf")),
        ("most", "x"),
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(field, value):
    with pytest.raises(InvalidRequest) as raised:
        Backoff(**{field: value})
    assert raised.value.field == field
