"""The examples of docs/examples do what they say: each in a process of its own, against the emulator over real HTTP."""

import re
import shutil
import signal
import sys
from types import SimpleNamespace

import anyio
import httpx
import pytest

from helpers.job_commands import made_group
from helpers.paths import ROOT
from helpers.postgres import needs_postgres, postgres, sql
from helpers.processes import CLEAN, PATIENCE, logged, ran, running, wait_until
from helpers.serving import served, variables_of
from rbim import InviteJoinGroup
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, Status

EXAMPLES = ROOT / "docs" / "examples"


def test_every_example_is_run_here_or_elsewhere():
    here = {"bulk.py", "service.py", "test_service.py"}
    elsewhere = {"own_operation.py": "docs/test_docs.py", "pyreqwest_transport.py": "ci/docs/test_transports.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == here | elsewhere.keys()
    for name, module in elsewhere.items():
        assert f'"{name}"' in (ROOT / "tests" / module).read_text(encoding="utf-8")


def environment_of(emulator, base_url):
    python = {"PYTHONPATH": str(EXAMPLES), "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return CLEAN | variables_of(emulator, base_url) | python


@pytest.fixture
def platform():
    emulator = Emulator()
    with served(emulator.asgi) as base_url:
        yield emulator, base_url


SCHEMA = re.search(r'SCHEMA = """(.*?)"""', (EXAMPLES / "service.py").read_text(encoding="utf-8"), re.DOTALL)[1]


@pytest.fixture(scope="module", params=[pytest.param("", marks=needs_postgres)])
def database(request):  # noqa: ARG001  # its mark
    with postgres() as address:
        yield address


@pytest.fixture(scope="module")
def service(tmp_path_factory, database):
    """The service as its first lines say it is started, but for the port; with one tenant."""
    emulator = Emulator()
    text = (EXAMPLES / "service.py").read_text(encoding="utf-8")
    command = re.search(r"^ +uvicorn (--factory service:create_app) --port 8000$", text, re.MULTILINE)[1].split()
    log = tmp_path_factory.mktemp("service") / "log"
    with served(emulator.asgi) as base_url:
        own = emulator.credentials
        tenant = (base_url, own.app_id, own.app_token.reveal())
        sql(database, "DROP TABLE IF EXISTS tenant, copy", *SCHEMA.strip().split(";\n"))
        sql(database, "INSERT INTO tenant VALUES ('north', '{}', '{}', '{}', NULL)".format(*tenant))
        uvicorn = [sys.executable, "-W", "error", "-m", "uvicorn", *command, "--port", "0"]
        variables = environment_of(emulator, base_url) | {"DATABASE_URL": database}
        with logged(*uvicorn, log=log, cwd=log.parent, env=variables) as said:
            url = wait_until(lambda: re.search(r"running on (http://\S+)", said()))[1]
            with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False, headers={"X-Tenant": "north"}) as http:
                yield SimpleNamespace(http=http, platform=emulator, database=database, url=url)
    assert "Traceback" not in said()


@pytest.fixture
def group_id(service):
    """A group of account 1000's."""
    answer = service.http.post("/groups", json={"name": "产品公告"}, headers={"X-Account": "1000"})
    assert answer.status_code == 201
    return answer.json()["group_id"]


def test_copies_are_received_and_handled_and_forgeries_are_not(service, group_id):
    emulator = service.platform
    service.http.post(f"/groups/{group_id}/members", json={"accounts": ["1001"]})
    emulator.copy_to(f"{service.url}/copies")
    emulator.say("1001", group_id, "大家好")

    anyio.run(emulator.deliver)

    wait_until(lambda: ("north", "1001") in sql(service.database, "SELECT tenant, author FROM copy"))
    assert [delivery.status for delivery in emulator.deliveries] == [200] * len(emulator.deliveries)
    assert service.http.post("/copies", content=b"{}").status_code == 401


def test_a_caller_is_told_when_to_come_back(service, group_id):
    """Last of those that need the service: its client heeds the pause, too."""
    service.platform.faults.add(Fault(effect=Status(429, retry_after=2)))

    answer = service.http.get(f"/groups/{group_id}", headers={"X-Deadline": "1"})

    assert (answer.status_code, answer.json()["outcome"]) == (429, "refused")
    assert answer.headers["Retry-After"] == "2"


@needs_postgres
def test_the_examples_tests_pass(tmp_path, database):
    for name in ("service.py", "test_service.py"):
        shutil.copy(EXAMPLES / name, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    clean = {name: value for name, value in CLEAN.items() if not name.startswith(("PYTEST_", "COV_"))}
    done = ran(*command, "test_service.py", cwd=tmp_path, env=clean | {"PYTHONUTF8": "1", "DATABASE_URL": database})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert re.search(r"^8 passed", done.stdout, re.MULTILINE)


def bulk(environment, where, *tokens):
    return running(sys.executable, "-W", "error", EXAMPLES / "bulk.py", *tokens, cwd=where, env=environment)


@pytest.fixture
def members(platform, tmp_path):
    emulator, base_url = platform
    environment = environment_of(emulator, base_url)
    group_id = made_group(emulator, "全体客户")
    emulator.requests.clear()
    rows = "".join(f"{group_id},{10_000 + number}\n" for number in range(600))
    (tmp_path / "members.csv").write_text(f"group,account\n{rows}", encoding="utf-8")
    return emulator, environment, group_id


def test_everybody_in_a_file_is_invited_but_one(members, tmp_path):
    emulator, environment, group_id = members
    emulator.never_logged_in("10007")

    with bulk(environment, tmp_path, "members.csv") as process:
        out, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 3
    assert out.splitlines()[0] == "599 invited, 1 refused, 0 failed, 0 unknown, 0 not sent, 0 unusable"
    assert re.fullmatch(r" +1 refused: .+", out.splitlines()[1])
    assert err.splitlines()[-1].startswith("600 of 600 rows, ")
    assert len(emulator.state.groups[group_id].members) == 1 + 599


def test_an_interrupted_script_goes_on_where_it_ended(members, tmp_path):
    emulator, environment, group_id = members

    with bulk(environment, tmp_path, "members.csv", "--rate", "2/s") as process:
        first = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert re.match(r"\d+ of 600 rows", first)
    assert "stopping" in err
    invited = int(re.match(r"(\d+) invited, 0 refused, 0 failed, 0 unknown, (\d+) not sent", out)[1])
    assert len(emulator.state.groups[group_id].members) == 1 + invited < 600

    with bulk(environment, tmp_path, "members.csv") as process:
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (0, "600 invited, 0 refused, 0 failed, 0 unknown, 0 not sent, 0 unusable\n")
    assert len(emulator.requests.of(InviteJoinGroup)) == 12  # nobody twice
