"""The benchmarks of throughput and of the core: that they run, that everybody does the same work, that tables read well."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import json
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks import core, peers, throughput
from benchmarks.__main__ import main
from benchmarks.httpload import process
from benchmarks.results import Goal, Result, Table, interleaved, ratio, shown
from benchmarks.target import ANSWER, BODY
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, PATH, Stopwatch, once
from helpers.paths import ROOT

PEERS = [peers.Httpx, peers.Httpx2, peers.Aiohttp, peers.Pyreqwest, peers.Requests]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def target():
    with process("benchmarks.target") as served:
        yield served


def test_the_command_line_measures_and_writes_json():
    command = [sys.executable, "-m", "benchmarks", "throughput", "core", "--quick", "--rounds", "1", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "Python 3." in document["versions"]
    throughput, core = document["results"]
    assert (throughput["part"], core["part"]) == ("throughput", "core")
    fast, late, rates, bursts = throughput["tables"]
    assert "no latency" in fast["title"]
    assert "20 ms" in late["title"]
    assert fast["columns"] == late["columns"] == rates["columns"] == ["client", "1", "10"]
    names = ["rbim over AsyncioTransport", "rbim over HttpxTransport", "httpx by hand", "bytes-level floor"]
    for table in (fast, late, rates, bursts):
        assert [row[0] for row in table["rows"]] == names
        assert all(cell > 0 for row in table["rows"] for cell in row[1:])
    (costs,) = core["tables"]
    assert costs["columns"][1:] == ["orjson", "standard json"]
    assert all(cell > 0 for row in costs["rows"] for cell in row[1:])
    (goal,) = core["goals"]
    assert goal["reached"] == (goal["value"] <= goal["at_most"] == 1.8)
    assert "== core" in done.stderr
    assert "at most 1.8" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speed"], "no such part: speed (choose from throughput, core, "),
        (["core", "--plot", "charts"], "--plot: the charts show the part throughput"),
        (["core", "--json", ""], "--json: name a file, or - for standard output"),
        (["--rounds", "0"], "--rounds: at least 1"),
        (["--rounds", "x"], "argument --rounds: invalid int value: 'x'"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    error = capsys.readouterr().err
    assert error.startswith("python -m benchmarks: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_written_shows_before_anything_is_measured(tmp_path, capsys):
    assert main(["core", "--json", str(tmp_path / "no" / "folder.json")]) == 1
    error = capsys.readouterr().err
    assert "No such file" in error
    assert error.count("\n") == 1


def test_the_target_answers_what_http_clients_understand(target):
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=10)
    for body in (b"{}", b"", b"x" * 100_000):
        connection.request("POST", "/any", body)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, BODY)
        assert not answer.will_close
    connection.request("GET", "/no/length")
    assert connection.getresponse().read() == BODY
    connection.close()
    assert json.loads(BODY)["statusCode"] == "000000"
    assert len(BODY) == 51
    assert target.cpu > 0


def test_the_target_finds_where_requests_end(target):
    one = b"POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:5\r\n\r\nhello"
    with socket.create_connection(("127.0.0.1", target.port), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (one * 3, one[:20], one[20:], one + one[:-2], one[-2:] + one[:1], one[1:]):
            client.sendall(piece)
            time.sleep(0.01)
        answers = 3 + 1 + 1 + 1 + 1
        received = b""
        while len(received) < answers * len(ANSWER):
            received += client.recv(65536)
        client.settimeout(0.01)
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert received == ANSWER * answers


def test_the_target_waits_when_told():
    with process("benchmarks.target", "--latency", "0.03") as served:
        clients = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(3)]
        began = time.monotonic()
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for client in clients:
            assert client.recv(65536) == ANSWER
            client.close()
        assert time.monotonic() - began >= 0.03


async def _recorded(make, body, requests=1):
    """Let a carrier with one call in flight do its work before a server that tells what it was sent."""
    seen, serving = [], set()

    async def serve(reader, writer):
        serving.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, _, value in (text.partition(": ") for text in lines)}
                document = await reader.readexactly(int(headers["content-length"]))
                seen.append(SimpleNamespace(line=line, headers=headers, document=json.loads(document)))
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with make(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", 1) as carrier:
            await carrier.run(lambda: len(seen) < requests)
    finally:
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
        await asyncio.sleep(0)
        server.close()
        await server.wait_closed()
    return seen


CARRIERS = [client for client in throughput.CLIENTS if not client.missing]


@pytest.mark.parametrize("client", CARRIERS, ids=lambda client: client.name)
async def test_everybody_does_the_same_work(client):
    started = int(time.time())
    first, second = (await _recorded(client.make, BODY, 2))[-2:]
    method, target, protocol = first.line.split()
    assert (method, protocol) == ("POST", "HTTP/1.1")
    path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
    assert path == PATH == f"/2013-12-26/Application/{APP_ID}/IM/Group/InviteJoinGroup"
    app_id, _, stamp = base64.b64decode(first.headers["authorization"]).decode().partition(":")
    assert app_id == APP_ID
    allowed = [time.strftime("%Y%m%d%H%M%S", time.gmtime(second + 8 * 3600)) for second in range(started, started + 10)]
    assert stamp in allowed
    assert query == {"sig": [hashlib.md5((APP_ID + APP_TOKEN + stamp).encode()).hexdigest().upper()]}
    assert first.document == second.document == {"groupId": GROUP, "members": ACCOUNTS, "confirm": "1"}
    assert len(ACCOUNTS) == 50
    assert first.headers["accept"] == "application/json"
    assert first.headers["content-type"].startswith("application/json")  # pyreqwest has its own way of saying so


@pytest.mark.parametrize("peer", PEERS)
async def test_peers_read_the_answer_and_check_its_code(peer):
    with pytest.raises(RuntimeError, match="111109: who"):
        await _recorded(peer, b'{"statusCode":"111109","statusMsg":"who are you"}')


async def test_a_turn_measures_steady_work_and_bursts(target):
    by_name = {contender.name: contender for contender in throughput.CLIENTS}
    plan = throughput.Plan(bursts=(20,), seconds=0.01, warm=0.0)
    for name in ("bytes-level floor", "aiohttp by hand", "rbim over AsyncioTransport", "requests in 32 threads"):
        lap, burst = await throughput.turn(by_name[name], target, 20, plan)
        assert lap.count >= 20
        assert burst is None if "threads" in name else burst.count % 20 == 0


def test_a_stopwatch_leaves_out_what_comes_first():
    watch = Stopwatch(skip=3, warm=0.0, count=2, seconds=0.0, elsewhere=iter([1.0, 1.5]).__next__)
    assert [watch.more() for _ in range(7)] == [True] * 4 + [False] * 3
    assert watch.lap is not None
    assert (watch.lap.count, watch.lap.elsewhere) == (2, 0.5)
    assert watch.lap.wall > 0
    assert not once()


def test_a_stopwatch_measures_for_as_long_as_told():
    began = time.monotonic()
    watch = Stopwatch(skip=0, warm=0.01, count=1, seconds=0.02)
    while watch.more():
        time.sleep(0.001)
    assert time.monotonic() - began >= 0.03
    assert 0.02 <= watch.lap.wall <= time.monotonic() - began


def test_the_parts_of_a_call_are_those_of_a_call():
    results = {name: part() for name, part in core.parts().items()}
    success, failure = "decode a plain success, seen before", "decode a list of failures"
    retrying = "retry decision (failed calls only)"
    assert [*results] == ["make the operation", "encode", "sign", success, failure, retrying]
    assert json.loads(results["encode"].body)["members"] == ACCOUNTS
    assert "sig" in results["sign"].query
    assert results[success].fails == ()
    assert [fail.member for fail in results[failure].fails] == ["account0001"]
    assert results[retrying] >= 0


def test_tables_and_goals_as_text():
    table = Table(
        title="Cost", columns=("client", "1", "1000"), rows=(("a", 1234.56, None), ("bc", 7.0, "text")), note="noted"
    )
    goals = (Goal(name="cost", value=0.25, at_most=0.25), Goal(name="speed", value=1.999, at_least=2))
    assert shown(Result(part="some", tables=(table,), goals=goals, notes=("said",))).splitlines() == [
        "== some",
        "",
        "Cost",
        "client        1  1000",
        "a       1,234.6     -",
        "bc          7.0  text",
        "noted",
        "",
        "said",
        "",
        "goal   measured           aim",
        "cost       0.25  at most 0.25  reached",
        "speed      2.00    at least 2   MISSED",
    ]


def test_goals_are_reached_or_not():
    assert Goal(name="", value=1.0, at_most=1.0).reached
    assert not Goal(name="", value=1.01, at_most=1.0).reached
    assert Goal(name="", value=2.0, at_least=2.0).reached
    assert not Goal(name="", value=1.99, at_least=2.0).reached
    document = Result(part="p", goals=(Goal(name="g", value=1.0, at_most=2.0),)).document()
    assert [*document["goals"]] == [{"name": "g", "value": 1.0, "at_most": 2.0, "at_least": None, "reached": True}]


def test_ratios_are_of_the_same_round():
    ours, theirs = iter([1.0, 20.0, 3.0]), iter([2.0, 10.0, 2.0])
    figures = interleaved({"ours": ours.__next__, "theirs": theirs.__next__}, 3)
    assert ratio(figures, "ours", "theirs") == 1.5
