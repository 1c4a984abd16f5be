"""The benchmarks of throughput and of the core: that they run, that everybody does the same work, that tables read well."""

import asyncio
import base64
import hashlib
import json
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

from benchmarks import contenders
from benchmarks.httpload import process
from benchmarks.results import interleaved, ratio
from benchmarks.target import BODY
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, PATH
from helpers.paths import ROOT


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
    assert throughput["rounds"] == 1
    assert throughput["seconds"] > 0
    assert [table["columns"] for table in throughput["tables"][:2]] == [["client", "1", "10"], ["client", "10"]]
    for table in throughput["tables"]:
        assert all(cell > 0 for row in table["rows"] for cell in row[1:])
    goals = {goal["name"]: goal["at_most"] for goal in throughput["goals"]}
    assert goals["rbim over HttpxTransport / aiohttp by hand, 10 in flight"] == 1.7
    (costs,) = core["tables"]
    assert costs["columns"][1:] == ["orjson", "standard json"]
    assert all(cell > 0 for row in costs["rows"] for cell in row[1:])
    assert [goal["at_most"] for goal in core["goals"]] == [1.8, 8]
    assert all(goal["met"] == (goal["value"] <= goal["at_most"]) for goal in core["goals"])
    assert "== core" in done.stderr
    assert "at most 1.8" in done.stderr


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


def test_ratios_are_of_the_same_round():
    ours, theirs = iter([1.0, 20.0, 3.0]), iter([2.0, 10.0, 2.0])
    figures = interleaved({"ours": ours.__next__, "theirs": theirs.__next__}, 3)
    assert ratio(figures, "ours", "theirs") == 1.5
