"""What observers and the log are given about deliveries and handlers: pairs, contexts, names, fields."""

import json
import logging
import threading
from contextvars import ContextVar

import anyio
import pytest

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.receiving import body, post
from helpers.receiving_asgi import Sink
from helpers.waiting import until
from rbim.callbacks import (
    Backoff,
    DeadLettered,
    DeliveryEnded,
    DeliveryStarted,
    Handled,
    HandlingEnded,
    HandlingFailed,
    HandlingStarted,
    Receiver,
    SqliteInbox,
    Text,
)
from rbim.errors import InvalidRequest

SPAN: ContextVar[str] = ContextVar("SPAN", default="none")


class Tracing:
    """An observer that sets a context variable from each start to its end, as a tracer does."""

    def __init__(self):
        self.seen, self._tokens = [], []

    def __call__(self, observation):
        self.seen.append(observation)
        match observation:
            case HandlingStarted():
                self._tokens.append(SPAN.set(f"handling {observation.key}"))
            case HandlingEnded():
                SPAN.reset(self._tokens.pop())  # ValueError in another context

    def of(self, *kinds):
        return [each for each in self.seen if isinstance(each, kinds)]


@pytest.fixture
def tracing():
    return Tracing()


def receiver_of(tmp_path, handler, **options):
    receiver = Receiver(credentials=CREDENTIALS, sink=SqliteInbox(tmp_path / "events.db"), **options)
    receiver.fallback(handler)
    return receiver


@pytest.mark.parametrize("own_thread", [False, True])
@pytest.mark.parametrize("plain", [False, True])
async def test_a_handler_runs_in_the_context_that_an_observer_set_at_its_start(tmp_path, tracing, own_thread, plain):
    found = []

    def work(_event, handling):
        found.append((SPAN.get(), f"handling {handling.key}"))

    async def work_async(event, handling):
        work(event, handling)

    other = Tracing()
    options = {"observers": [tracing, other], "own_thread": own_thread, "name": "eu"}
    receiver = receiver_of(tmp_path, work if plain else work_async, **options)
    async with receiver:
        await post(receiver, body())
        await until(lambda: tracing.of(Handled))
    assert [each[0] == each[1] for each in found] == [True]
    (started,), (ended,) = tracing.of(HandlingStarted), tracing.of(HandlingEnded)
    function = (work if plain else work_async).__qualname__
    assert (started.event, started.handler, started.app_id, started.attempt) == ("Text", function, APP_ID, 1)
    assert (ended.key, ended.error, ended.cancelled, ended.receiver) == (started.key, None, False, "eu")
    assert {each.receiver for each in tracing.seen} == {"eu"}
    assert "observer failed" not in str(other.seen)


async def test_a_handler_that_fails_or_is_cancelled_ends_too(tmp_path, tracing):
    began = anyio.Event()

    async def hangs(event):
        if event.body == "raises":
            raise KeyError("k")
        began.set()
        await anyio.sleep_forever()

    receiver = receiver_of(tmp_path, hangs, observers=[tracing], drain=0, backoff=Backoff(attempts=1))
    async with receiver:
        await post(receiver, body(body="raises", msgId="1"))
        await until(lambda: tracing.of(DeadLettered))
        await post(receiver, body(msgId="2"))
        await until(lambda: len(tracing.of(HandlingStarted)) == 2)
    first, second = tracing.of(HandlingEnded)
    assert isinstance(first.error, KeyError)
    assert (first.cancelled, second.error, second.cancelled) == (False, None, True)
    assert SPAN.get() == "none"


async def test_every_delivery_has_a_start_and_an_end_with_its_status(tracing):
    sink = Sink()
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, observers=[tracing], name="eu")
    async with receiver:
        await post(receiver, body())
        await post(receiver, body(), MD5="0" * 32)
        await post(receiver, b"{}")
    pairs = tracing.of(DeliveryStarted, DeliveryEnded)
    assert [type(each) for each in pairs] == [DeliveryStarted, DeliveryEnded] * 3
    assert [(each.key is None, each.status) for each in pairs[1::2]] == [(False, 200), (True, 401), (True, 200)]
    assert all(0 <= each.elapsed < 2 for each in pairs[1::2])


async def test_a_delivery_that_is_cancelled_ends_without_a_status(tracing):
    receiver = Receiver(credentials=CREDENTIALS, sink=Sink(), observers=[tracing])

    async def never():
        await anyio.sleep_forever()

    async def send(message):
        raise AssertionError(message)

    async with receiver:
        with anyio.move_on_after(0.02):
            await receiver.asgi({"type": "http", "method": "POST", "headers": []}, never, send)
    (ended,) = tracing.of(DeliveryEnded)
    assert (ended.key, ended.status) == (None, None)


class Json(logging.Handler):
    """Writes each record as JSON, all fields that are not the library's own, as structlog's and others' formatters do."""

    usual = frozenset(vars(logging.makeLogRecord({})))

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        fields = {name: value for name, value in vars(record).items() if name not in self.usual}
        text = logging.Formatter().format(record)
        self.lines.append(json.loads(json.dumps({"text": text, "level": record.levelname, **fields})))


@pytest.fixture
def lines():
    logger, handler = logging.getLogger("rbim.callbacks"), Json()
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


@pytest.mark.parametrize("text", ["for a reason", "with a lone \ud800 surrogate"])
async def test_the_record_of_a_failed_handler_has_fields_and_the_traceback(tmp_path, tracing, lines, text):
    def fails(_event: Text):
        raise LookupError(text)

    receiver = receiver_of(tmp_path, fails, observers=[tracing], name="100%s", backoff=Backoff(attempts=2, first=0.01))
    async with receiver:
        await post(receiver, body())
        await until(lambda: tracing.of(DeadLettered))
    failed, given_up = (each for each in lines if each["level"] in {"WARNING", "ERROR"})
    (fact,), (last,) = tracing.of(HandlingFailed), tracing.of(DeadLettered)
    for line, observation, attempt in ((failed, fact, 1), (given_up, last, 2)):
        assert line["rbim_observation"] == type(observation).__name__
        assert (line["rbim_receiver"], line["rbim_event"], line["rbim_handler"]) == ("100%s", "Text", fails.__qualname__)
        assert (line["rbim_key"], line["rbim_attempt"], line["rbim_app_id"]) == (observation.key, attempt, APP_ID)
        assert line["rbim_error"].startswith("LookupError: ")
        assert line["text"].startswith("receiver 100%s: ")
        assert "Traceback (most recent call last)" in line["text"]
        assert "in fails" in line["text"]
        line["text"].encode()  # any stream can hold it
        assert "in fails" in observation.trace


def test_a_name_is_a_printable_text():
    for wrong in ("a\nb", "x" * 101, 7, None):
        with pytest.raises(InvalidRequest, match=r"^name: "):
            Receiver(credentials=CREDENTIALS, sink=Sink(), name=wrong)
    assert repr(Receiver(credentials=CREDENTIALS, sink=Sink(), name="eu")) == "<Receiver eu>"
    assert repr(Receiver(credentials=CREDENTIALS, sink=Sink())) == "<Receiver>"


async def test_every_record_of_a_receiver_has_its_name(tmp_path, caplog):
    sink = Sink()

    async def breaks(_delivery):
        raise OSError("full")

    sink.accept = breaks
    receiver = Receiver(credentials=CREDENTIALS, sink=sink, name="eu", spool=tmp_path / "spool")
    async with receiver:
        await post(receiver, body())
        await until(lambda: [each for each in caplog.records if "stays in the spool" in each.getMessage()])
        with pytest.raises(RuntimeError, match="Receiver eu"):
            await receiver.__aenter__()
    assert {each.rbim_receiver for each in caplog.records if each.name == "rbim.callbacks"} == {"eu"}
    assert all(each.getMessage().startswith("receiver eu: ") for each in caplog.records if each.name == "rbim.callbacks")
    assert threading.active_count() < 10
