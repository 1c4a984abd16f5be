"""Messages of an inbox on NATS servers: what rbim wrote is read, and anything else is ValueError."""

import json
import tracemalloc
import zlib
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from rbim.callbacks.delivery import delivery_of
from rbim.errors import InvalidRequest
from rbim.jetstream import messages
from rbim.jetstream.archive import Letter
from rbim.jetstream.messages import DEAD, HEAD, dead_header, fitting, headers_of, stored

BODY = b'{"convType":"TEAM","to":"g1","msgType":"TEXT","msgId":"7"}'
DELIVERY = delivery_of(BODY, app_id="app", received=datetime(2026, 1, 2, tzinfo=UTC))
HEADERS = headers_of(DELIVERY, "7.8", number=7, replays=1)
FIELDS = ("key", "conversation", "app_id", "received", "kind", "msg_type", "problem", "number", "replays")


def with_field(name, value):
    """The headers of a message with another value of one field."""
    head = dict(zip(FIELDS, json.loads(HEADERS[HEAD]), strict=True)) | {name: value}
    return {**HEADERS, HEAD: json.dumps([*head.values()])}


def test_a_message_is_read_as_it_was_written():
    headers = {**HEADERS, "traceparent": "x"}
    found = stored(8, headers, fitting(headers, BODY, 100_000))
    assert (found.sequence, found.number, found.replays, found.headers) == (8, 7, 1, {"traceparent": "x"})
    assert found.delivery == DELIVERY._replace(kind=None)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("value", [1.5, True, [], {}, -1, "2026-01-02T03:04:05", "0001-01-01T00:00:00+14:00"])
def test_a_field_of_another_type_is_refused(name, value):
    text = isinstance(value, str) and name not in {"received", "number", "replays"}
    headers = with_field(name, value)
    if text:
        assert stored(8, headers, BODY).number == 7
    else:
        with pytest.raises(ValueError, match=r"^message 8 is not one of an inbox of rbim$"):
            stored(8, headers, BODY)


@pytest.mark.parametrize("head", ["", "[", "-1", "true", "1.5", "null", "[" * 100_000, "3", "99"])
def test_another_head_is_refused(head):
    with pytest.raises(ValueError, match=r"^message 8 is not"):
        stored(8, {HEAD: head}, b"[1]{}")


PACKED = {**HEADERS, "Rbim-Packed": "1"}


def test_a_message_that_is_too_large_for_the_servers_is_compressed_and_read_again():
    body = BODY[:-1] + b" " * 200_000 + b"}"
    headers = headers_of(delivery_of(body, app_id="app", received=DELIVERY.received), "7")
    content = fitting(headers, body, 100_000)
    assert len(content) < 10_000
    assert stored(8, headers, content).delivery.body == body


def test_a_message_that_inflates_without_end_is_refused_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(messages, "MOST_UNPACKED", 1 << 20)
    bomb = zlib.compress(bytes(64 << 20), 9)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"^message 8 is not one of an inbox of rbim$"):
            stored(8, PACKED, bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_the_limit_of_a_compressed_message_is_the_same_for_writing_and_reading(monkeypatch):
    body = b"x" * 200_000
    monkeypatch.setattr(messages, "MOST_UNPACKED", len(body))
    headers = dict(HEADERS)
    content = fitting(headers, body, 100_000)
    assert stored(8, headers, content).delivery.body == body
    monkeypatch.setattr(messages, "MOST_UNPACKED", len(body) - 1)
    with pytest.raises(ValueError, match=r"^message 8 is not one of an inbox of rbim$"):
        stored(8, headers, content)
    with pytest.raises(InvalidRequest, match=r"^a delivery of 200000 bytes is larger than .*: 199999 bytes$") as caught:
        fitting(dict(HEADERS), body, 100_000)
    assert caught.value.limit == 199_999


@pytest.mark.parametrize("content", [b"", b"no", zlib.compress(BODY)[:-1]])
def test_a_compressed_message_without_an_end_is_refused(content):
    with pytest.raises(ValueError, match=r"^message 8 is not one of an inbox of rbim$"):
        stored(8, PACKED, content)


def letter(dead):
    return Letter("stream", SimpleNamespace(seq=8, headers={**HEADERS, DEAD: dead}, data=BODY))


def test_a_dead_letter_is_read_as_it_was_written():
    shown = letter(dead_header(3, "Traceback: x")).shown
    assert (shown.number, shown.attempts, shown.error, shown.body) == (7, 3, "Traceback: x", BODY)


@pytest.mark.parametrize(
    "dead", ["", "7", "[]", "[1]", '["1", "e"]', "[1, 2]", '[true, "e"]', '[1.5, "e"]', "null", "[" * 100_000]
)
def test_another_dead_letter_is_refused(dead):
    with pytest.raises(ValueError, match=r"^message 8 is not one of an inbox of rbim$"):
        letter(dead)
