"""``rbim invite --via``, ``rbim job resume``, ``rbim job status`` and ``rbim worker`` with a NATS server."""

import json
import os
import subprocess
import sys

import pytest
from crash.test_bulk import APP_ID, TOKEN, control, emulating

from helpers import jobs as tables
from helpers.nats_servers import own_servers
from rbim import InviteJoinGroup
from rbim.bulk.journal.facts import job_facts

PROGRAM = "from rbim.cli.entry_point import main; main()"
PATIENCE = 60
GROUP = "g80000000000001"


@pytest.fixture(scope="module")
def nats(tmp_path_factory):
    with own_servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture
def run(tmp_path):
    """Run a command to its end; it has no token unless it is given one."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}

    def run(*words, code=0, **variables):
        env = bare | {"no_proxy": "*"} | variables
        command = [sys.executable, "-c", PROGRAM, *map(str, words)]
        ended = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
        )
        assert ended.returncode == code, ended.stderr
        return ended.stdout, ended.stderr

    return run


def test_a_job_over_workers_from_beginning_to_end(nats, run, tmp_path):
    via = f"{nats.urls[0]}/bulk"
    rows = "".join(f"{GROUP},a{number}\n" for number in range(30))
    (tmp_path / "rows.csv").write_text(f"group,account\n{rows}", encoding="utf-8")
    journal = tmp_path / "rows.csv.invite.journal"
    with emulating(1) as (url, emulator):
        told = {"name": "n", "type": "4", "permission": "0", "target": "1", "declared": "", "group_domain": None}
        group = {"group_id": GROUP, **told, "created": "2026-01-02T03:04:05+00:00", "members": {"admin": "0"}}
        control(url, "PUT", "state", {"version": 1, "groups": [group], "never_logged_in": []})
        worker = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "worker", "--via", via, "--concurrency", "7", "--rate", "200/s"],
            env=os.environ | {"RBIM_BASE_URL": url, "RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN, "no_proxy": "*"},
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        try:
            assert worker.stderr.readline() == f"worker of bulk on {nats.urls[0]}; Ctrl-C stops it\n"
            run("invite", "rows.csv", "--via", via, "--chunk", "2", "--limit", "10", code=0)
            assert job_facts(journal).settings["via"] == via
            shown, _ = run("job", "status", journal)
            assert f"1 worker at {via}: 0 requests wait for one, 0 are in hand\n" in shown
            assert f"process {worker.pid}: 0 of 7 in flight, 5 ended\n" in shown
            document = json.loads(run("job", "status", journal, "--json")[0])
            assert [each["process"] for each in document["queue"]["workers"]] == [worker.pid]
            run("job", "resume", journal)
            assert "queue" not in json.loads(run("job", "list", tmp_path, "--json")[0])[0]
            assert "queue" not in json.loads(run("job", "status", journal, "--json")[0]), "it is complete"
        finally:
            worker.terminate()
            _, said = worker.communicate(timeout=PATIENCE)
        assert (worker.returncode, said) == (0, "stopping: ends what it has begun; once more to end at once\n")
        assert sorted(each for operation in emulator.requests.of(InviteJoinGroup) for each in operation.members) == sorted(
            f"a{number}" for number in range(30)
        )
    assert set(tables.states(journal).values()) == {tables.DONE}


def test_status_says_why_the_workers_are_unknown(run, tmp_path):
    journal = tmp_path / "rows.csv.invite.journal"
    (tmp_path / "rows.csv").write_text(f"group,account\n{GROUP},a\n", encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "invite", "rows.csv", "--via", "nats://127.0.0.1:1/bulk", "--plain"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        for line in process.stderr:
            if "paused: nats://127.0.0.1:1: " in line:
                break
        shown, _ = run("job", "status", journal)
        assert "workers at nats://127.0.0.1:1/bulk: unknown: nats://127.0.0.1:1: " in shown
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("via", "said"),
    [
        ("nats://user:very-secret-word@h/bulk", "RBIM_NATS_CREDS_FILE"),
        ("nats://h1", "use nats://host1,host2,host3/name"),
        ("redis://h/bulk", "use nats://host1,host2,host3/name"),
        ("nats://h/a.b", "use 1 to 64 letters, digits, - and _"),
    ],
)
@pytest.mark.parametrize("command", [("invite", "rows.csv"), ("worker",)])
def test_a_wrong_address_is_refused_with_a_word(cli, tmp_path, monkeypatch, command, via, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(f"group,account\n{GROUP},a\n", encoding="utf-8")
    code, _, error = cli(*command, "--via", via)
    assert code == 2
    assert "--via: " in error
    assert said in error
    assert "very-secret-word" not in error


def test_a_credentials_file_that_is_missing_is_named(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RBIM_NATS_CREDS_FILE", "no.creds")
    (tmp_path / "rows.csv").write_text(f"group,account\n{GROUP},a\n", encoding="utf-8")
    code, _, error = cli("invite", "rows.csv", "--via", "nats://h/bulk")
    assert code == 2
    assert "no.creds" in error


def test_without_the_extra_the_command_to_install_it_is_named(run, tmp_path):
    (tmp_path / "rows.csv").write_text(f"group,account\n{GROUP},a\n", encoding="utf-8")
    (tmp_path / "nats.py").write_text("raise ModuleNotFoundError(name='nats')", encoding="utf-8")
    _, error = run("invite", "rows.csv", "--via", "nats://h/bulk", code=2, PYTHONPATH=str(tmp_path))
    assert 'pip install "rbim[nats]"' in error
