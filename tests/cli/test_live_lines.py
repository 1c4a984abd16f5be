"""The lines of ``rbim emulator``: what each has, how it fits a terminal, and how many there are in a second."""

from __future__ import annotations

import io
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from queue import SimpleQueue

import pytest
from attrs import evolve
from rich.cells import cell_len

from helpers.rawclient import ask, connected, http, signed
from rbim.cli.live_lines import LINES, WAITING, LiveLines, live_lines
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.asgi import OUTCOME, RECORD
from rbim.emulator.faults import CutShort, Fault, ResetAfter, Status
from rbim.emulator.logs import DeliveryAttempt
from rbim.emulator.server.server import serve
from rbim.operations import SearchPublicGroups

CODES = re.compile(r"\x1b\[[0-9;]*m")
NOON = datetime(2026, 1, 2, 12, 0, 0, 250_000, tzinfo=UTC)
ATTEMPT = DeliveryAttempt(
    at=0.0,
    took=0.012,
    key="1001|1002",
    number=3,
    message_id="m",
    attempt=2,
    duplicate=0,
    status=500,
    reason="status 500",
    trouble=("delay",),
    headers={},
    body=b"",
)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Shown:
    """Lines without a thread, on a timer that stands still."""

    def __init__(self, columns=None, *, colored=False):
        self.queue = SimpleQueue()
        self.now = 0.0
        self.emulator = Emulator(clock=EmulatedClock(NOON))
        self.lines = LiveLines(
            self.emulator.clock, self.queue, colored=colored, columns=lambda: columns, timer=lambda: self.now
        )

    def take(self):
        taken = []
        while not self.queue.empty():
            taken.append(self.queue.get().text)
        return taken

    def scope(self, **facts):
        facts = {"at": 0.0, "path": "/x", "code": "000000", "effect": True} | facts
        self.emulator.requests.note(facts.pop("op", SearchPublicGroups(name="News")), **facts)
        return {"type": "http", "method": "POST", "path": facts["path"], RECORD: self.emulator.requests.records[-1]}


async def test_each_kind_of_request_has_its_line_in_a_pipe():
    shown = Shown()
    lines = shown.lines
    lines.request(shown.scope(), 0.0004)
    lines.request(shown.scope(code="111109", effect=False, op=None, reason="the signature is wrong", path="/a/b"), 2.5)
    lines.request(shown.scope(code=None, effect=False, trouble=("status", "retry_after")), 0.0125)
    lines.request(shown.scope(code=None, effect=False, trouble=("reset_before",)), 12.0)
    lines.request(shown.scope(trouble=("reset_after",)), 0.001)
    lines.request({"type": "http", "method": "GET", "path": "/_emulator/state", OUTCOME: (200, "")}, 0.1)  # it only reads
    lines.request({"type": "http", "method": "POST", "path": "/_emulator/say", OUTCOME: (404, "there is no group g8")}, 0.1)
    lines.request({"type": "http", "method": "GET", "path": "/", OUTCOME: (403, "Host: 'a' is not a name")}, 0.1)
    lines.delivery(ATTEMPT)
    lines.delivery(evolve(ATTEMPT, status=200, reason="", attempt=1, trouble=(), duplicate=1))
    assert shown.take() == [
        "12:00:00.250    0.4 ms  SearchPublicGroups  News             000000 done\n",
        "12:00:00.250   2500 ms  POST /a/b                            111109 the signature is wrong\n",
        "12:00:00.250   12.5 ms  SearchPublicGroups  News             HTTP error, not done; fault: status, retry_after\n",
        "12:00:00.250    12.0 s  SearchPublicGroups  News             no answer, not done; fault: reset_before\n",
        "12:00:00.250    1.0 ms  SearchPublicGroups  News             000000 done; fault: reset_after\n",
        "12:00:00.250  100.0 ms  POST /_emulator/say                  HTTP 404 there is no group g8\n",
        "12:00:00.250  100.0 ms  GET /                                HTTP 403 Host: 'a' is not a name\n",
        "12:00:00.250   12.0 ms  copy 3, attempt 2   1001|1002        HTTP 500; fault: delay\n",
        "12:00:00.250   12.0 ms  copy 3              1001|1002        HTTP 200 accepted, duplicate\n",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
async def test_a_line_fits_the_terminal_and_loses_no_word(columns):
    shown = Shown(columns)
    reason = "the emulator has no operation at this place and here is a long sentence that says so, 中文也一样 很长很长"
    op = SearchPublicGroups(name="产品公告" * 9)
    shown.lines.request(shown.scope(code="900501", effect=False, reason=reason, op=op), 0.1)
    (text,) = shown.take()
    assert max(map(cell_len, text.splitlines())) <= columns
    assert " ".join(text.split()).endswith(f"900501 {reason}")
    assert all(line.startswith("    ") for line in text.splitlines()[1:])


async def test_control_characters_are_visible_and_colors_are_only_where_they_are_wanted():
    evil = "\x1b[2J\r\n\u202eabc"
    for colored in (True, False):
        shown = Shown(80, colored=colored)
        shown.lines.request(shown.scope(op=None, path=f"/{evil}", code="900501", effect=False, reason=evil), 0.1)
        shown.lines.delivery(evolve(ATTEMPT, key=evil, reason=evil))
        for text in shown.take():
            assert (CODES.search(text) is not None) is colored
            assert CODES.sub("", text).removesuffix("\n").replace("\n    ", "").isprintable()
            assert "\x1b[2J" not in text


async def test_more_than_so_many_lines_a_second_are_one_line_with_their_number():
    shown = Shown()
    for number in range(LINES + 812):
        troubled = {"code": "111109", "effect": False} if number == LINES else {}
        shown.lines.request(shown.scope(**troubled), 0.001)
    shown.lines.delivery(ATTEMPT)
    assert len(shown.take()) == LINES
    shown.now = 1.0  # the next second has lines again
    shown.lines.request(shown.scope(), 0.001)
    line, after = shown.take()
    assert line == "12:00:00.250  … 812 more requests, 1 more delivery (2 refused, failed or with a fault)\n"
    assert after.endswith("000000 done\n")
    shown.lines.summarize()
    assert shown.take() == []


async def test_while_the_reader_is_slow_lines_are_counted():
    shown = Shown()
    for second in range(5):
        shown.now = float(second)
        for _ in range(LINES):
            shown.lines.request(shown.scope(), 0.001)
    assert len(shown.take()) == WAITING
    shown.lines.summarize()  # as at the end
    assert shown.take() == [f"12:00:00.250  … {5 * LINES - WAITING} more requests\n"]


async def test_a_server_tells_of_faults_refusals_and_copies():
    emulator, stream = Emulator(clock=EmulatedClock(NOON)), io.StringIO()
    effects = (Status(503), CutShort(), ResetAfter())
    emulator.faults.add(*(Fault(effect=effect, nth=(number,)) for number, effect in enumerate(effects, 1)))

    async def receive(_headers, _body):
        return 200

    emulator.copy_to(receive)
    with live_lines(emulator, stream) as lines:
        async with serve(emulator, watch=lines.request) as server:
            for _ in range(4):
                async with connected(server) as raw:
                    await raw.send(signed(emulator, "SearchPublicGroups", name="News"))
                    with suppress(ConnectionResetError):
                        await raw.recv()
            await ask(server, http("GET", "/_emulator/clock", b"", "Origin: http://evil.test"))
            emulator.say("1001", "1002", "hello")
            await emulator.deliver()
    told = [line[24:] for line in stream.getvalue().splitlines()]
    assert [line[:36].split()[0] for line in told] == ["SearchPublicGroups"] * 4 + ["GET", "copy"]
    assert [line[37:].strip() for line in told[:4]] == [
        "HTTP error, not done; fault: status",
        "000000 done; fault: keep",
        "000000 done; fault: reset_after",
        "000000 done",
    ]
    assert "HTTP 403 Origin: " in told[4]
    assert told[5].endswith("HTTP 200 accepted")
    assert (emulator.deliveries.watch, len(stream.getvalue().splitlines())) == (None, 6)
