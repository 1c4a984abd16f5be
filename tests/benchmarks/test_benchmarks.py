"""The benchmarks of throughput and of the core: that they run, that everybody does the same work, that tables read well."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from attrs import evolve

from benchmarks import contenders, core, peers, throughput, turns
from benchmarks.__main__ import main
from benchmarks.certificates import certificates
from benchmarks.httpload import process
from benchmarks.results import Goal, Result, Table, interleaved, ratio, shown
from benchmarks.target import ANSWER, BODY
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, PATH, Lap, Stopwatch, once
from helpers.paths import ROOT

PEERS = [peers.Httpx, peers.Httpx2, peers.Aiohttp, peers.Pyreqwest, peers.Requests]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def target():
    with process("benchmarks.target") as served:
        yield served


@pytest.fixture(scope="module")
def same():
    with process("benchmarks.target", "--constant") as served:
        yield served


def test_the_command_line_measures_and_writes_json():
    command = [sys.executable, "-m", "benchmarks", "throughput", "core", "--quick", "--rounds", "1", "--json", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "Python 3." in document["versions"]
    throughput, core = document["results"]
    assert (throughput["part"], core["part"]) == ("throughput", "core")
    assert throughput["rounds"] == 1
    assert throughput["seconds"] > 0
    tables = {table["title"]: table for table in throughput["tables"]}
    fast, late, tls, on_uvloop, heads, rates, bursts, sends = tables.values()
    assert "no latency" in fast["title"]
    assert "20 ms" in late["title"]
    assert fast["columns"] == late["columns"] == rates["columns"] == ["client", "1", "10"]
    names = [
        "rbim over AsyncioTransport",
        "rbim over HttpxTransport",
        "aiohttp by hand",
        "httpx by hand",
        "bytes-level floor",
    ]
    for table, known in ((fast, names), (late, names), (rates, names), (tls, names), (bursts, names)):
        assert [row[0] for row in table["rows"] if not row[0].endswith("h11")] == known
    assert "TLS 1.3" in tls["title"]
    assert heads["columns"][1:] == ["unique", "constant", "unique / constant"]
    assert [row[0] for row in on_uvloop["rows"]] == [f"{name}, uvloop" for name in names if name != "httpx by hand"]
    assert [row[0] for row in sends["rows"]] == ["send", "fan_out"]
    for table in tables.values():
        assert all(cell > 0 for row in table["rows"] for cell in row[1:])
    goals = {goal["name"]: goal["at_most"] for goal in throughput["goals"]}
    assert goals["rbim over HttpxTransport / aiohttp by hand, 10 in flight"] == 1.7
    assert goals["rbim over HttpxTransport / aiohttp by hand, 10 in flight, TLS 1.3"] == 1.7
    (costs,) = core["tables"]
    assert costs["columns"][1:] == ["orjson", "standard json"]
    assert all(cell > 0 for row in costs["rows"] for cell in row[1:])
    (goal,) = core["goals"]
    assert goal["met"] == (goal["value"] <= goal["at_most"] == 1.8)
    assert "== core" in done.stderr
    assert "at most 1.8" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["speed"], "no such part: speed (choose from throughput, core, "),
        (["core", "--plot", "charts"], "--plot: the charts show the part throughput"),
        (["core", "--json", ""], "--json: name a file, or - for standard output"),
        (["core", "--merge"], "--merge: name the file with --json"),
        (["core", "--merge", "--json", "-"], "--merge: name the file with --json"),
        (["core", "--against", "HEAD"], "--against: it compares the part instructions"),
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


def part(name, **given):
    """Return a module of the benchmarks that measures nothing."""
    return SimpleNamespace(run=lambda _options: Result(part=name, **given))


def parts_of(path):
    return {result["part"]: result["notes"] for result in json.loads(path.read_text(encoding="utf-8"))["results"]}


def test_each_part_is_written_when_it_is_measured(tmp_path, monkeypatch, capsys):
    def fail(_options):
        raise RuntimeError("a child failed")

    path = tmp_path / "measured.json"
    monkeypatch.setitem(sys.modules, "benchmarks.memory", part("memory", notes=("kept",)))
    monkeypatch.setitem(sys.modules, "benchmarks.core", SimpleNamespace(run=fail))
    assert main(["memory", "core", "--json", str(path)]) == 1
    assert parts_of(path) == {"memory": ["kept"]}
    assert capsys.readouterr().err.splitlines()[-1] == "python -m benchmarks: a child failed"


def test_a_run_is_continued_in_its_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "measured.json"
    for name, said in (("memory", "first"), ("core", "second"), ("memory", "third")):
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", part(name, notes=(said,)))
        assert main([name, "--json", str(path), "--merge"]) == 0
    assert parts_of(path) == {"core": ["second"], "memory": ["third"]}
    assert [*parts_of(path)] == ["core", "memory"]  # in the order of the parts
    path.write_text(json.dumps({"versions": "Python 2.7", "machine": "", "results": []}), encoding="utf-8")
    capsys.readouterr()
    assert main(["memory", "--json", str(path), "--merge"]) == 1
    assert "the file has results of Python 2.7" in capsys.readouterr().err
    assert main(["memory", "--json", str(path)]) == 0
    assert parts_of(path) == {"memory": ["third"]}


def test_a_result_comes_back_from_its_document():
    result = Result(
        part="some",
        tables=(Table(title="t", columns=("", "a"), rows=(("x", 1.0), ("y", None)), note="n"),),
        goals=(Goal(name="g", value=1.0, at_least=2.0), Goal(name="figure", value=3.0)),
        notes=("said",),
    )
    assert Result.from_document(json.loads(json.dumps(result.document()))) == result


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


def test_the_target_finds_where_requests_end(same):
    one = b"POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH:5\r\n\r\nhello"
    with socket.create_connection(("127.0.0.1", same.port), timeout=10) as client:
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


def heads(port, number, context=None):
    """Return the heads of so many answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    if context is not None:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    found = []
    for _ in range(number):
        connection.request("POST", "/any", b"{}")
        answer = connection.getresponse()
        assert answer.read() == BODY
        found.append(str(answer.headers))
    connection.close()
    return found


def test_every_answer_has_a_head_of_its_own(target):
    found = heads(target.port, 50)
    assert len({*found}) == 50
    assert len({*map(len, found)}) == 1  # the floor counts bytes
    lines = [dict(line.split(": ") for line in head.split("\n") if line) for head in found]
    assert len({line["X-Request-Id"] for line in lines}) == 50
    dates = [parsedate_to_datetime(line["Date"]).timestamp() for line in lines]
    assert all(abs(date - time.time()) < 30 for date in dates)


def test_constant_heads_are_for_those_who_ask(same):
    assert len({*heads(same.port, 10)}) == 1


@pytest.fixture(scope="module")
def encrypted():
    with certificates() as files, process("benchmarks.target", "--certificate", files.server) as served:
        yield turns.Place.of(served, files.ca)


def test_the_target_serves_tls_1_3_and_nothing_older(encrypted):
    address = "127.0.0.1", urlsplit(encrypted.origin).port
    context = ssl.create_default_context(cafile=encrypted.ca)
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname=address[0]) as wrapped:
        assert wrapped.version() == "TLSv1.3"
    assert len({*heads(address[1], 3, context)}) == 3
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(address) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname=address[0])


@pytest.mark.parametrize("client", [each for each in contenders.CLIENTS if not each.missing], ids=lambda client: client.name)
async def test_every_client_speaks_tls(client, encrypted):
    plan = turns.Plan(bursts=(), seconds=0.0, warm=0.0)
    lap, _ = await turns.turn(client, encrypted, 2, plan)
    assert lap.count >= 2


def test_the_target_waits_when_told():
    with process("benchmarks.target", "--latency", "0.03", "--constant") as served:
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


CARRIERS = [client for client in contenders.CLIENTS if not client.missing]


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
    plan = turns.Plan(bursts=(20,), seconds=0.01, warm=0.0)
    names = ("bytes-level floor", "aiohttp by hand", "rbim over AsyncioTransport", "requests in 32 threads", "fan_out")
    for contender in contenders.chosen(*names):
        lap, burst = await turns.turn(contender, turns.Place.of(target), 20, plan)
        assert lap.count >= 20
        assert burst.count % 20 == 0 if contender.bursts else burst is None


def test_a_module_is_hidden_in_a_process_of_its_own(target):
    """A client that needs the hidden module is left out, with the reason; any other one is measured there."""
    plan = turns.Plan(bursts=(), seconds=0.01, warm=0.0)
    ours, peer = (evolve(each, without="aiohttp") for each in contenders.chosen("rbim over AiohttpTransport", "send"))
    with turns.Processes() as processes:
        assert "aiohttp" in processes.missing(ours)
        assert not processes.missing(peer)
        lap, burst = processes.turn(peer, turns.Place.of(target), 5, plan)
    assert lap.count >= 5
    assert burst is None


def test_a_row_on_uvloop_runs_on_uvloop(target):
    pytest.importorskip("uvloop")
    seen = []

    class Carrier:
        def __init__(self, *_):
            pass

        async def __aenter__(self):
            seen.append(type(asyncio.get_running_loop()).__module__)
            return self

        async def __aexit__(self, *_):
            pass

        async def run(self, more):
            while more():
                pass

    row = contenders.on_uvloop(contenders.Contender("mine", Carrier))
    with turns.Processes() as processes:
        lap, _ = processes.turn(row, turns.Place.of(target), 1, turns.Plan(bursts=(), seconds=0.0, warm=0.0))
    assert row.name == "mine, uvloop"
    assert lap.count >= 1
    assert seen == ["uvloop"]


def laps(**costs):
    """Return measurements whose costs of 1000 calls are these, by client, with 10 and with 1000 in flight."""
    found = turns.Laps()
    for name, (few, many) in costs.items():
        for number, ms in ((10, few), (1000, many)):
            found.add((name.replace("_", " "), number), Lap(1000, ms / 1000, 1.0, 0.0), None)
    return found


def test_the_growth_with_the_calls_in_flight_stands_beside_the_floors():
    of = laps(rbim_over_X=(10, 20), rbim_over_Y=(10, 40), rbim_over_Z=(10, 12), **{"bytes-level_floor": (1, 1.6)})
    found = throughput.Measured(
        throughput.QUICK, {**dict.fromkeys(["TLS 1.3", "uvloop", "constant heads", "sends"], laps())}
    )
    found.at["plain"] = of
    rows = {row[0]: [round(cell, 3) for cell in row[1:]] for row in throughput.growth(of).rows}
    assert rows == {
        "rbim over X": [10, 20, 2, 1.25],
        "rbim over Y": [10, 40, 4, 2.5],
        "rbim over Z": [10, 12, 1.2, 0.75],
        "bytes-level floor": [1, 1.6, 1.6, 1],
    }
    goals = {goal.name: (goal.bound, goal.met) for goal in throughput.goals(found)}
    assert goals == {
        "rbim over X, 1000 in flight / 10": ("at most 1.5", False),
        "rbim over Y, 1000 in flight / 10": ("at most 1.5", False),
        "rbim over Z, 1000 in flight / 10": ("at most 1.5", True),
        "bytes-level floor, 1000 in flight / 10": ("", None),
    }
    one, other = throughput.explanations(of)
    assert one == (
        "rbim over X: with 1000 in flight a call costs 2.00 times as much as with 10, more than 1.5. Divided by the floor's "
        "own growth of 1.60, that is 1.25, within the goal. In CPU ms per 1000 calls, it grows by 10.0, the floor by 0.6."
    )
    assert "that is 2.50, still too much" in other


def test_a_figure_that_took_long_is_not_measured_again(target):
    class Slow(contenders.Floor):
        async def run(self, more):
            await asyncio.sleep(0.03)
            await super().run(more)

    found = turns.Laps()
    rows = [contenders.Contender("slow", Slow), contenders.FLOOR]
    plan = turns.Plan(bursts=(), seconds=0.0, warm=0.0, once=0.02)
    block = turns.Block(found, turns.Place.of(target), rows, (1, 2), {"slow": (2,)})
    with turns.Processes() as processes:
        turns.interleave([block], processes, plan, 3)
    measured = {key: len(each) for key, each in found.steady.items()}
    assert measured[("slow", 2)] == 1
    assert ("slow", 1) not in measured
    assert measured[("bytes-level floor", 1)] <= 2  # half of the rounds


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
    goals = (
        Goal(name="cost", value=0.25, at_most=0.25),
        Goal(name="speed", value=1.999, at_least=2),
        Goal(name="ratio", value=3),
    )
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
        "       measured          goal  met",
        "cost       0.25  at most 0.25  yes",
        "speed      2.00    at least 2   NO",
        "ratio      3.00             -    -",
    ]


def test_goals_are_reached_or_not():
    assert Goal(name="", value=1.0, at_most=1.0).met
    assert not Goal(name="", value=1.01, at_most=1.0).met
    assert Goal(name="", value=2.0, at_least=2.0).met
    assert not Goal(name="", value=1.99, at_least=2.0).met
    assert Goal(name="", value=1.0).met is None
    assert Result(part="p", goals=(Goal(name="", value=1.0),)).met
    assert not Result(part="p", goals=(Goal(name="", value=1.0), Goal(name="", value=2.0, at_most=1.0))).met
    document = Result(part="p", goals=(Goal(name="g", value=1.0, at_most=2.0),)).document()
    assert [*document["goals"]] == [{"name": "g", "value": 1.0, "at_most": 2.0, "at_least": None, "met": True}]


def test_ratios_are_of_the_same_round():
    ours, theirs = iter([1.0, 20.0, 3.0]), iter([2.0, 10.0, 2.0])
    figures = interleaved({"ours": ours.__next__, "theirs": theirs.__next__}, 3)
    assert ratio(figures, "ours", "theirs") == 1.5
