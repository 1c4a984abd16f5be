"""The server door, seen by plain sockets: resets, refused connections, half answers, and junk that is answered."""

import asyncio
import errno
import gc
import json
import logging
import signal
import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import anyio
import h11
import httpx
import pytest

from helpers.rawclient import JSON, ask, connected, http, signed
from helpers.sockets import speaks_ipv6
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.requests import (
    Code,
    CutShort,
    DuplicateFields,
    Fault,
    InvalidJson,
    Latency,
    Refuse,
    ResetAfter,
    ResetBefore,
    SlowBody,
    Status,
    Throttle,
)
from rbim.emulator.server.server import run, serve


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def server(emulator):
    async with serve(emulator) as server:
        yield server


@pytest.fixture
def log(caplog):
    """What was logged, from the lowest level on."""
    caplog.set_level(logging.DEBUG)
    return caplog


def create(emulator):
    return signed(emulator, "CreateGroup", name="产品公告", type="1")


async def turns(count=20):
    """Let the event loop turn; whatever is ready happens."""
    for _ in range(count):
        await asyncio.sleep(0)


async def arrived(emulator, count=1):
    """Wait until so many requests have reached the platform."""
    while len(emulator.requests) < count:
        await asyncio.sleep(0)
    await turns(5)


async def test_a_connection_serves_one_request_after_another(emulator, server):
    async with connected(server) as raw:
        made = await raw.ask(create(emulator))
        assert (made.status, made.document["statusCode"]) == (200, "000000")
        group_id = made.document["groupId"]
        detail = await raw.ask(signed(emulator, "QueryGroupDetail", groupId=group_id))
        assert (detail.document["name"], detail.document["count"]) == ("产品公告", "1")
        await raw.send(signed(emulator, "QueryGroupDetail", groupId=group_id) * 3)
        assert [(await raw.answer()).document["name"] for _ in range(3)] == ["产品公告"] * 3
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert list(emulator.state.groups) == [group_id]


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


async def test_an_outage_takes_the_place_of_another(emulator, server):
    await server.refuse(60)
    await server.refuse(10)
    await emulator.clock.advance(10)
    assert server.listening
    await server.refuse(10)
    await server.refuse(60)
    await emulator.clock.advance(59)
    assert not server.listening
    with pytest.raises(ConnectionRefusedError):
        await ask(server, create(emulator))
    await emulator.clock.advance(1)
    assert (await ask(server, create(emulator))).status == 200


async def test_during_an_outage_the_port_is_nobody_elses(server):
    await server.refuse(1)
    for reuse in (0, 1):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            with pytest.raises(OSError, match="in use"):
                other.bind((server.host, server.port))


async def test_an_outage_ends_when_a_process_ends_that_took_the_port(emulator, server, monkeypatch):
    """On a system that cannot reserve an address, another process may listen there during an outage."""
    monkeypatch.setattr("rbim.emulator.server.listener.reserve", lambda *_, **__: None)
    await server.refuse(10)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind((server.host, server.port))
        thief.listen()
        await emulator.clock.advance(10)
        await asyncio.sleep(0)
        assert not server.listening
        with pytest.raises(OSError, match="in use"):
            await server.accept()
        assert not server.listening
    with anyio.fail_after(10):
        while not server.listening:
            await asyncio.sleep(0.01)
    assert (await ask(server, create(emulator))).status == 200


async def test_a_server_can_be_left_during_an_outage(emulator):
    async with serve(emulator) as server:
        await server.refuse(60)
    assert not server.listening
    with pytest.raises(ConnectionRefusedError):
        await ask(server, b"")
    await emulator.clock.advance(60)
    assert not server.listening


async def test_a_server_that_was_never_entered_has_no_outage(emulator):
    with pytest.raises(RuntimeError, match="not entered"):
        await serve(emulator).refuse(1)


async def test_latency_is_time_before_the_first_byte(emulator, server):
    emulator.faults.add(Fault(effect=Latency(2.5)))
    async with connected(server) as raw:
        await raw.send(create(emulator))
        await arrived(emulator)
        assert raw.silent
        await emulator.clock.advance(2.4)
        await turns()
        assert raw.silent
        await emulator.clock.advance(0.1)
        assert (await raw.answer()).document["statusCode"] == "000000"


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


async def test_a_throttle_answers_429_with_retry_after(emulator, server):
    emulator.faults.add(Fault(effect=Throttle(2, retry_after=3)))
    async with connected(server) as raw:
        answers = [await raw.ask(create(emulator)) for _ in range(3)]
        await emulator.clock.advance(1)
        answers.append(await raw.ask(create(emulator)))
    assert [answer.status for answer in answers] == [200, 200, 429, 200]
    assert [answer.headers.get("retry-after") for answer in answers] == [None, None, "3", None]
    assert len(emulator.state.groups) == 3


async def test_what_needs_no_hand_on_the_connection(emulator, server):
    effects = (Code("111400"), Throttle(0, code="160041"), Status(503, retry_after=7), InvalidJson(), DuplicateFields())
    emulator.faults.add(*(Fault(effect=effect, nth=(number,)) for number, effect in enumerate(effects, 1)))
    async with connected(server) as raw:
        code, throttled, status, invalid, double = [await raw.ask(create(emulator)) for _ in effects]
    assert [code.document["statusCode"], throttled.document["statusCode"]] == ["111400", "160041"]
    assert (status.status, status.headers["retry-after"], status.headers["content-type"][:9]) == (503, "7", "text/html")
    assert invalid.status == 200
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(invalid.body)
    names = [name for name, _ in json.loads(double.body, object_pairs_hook=list)]
    assert names == ["statusCode", "groupId"] * 2
    assert len(emulator.state.groups) == 2


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_keeps_the_connection_in_order(emulator, server, status):
    emulator.faults.add(Fault(effect=Status(status), nth=(1,)))
    async with connected(server) as raw:
        assert (await raw.ask(create(emulator))).status == status
        assert (await raw.ask(create(emulator))).status == 200


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
    "a proxy's line for another host": (b"POST http://a/ HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n", 403),
    "an upgrade": (b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
    "a signature of other bytes": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Authorization: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        200,
    ),
    "too much": (http("POST", "/", b"x" * (1024 * 1024 + 1)), 413),
    "half a character": (http("POST", "/", b'{"name": "\\ud800"}'), 200),
}


@pytest.mark.parametrize("name", JUNK)
async def test_junk_is_answered(server, log, name):
    data, status = JUNK[name]
    async with connected(server) as raw:
        answer = await raw.ask(data)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json;charset=utf-8")
    assert answer.document["statusCode"] != "000000"
    assert answer.document["statusMsg"]
    assert not [record for record in log.records if record.levelno > logging.WARNING or record.exc_info]


async def test_junk_after_an_answer_closes_the_connection_and_leaves_no_traceback(emulator, server, log):
    chunk = b"fffff\r\n" + b"x" * 0xFFFFF + b"\r\n"
    async with connected(server) as raw:
        await raw.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 2)
        assert (await raw.answer()).status == 413
        await raw.send(b"ZZ\r\n")
        assert await raw.recv() == b""
    assert not [record for record in log.records if record.levelno > logging.WARNING or record.exc_info]
    assert len(emulator.requests) == 0


async def test_a_head_request_gets_a_head(server):
    async with connected(server) as raw:
        await raw.send(http("HEAD", "/"))
        assert (await raw.answer(bodiless=True)).length > 0
        assert (await raw.ask(http("GET", "/"))).document["statusCode"] == "900400"


@pytest.mark.parametrize("rest", [b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", b"Content-Length: 5\r\n\r\nabc"])
async def test_a_head_request_with_a_bad_body_gets_a_head(server, log, rest):
    async with connected(server) as raw:
        await raw.send(b"HEAD / HTTP/1.1\r\n" + HOST + rest)
        raw.sock.shutdown(socket.SHUT_WR)
        answer = await raw.answer(bodiless=True)
        assert (answer.status, answer.headers["connection"]) == (400, "close")
        assert await raw.recv() == b""
    assert not [record for record in log.records if record.levelno > logging.WARNING or record.exc_info]


async def test_a_peer_that_has_said_all_it_has_to_say_is_answered(emulator, server):
    emulator.faults.add(Fault(effect=Latency(1)))
    async with connected(server) as raw:
        await raw.send(create(emulator))
        await arrived(emulator)
        raw.sock.shutdown(socket.SHUT_WR)
        await turns()
        await emulator.clock.advance(1)
        assert (await raw.answer()).document["statusCode"] == "000000"
        assert await raw.recv() == b""


@pytest.mark.parametrize("part", [b"POST / HTTP", http("POST", "/", b"whole")[:-2]])
async def test_a_request_that_ends_too_early_is_answered_and_does_nothing(emulator, server, part):
    async with connected(server) as raw:
        await raw.send(part)
        raw.sock.shutdown(socket.SHUT_WR)
        answer = await raw.answer()
        assert (answer.status, answer.document["statusMsg"]) == (400, "the request ends too early")
        assert await raw.recv() == b""
    assert len(emulator.requests) == 0


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


async def test_a_peer_that_does_not_read_is_not_waited_for(emulator):
    async with serve(emulator) as server, connected(server) as raw:
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        big = [{"effect": {"kind": "code", "code": "1", "message": "x" * 4_000_000}}]
        await raw.send(http("PUT", "/_emulator/faults", json.dumps(big).encode(), JSON))
        while not emulator.faults:
            await asyncio.sleep(0)
        await turns()


async def test_a_peer_that_reads_late_gets_every_answer(emulator, server):
    emulator.faults.add(Fault(effect=Code("1", "x" * 100_000)))
    async with connected(server) as raw:
        await raw.send(signed(emulator, "SearchPublicGroups") * 100)
        await turns(200)
        assert 0 < len(emulator.requests) < 100  # it is not worked for either, meanwhile
        answers = [await raw.answer() for _ in range(100)]
    assert {(answer.status, len(answer.document["statusMsg"])) for answer in answers} == {(200, 100_000)}


async def answers_without_end(raw):
    while True:
        await raw.answer()


@pytest.mark.parametrize("count", range(6))
async def test_a_connection_that_comes_as_the_server_stops_listening_is_not_served(emulator, server, count):
    async with connected(server) as raw:
        await raw.send(create(emulator))
        await turns(count)
        await server.refuse(1)
        with pytest.raises((EOFError, ConnectionResetError)):
            await answers_without_end(raw)
        with pytest.raises(ConnectionRefusedError):
            await ask(server, create(emulator))


async def test_a_failure_in_the_middle_of_an_answer_closes_the_connection(log):
    class Broken(EmulatedClock):
        async def sleep(self, _):
            raise ZeroDivisionError

    emulator = Emulator(clock=Broken())
    emulator.faults.add(Fault(effect=SlowBody(1)))
    async with serve(emulator) as server, connected(server) as raw:
        await raw.send(create(emulator))
        status, headers = await raw.head()
        assert (status, await raw.body(int(headers["content-length"]))) == (200, b"{")
    assert [record.exc_info[0] for record in log.records if record.levelno > logging.INFO] == [ZeroDivisionError]


async def test_without_a_hand_on_the_connection_a_fault_that_needs_one_is_an_error(emulator):
    emulator.faults.add(Fault(effect=ResetAfter()))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(emulator.asgi), base_url="http://emulator") as client:
        with pytest.raises(RuntimeError, match="no control over its connections, needed for reset_after"):
            await client.post("/")


async def test_the_log_never_holds_a_signature(emulator, server, log):
    request = create(emulator)
    await ask(server, request)
    sig = request.partition(b"sig=")[2][:32].decode()
    assert len(sig) == 32
    assert sig not in log.text
    assert "uvicorn.access" not in {record.name for record in log.records}


async def test_a_guess_that_a_strict_emulator_refuses_is_an_answer(log):
    emulator = Emulator(clock=EmulatedClock(), strict_dialect=True)
    async with serve(emulator) as server:
        made = await ask(server, signed(emulator, "CreateGroup", name="a", type="1", permission="1"))
        answer = await ask(server, signed(emulator, "ModifyGroup", groupId=made.document["groupId"], name="b"))
    assert (answer.status, answer.document["statusCode"]) == (500, "900500")
    assert "Dialect.modify_resets_permission" in answer.document["statusMsg"]
    assert not [record for record in log.records if record.levelno > logging.INFO]


async def test_a_failure_of_the_emulators_own_is_an_answer_and_a_line_in_the_log(emulator, server, log):
    def fail(_):
        raise ZeroDivisionError

    emulator.faults.add(Fault(effect=Refuse(), match=fail))
    answer = await ask(server, create(emulator))
    assert (answer.status, answer.document["statusCode"]) == (500, "900500")
    assert [(record.name, record.exc_info[0]) for record in log.records if record.levelno > logging.INFO] == [
        ("rbim.emulator", ZeroDivisionError)
    ]


async def test_servers_live_side_by_side_and_a_taken_port_is_an_error():
    emulators = [Emulator() for _ in range(5)]
    servers = [serve(emulator) for emulator in emulators]
    for server in servers:
        await server.__aenter__()
    try:
        for emulator, server in zip(emulators, servers, strict=True):
            await ask(server, create(emulator))
        assert [len(emulator.state.groups) for emulator in emulators] == [1] * 5
        assert len({server.port for server in servers}) == 5
        with pytest.raises(OSError, match="in use"):
            await serve(emulators[0], port=servers[1].port).__aenter__()
    finally:
        for server in servers:
            await server.__aexit__(None, None, None)


IPV6 = [("::1", "[::1]"), ("::", "[::1]")] if speaks_ipv6() else []  # a machine without it has no such addresses


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("localhost", None), *IPV6])
async def test_the_url_is_one_that_this_machine_can_ask(emulator, host, shown):
    async with serve(emulator, host=host) as server:
        assert server.url in {
            f"http://{shown}:{server.port}",
            f"http://127.0.0.1:{server.port}",
            f"http://[::1]:{server.port}",
        }
        assert shown is None or server.url == f"http://{shown}:{server.port}"
        assert (await ask(server, create(emulator))).status == 200


async def test_a_host_that_is_not_this_machine_is_an_error(emulator):
    with pytest.raises(OSError, match=r"assign|address"):
        await serve(emulator, host="203.0.113.1").__aenter__()


def test_without_uvicorn_the_error_names_the_pip_command():
    code = "import sys; sys.modules['uvicorn'] = None; import rbim.emulator.server.server"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == (
        'ModuleNotFoundError: serving the emulator needs uvicorn; install it with: python -m pip install "rbim[server]"'
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_serves_until_a_signal(emulator, number):
    told = []

    def begun(server):
        told.append(server.listening)
        signal.raise_signal(number)
        signal.raise_signal(number)

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    run(emulator, port=0, begun=begun, ended=lambda: told.append("ended"))
    assert told == [True, "ended"]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def at_path(data, path):
    """Return the bytes of a request with another path; its query stays."""
    line, rest = data.split(b"\r\n", 1)
    query = line.split(b" ")[1].partition(b"?")[2]
    return b"POST " + path + b"?" + query + b" HTTP/1.1\r\n" + rest


async def test_a_target_in_absolute_form_names_path_and_host(emulator, server):
    data = signed(emulator, "CreateGroup", name="News", type="1")
    path = data.split(b" ")[1].partition(b"?")[0]
    async with connected(server) as raw:
        answer = await raw.ask(at_path(data, f"http://127.0.0.1:{server.port}".encode() + path))
    assert (answer.status, answer.document["statusCode"]) == (200, "000000")
    foreign = at_path(data, b"http://rebound.test" + path)
    async with connected(server) as raw:
        answer = await raw.ask(foreign)
    assert (answer.status, "rebound.test" in answer.document["error"], len(emulator.requests)) == (403, True, 1)


@pytest.mark.parametrize("path", ["/2013-12-26/Accounts/abc/SMS/TemplateSMS", "/IM/Nothing"])
async def test_a_right_signature_on_a_path_without_an_operation_is_told_so(emulator, server, path):
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


@pytest.mark.parametrize(
    "spoil", [lambda path: b"/" + path, lambda path: path + b"/", lambda path: path.replace(b"/IM", b"//IM")]
)
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


async def test_with_the_clock_of_this_machine_the_time_is_its_own():
    before = datetime.now(UTC).replace(microsecond=0)
    async with serve(Emulator()) as server, connected(server) as raw:
        answer = await raw.ask(http("GET", "/_emulator/clock"))
    assert before <= parsedate_to_datetime(answer.headers["date"]) <= datetime.now(UTC)
    assert answer.headers["server"] == "rbim-emulator"


async def test_heads_are_kept_as_long_as_their_date_holds(emulator, server):
    """Their number depends on the answers of a second, not on how long the server has run."""
    kept = []
    async with connected(server) as raw:
        for _ in range(41):
            await emulator.advance(1)
            await raw.ask(signed(emulator, "CreateGroup", name="News", type="1"))
            kept.append(_heads())
    assert kept[-1] <= kept[0] + 5


def _heads():
    gc.collect()
    return sum(type(each) is h11.Response for each in gc.get_objects())


async def test_an_error_that_ends_the_copying_of_messages_is_logged(emulator, monkeypatch, caplog):
    @asynccontextmanager
    async def broken(_):
        raise ValueError("a defect")
        yield

    monkeypatch.setattr(Emulator, "copying", broken)
    async with serve(emulator) as server, connected(server) as raw:
        assert (await raw.ask(http("GET", "/_emulator/clock"))).status == 200
    assert [each.message for each in caplog.records] == ["the emulator failed, and copies no message any more"]
