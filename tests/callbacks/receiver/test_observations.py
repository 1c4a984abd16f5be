"""What the log is given about handlers that fail, and the names of receivers."""

import json
import logging

import pytest

from helpers.credentials import APP_ID, CREDENTIALS
from helpers.receiving import body, post
from helpers.receiving_asgi import Sink
from helpers.waiting import until
from rbim.callbacks import Backoff, DeadLettered, HandlingFailed, MemorySink, Receiver, Text
from rbim.errors import InvalidRequest


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
async def test_the_record_of_a_failed_handler_has_fields_and_the_traceback(lines, text):
    def fails(_event: Text):
        raise LookupError(text)

    seen, backoff = [], Backoff(attempts=2, first=0.01)
    receiver = Receiver(credentials=CREDENTIALS, sink=MemorySink(), observers=[seen.append], name="100%s", backoff=backoff)
    receiver.fallback(fails)

    def of(kind):
        return [each for each in seen if isinstance(each, kind)]

    async with receiver:
        await post(receiver, body())
        await until(lambda: of(DeadLettered))
    failed, given_up = (each for each in lines if each["level"] in {"WARNING", "ERROR"})
    (fact,), (last,) = of(HandlingFailed), of(DeadLettered)
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
