"""The server door, seen by plain sockets: resets, refused connections, half answers, and junk that is answered."""

import asyncio
import errno
import json
import logging
import socket
import struct
from email.utils import parsedate_to_datetime

import pytest

from helpers.rawclient import arrived, ask, connected, create, http, signed, turns
from helpers.tables import each_row
from rbim.emulator.faults import Code, CutShort, Fault, Latency, Refuse, ResetAfter, ResetBefore, SlowBody, Status
from rbim.emulator.server.server import serve


@pytest.fixture
async def server(emulator):
    async with serve(emulator) as server:
        yield server


@pytest.fixture
def log(caplog):
    """What was logged, from the lowest level on."""
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.mark.parametrize(
    ("effect", "groups", "trouble"),
    [(ResetBefore(), 0, "reset_before"), (ResetAfter(), 1, "reset_after"), (Refuse(), 0, "refuse")],
)
async def test_a_reset_is_a_reset(emulator, server, effect, groups, trouble, log):
    emulator.faults.add(Fault(effect=effect, nth=(2,)))
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "SearchPublicGroups"))
        await raw.send(create(emulator))
        with pytest.raises(ConnectionResetError):
            await raw.recv()
    assert len(emulator.state.groups) == groups
    assert [record.trouble for record in emulator.requests] == [(), (trouble,)]
    assert (await ask(server, create(emulator))).document["statusCode"] == "000000"
    assert not [record for record in log.records if record.levelno > logging.INFO]


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
async def test_half_an_answer_ends_before_its_length(emulator, server, keep, log):
    emulator.faults.add(Fault(effect=CutShort(keep), nth=(1,)))
    async with connected(server) as raw:
        half = await raw.ask(create(emulator))
        assert await raw.recv() == b""
    whole = await ask(server, create(emulator))
    assert (half.status, half.length) == (200, whole.length)
    assert len(half.body) == min(int(keep * whole.length), whole.length - 1)
    assert whole.body.startswith(half.body[:30])
    assert len(emulator.state.groups) == 2
    assert not [record for record in log.records if record.levelno > logging.INFO]


async def test_during_an_outage_nobody_gets_a_connection(emulator, server):
    port = server.port
    async with connected(server) as idle, connected(server) as waiting:
        await idle.ask(create(emulator))
        emulator.faults.add(Fault(effect=Latency(5)))
        await waiting.send(create(emulator))
        await arrived(emulator, 2)

        await server.refuse(60)
        assert [await idle.recv(), await waiting.recv()] == [b"", b""]
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError) as refused:
                await ask(server, create(emulator))
            assert refused.value.errno == errno.ECONNREFUSED
        await emulator.clock.advance(59)
        with pytest.raises(ConnectionRefusedError):
            await ask(server, create(emulator))
    assert len(emulator.state.groups) == 2

    emulator.faults.clear()
    await emulator.clock.advance(1)
    assert (await ask(server, create(emulator))).document["statusCode"] == "000000"
    assert (server.port, server.listening) == (port, True)


async def test_a_slow_body_begins_at_once_and_ends_late(emulator, server):
    emulator.faults.add(Fault(effect=SlowBody(30)))
    async with connected(server) as raw:
        await raw.send(create(emulator))
        status, headers = await raw.head()
        assert (status, await raw.body(1)) == (200, b"{")
        await emulator.clock.advance(29)
        await turns()
        assert raw.silent
        await emulator.clock.advance(1)
        assert json.loads(b"{" + await raw.body(int(headers["content-length"]) - 1))["statusCode"] == "000000"


HOST = b"Host: localhost\r\n"
JUNK = {
    "empty lines": (b"\r\n\r\n", 400),
    "no line of HTTP": (b"hello\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "another length": (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", 400),
    "no chunk": (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    "no chunk, from elsewhere": (b"POST / HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    "a tunnel, and no chunk": (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    "an endless head": (b"GET / HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 200_000, 400),
    "an endless line": (b"A" * 200_000, 400),
    "a GET": (b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", 200),
    "HTTP 1.0": (b"GET /%ff%00%zz?sig=%ff&&==&sig HTTP/1.0\r\n" + HOST + b"\r\n", 200),
    "HTTP 1.0 without Host": (b"GET / HTTP/1.0\r\n\r\n", 403),
    "the preface of HTTP 2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403),
    "a tunnel": (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "a proxy's line": (b"POST http://127.0.0.1/ HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n", 200),
    "an upgrade": (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
    "a signature of other bytes": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Authorization: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        200,
    ),
    "too much": (http("POST", "/", b"x" * (1024 * 1024 + 1)), 413),
    "half a character": (http("POST", "/", b'{"name": "\\ud800"}'), 200),
}


@each_row("name", JUNK)
async def test_junk_is_answered(server, log, name):
    data, status = JUNK[name]
    async with connected(server) as raw:
        answer = await raw.ask(data)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json;charset=utf-8")
    assert answer.document["statusCode"] != "000000"
    assert answer.document["statusMsg"]
    assert not [record for record in log.records if record.levelno > logging.WARNING or record.exc_info]


async def test_leaving_ends_what_is_in_flight_and_says_nothing_about_it(emulator, log):
    emulator.faults.add(Fault(effect=Latency(3600)))
    before = asyncio.all_tasks()
    async with serve(emulator) as server, connected(server) as raw, connected(server) as idle:
        await raw.send(create(emulator))
        await arrived(emulator)
        await server.__aexit__(None, None, None)
        assert [await raw.recv(), await idle.recv()] == [b"", b""]
    assert not [record for record in log.records if record.levelno > logging.INFO]
    assert asyncio.all_tasks() == before


async def test_a_failure_of_the_emulators_own_is_an_answer_and_a_line_in_the_log(emulator, server, log):
    def fail(_):
        raise ZeroDivisionError

    emulator.faults.add(Fault(effect=Refuse(), match=fail))
    answer = await ask(server, create(emulator))
    assert (answer.status, answer.document["statusCode"]) == (500, "900500")
    assert [(record.name, record.exc_info[0]) for record in log.records if record.levelno > logging.INFO] == [
        ("rbim.emulator", ZeroDivisionError)
    ]


def at_path(data, path):
    """Return the bytes of a request with another path; its query stays."""
    line, rest = data.split(b"\r\n", 1)
    query = line.split(b" ")[1].partition(b"?")[2]
    return b"POST " + path + b"?" + query + b" HTTP/1.1\r\n" + rest


async def test_a_right_signature_on_a_path_without_an_operation_is_told_so(emulator, server):
    path = "/2013-12-26/Accounts/abc/SMS/TemplateSMS"
    data = at_path(signed(emulator, "CreateGroup", name="News", type="1"), path.encode())
    async with connected(server) as raw:
        answer = await raw.ask(data)
    reason = f"the emulator has no operation at {path}"
    assert answer.document == {"statusCode": "900501", "statusMsg": reason}
    (record,) = emulator.requests
    assert (record.code, record.reason) == ("900501", reason)
    async with connected(server) as raw:
        answer = await raw.ask(data.replace(b"sig=", b"sig=0"))
    assert answer.document["statusCode"] == "111109"


@each_row("spoil", [lambda path: b"/" + path, lambda path: path + b"/", lambda path: path.replace(b"/IM", b"//IM")])
async def test_a_slash_too_many_is_named_with_the_path_that_it_hides(emulator, server, spoil):
    data = signed(emulator, "CreateGroup", name="News", type="1")
    path = data.split(b" ")[1].partition(b"?")[0]
    async with connected(server) as raw:
        answer = await raw.ask(at_path(data, spoil(path)))
    told = f"the emulator has no operation at {spoil(path).decode()}; did you mean {path.decode()}?"
    assert (answer.document["statusCode"], answer.document["statusMsg"]) == ("900501", told)


async def test_every_answer_has_the_time_of_the_emulators_clock_and_says_that_it_is_emulated(emulator, server):
    long_ago = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    asked = {
        "an operation": signed(emulator, "CreateGroup", name="News", type="1"),
        "a command": http("GET", "/_emulator/clock"),
        "a refusal": http("GET", "/", b"", "Origin: http://a.test"),
        "no HTTP": b"\x00\r\n\r\n",
        "no operation": long_ago,
    }
    for seconds in (0, 3600.4):
        await emulator.advance(seconds)
        for name, data in asked.items():
            async with connected(server) as raw:
                answer = await raw.ask(data)
            theirs = parsedate_to_datetime(answer.headers["date"])
            assert theirs == emulator.clock.now().replace(microsecond=0), name
            assert answer.headers["server"] == "rbim-emulator (emulated clock)", name


# Peers that leave, do not read, or come too late.


@pytest.mark.ci
@each_row("status", [204, 304])
async def test_a_status_without_a_body_keeps_the_connection_in_order(emulator, server, status):
    emulator.faults.add(Fault(effect=Status(status), nth=(1,)))
    async with connected(server) as raw:
        assert (await raw.ask(create(emulator))).status == status
        assert (await raw.ask(create(emulator))).status == 200


@pytest.mark.ci
async def test_a_peer_that_leaves_early_does_no_harm(emulator, server, log):
    async with connected(server) as raw:
        await raw.send(create(emulator)[:-1])
        await turns()
    emulator.faults.add(Fault(effect=Latency(1)), Fault(effect=ResetAfter(), nth=(1,)), Fault(effect=CutShort(), nth=(2,)))
    for number in (1, 2, 3):
        async with connected(server) as raw:
            await raw.send(create(emulator))
            await arrived(emulator, number)
            raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await turns()
    await emulator.clock.advance(1)
    await turns()
    assert len(emulator.state.groups) == 3
    assert not [record for record in log.records if record.levelno > logging.INFO]


@pytest.mark.ci
async def test_a_peer_that_reads_late_gets_every_answer(emulator, server):
    emulator.faults.add(Fault(effect=Code("1", "x" * 100_000)))
    async with connected(server) as raw:
        await raw.send(signed(emulator, "SearchPublicGroups") * 100)
        await turns(200)
        assert 0 < len(emulator.requests) < 100  # it is not worked for either, meanwhile
        answers = [await raw.answer() for _ in range(100)]
    assert {(answer.status, len(answer.document["statusMsg"])) for answer in answers} == {(200, 100_000)}
