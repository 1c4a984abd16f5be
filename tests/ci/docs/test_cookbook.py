"""The cookbook, docs/cookbook.md: each program runs as it stands, for a reader whose platform is the emulator over HTTP."""

import json
import os
import re
import shlex
import sqlite3
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import anyio
import pytest
import trustme
from openpyxl import Workbook

from helpers.job_commands import made_group
from helpers.pages import blocks_of, run, run_program
from helpers.paths import ROOT
from helpers.postgres import needs_postgres, postgres
from helpers.processes import ran
from helpers.serving import served
from helpers.sockets import free_port
from helpers_ci.recipes import serving
from rbim.callbacks import Receiver, SqliteInbox, sign
from rbim.cli import build_app
from rbim.clock import SystemClock
from rbim.emulator import Emulator

pytest_plugins = ["pytester"]

PAGE = "docs/cookbook.md"
BLOCKS = {}
for each in blocks_of(PAGE, "python", "sh"):
    if each.not_run is None:
        BLOCKS.setdefault(each.title, []).append(each.text)

DATABASE = "How do I invite accounts from a database?"
FILES = "How do I read an Excel file, or a CSV file in GBK?"
NIGHT = "How do I run a job every night?"
WHO = "Who was not invited?"
FASTAPI = "How do I make calls and receive callbacks in one FastAPI application?"
DJANGO = "How do I call rbim in Django?"
JUPYTER = "How do I use rbim in a Jupyter notebook?"
RATE = "How do I limit the rate over several processes?"
WEB = "How do I invite any number of accounts in a web request?"
AUTHORITY = "How do I trust the certificate of our own authority?"
HANDLERS = "How do I test my callback handlers?"
ONE_MACHINE = "How do I try calls and callbacks on one machine?"
MOVE = "How do I move an inbox to another machine?"
SENT = "How do I see what was sent?"
AS_THEY_STAND = ["How do I connect through a proxy?", "How do I rotate a token?"]
"""Programs that only make a client or a receiver: other tests use what they make."""


RUN = [*(DATABASE, FILES, NIGHT, WHO, FASTAPI, ONE_MACHINE, WEB, RATE, DJANGO, JUPYTER, AUTHORITY, HANDLERS, MOVE, SENT)]


def test_every_block_is_run_here():
    assert {*BLOCKS} == {*RUN, *AS_THEY_STAND}


@pytest.mark.parametrize("page", [PAGE, "docs/questions.md", "docs/migration.md"])
def test_a_command_in_a_sentence_is_one_of_rbim(page):
    """One with a flag or a file is complete."""
    app = build_app()
    for command in re.findall(r"`rbim ([^`]+)`", (ROOT / page).read_text(encoding="utf-8")):
        words = shlex.split(command)
        if re.search(r"--|\.", command):
            app.parse_args(words, exit_on_error=False, print_error=False)
        assert app.parse_commands(words)[0]


@pytest.fixture
def group(emulator):
    return made_group(emulator, "客户交流")


def members(emulator, group):
    return [each for each in emulator.state.groups[group].members if each != "admin"]


def shell(commands, where, platform):
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return run(["bash", "-euc", commands], where, platform | {"PATH": found, "HOME": str(where)})


def test_from_sqlite_and_back(platform, emulator, group, tmp_path):
    emulator.never_logged_in("new1")
    accounts = ["1001", "1002", "new1"]
    with closing(sqlite3.connect(tmp_path / "customers.db")) as database:
        database.execute("CREATE TABLE customer (group_id, account, state, reason)")
        rows = [(group, each, None, None) for each in accounts] + [(group, "old", "invited", None)]
        database.executemany("INSERT INTO customer VALUES (?, ?, ?, ?)", rows)
        database.commit()
        assert run_program(BLOCKS[DATABASE][0], tmp_path, platform) == "2 of 3\n"
        after = database.execute("SELECT account, state, reason <> '' FROM customer").fetchall()
    assert after == [("1001", "invited", None), ("1002", "invited", None), ("new1", "refused", 1), ("old", "invited", None)]
    assert members(emulator, group) == ["1001", "1002"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:openpyxl")
def test_from_excel(platform, emulator, group, tmp_path):
    book = Workbook()
    book.active.title = "名单"
    for row in [("群号", "手机号"), (group, "1001"), (group, 13800138000)]:
        book.active.append(row)
    book.create_sheet("other")
    book.save(tmp_path / "members.xlsx")
    trial, _ = BLOCKS[FILES][0].splitlines()
    assert f"  line 3, group {group}, account 13800138000\n" in shell(trial, tmp_path, platform)
    assert members(emulator, group) == []


def test_from_gbk(platform, emulator, group, tmp_path):
    file = tmp_path / "members.csv"
    _, sending = BLOCKS[FILES][0].splitlines()
    file.write_text(f"所属群,工号,姓名\n{group},1001,张三\n{group},1002,李四\n", encoding="gbk")
    shell(sending + " 2>/dev/null", tmp_path, platform)
    assert members(emulator, group) == ["1001", "1002"]


def test_who_was_not_invited(platform, emulator, group, tmp_path):
    emulator.never_logged_in("new3")
    (tmp_path / "members.csv").write_text(f"group,account\n{group},1001\n{group},new3\n")
    shell("rbim invite members.csv >/dev/null 2>&1 || true", tmp_path, platform)
    assert f"\nNot invited: 1 row\n  line 3  new3 of {group}: refused: " in shell(BLOCKS[WHO][0], tmp_path, platform)
    assert (tmp_path / "left.csv").read_text().splitlines()[1].startswith(f"{group},new3,refused,")


def test_every_night(platform, emulator, group, tmp_path):
    emulator.never_logged_in("new2")
    (tmp_path / "members.csv").write_text(f"group,account\n{group},1001\n{group},new2\n")
    with pytest.raises(AssertionError):  # the exit code 3: an account is left
        shell(BLOCKS[NIGHT][0] + " 2>/dev/null", tmp_path, platform)
    (left,) = tmp_path.glob("left-*.csv")
    assert re.search(rf"^{group},new2,refused", left.read_text(), re.MULTILINE)
    before = len(emulator.requests)
    with pytest.raises(AssertionError):
        shell(BLOCKS[NIGHT][0] + " 2>/dev/null", tmp_path, platform)
    assert len(emulator.requests) == before
    assert len([*tmp_path.glob("invite-*.journal")]) == 1


def get(url, body=None, headers=()):
    request = urllib.request.Request(url, data=body, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_fastapi_calls_and_receives(platform, emulator, group, tmp_path):
    with serving(BLOCKS[FASTAPI][0], tmp_path, platform | {"VIP_GROUP": group}) as (port, out):
        url = f"http://127.0.0.1:{port}"
        status, body = get(f"{url}/groups/{group}")
        detail = json.loads(body)
        assert (status, detail["name"], detail["owner"], detail["permission"]) == (200, "客户交流", "admin", "0")
        assert get(f"{url}/groups/g1")[0] == 404
        for number, text in enumerate(["你好", "加入"]):
            app_id = emulator.credentials.app_id
            said = {"convType": "PERSON", "to": "1", "fromAccount": f"{app_id}#1001", "msgType": "TEXT", "body": text}
            copy = json.dumps(said | {"msgId": str(number), "eventType": "1"}, ensure_ascii=False).encode()
            headers = sign(copy, credentials=emulator.credentials, now=SystemClock().now())
            assert get(f"{url}/copies", copy, headers.items())[0] == 200
        assert out.readline() == "invited: 1001\n"
    assert members(emulator, group) == ["1001"]


# A person waits two seconds for each server, and one for the copy; a busy machine until they are there.
WAITS = """
step=0
listens() { (: < /dev/tcp/127.0.0.1/$1) 2> /dev/null; }
invited() { curl -sS "$RBIM_BASE_URL/_emulator/groups/$VIP_GROUP" | grep -q 1001; }
there() { case $step in 1) listens EMULATOR;; 2) listens SERVICE;; *) invited;; esac; }
sleep() { step=$((step + 1)); until there; do command sleep 0.1; done; }
trap 'kill $(jobs -p); wait' EXIT
"""


def test_calls_and_callbacks_on_one_machine(tmp_path):
    """The application gets the copy of what was said, and invites who said it; the emulator's page shows the delivery."""
    (tmp_path / "service.py").write_text(BLOCKS[FASTAPI][0], encoding="utf-8")
    (block,) = BLOCKS[ONE_MACHINE]
    waits = WAITS.replace("EMULATOR", "8883").replace("SERVICE", "8000")
    script = f'{waits}\n{block}\ncurl -sS "$RBIM_BASE_URL/_emulator/messages" > messages.json'
    for port in ("8883", "8000"):
        script = script.replace(port, str(free_port()))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    clean = {"PATH": path, "PYTHONUTF8": "1", "no_proxy": "*", "HOME": str(tmp_path)}
    done = ran("bash", "-euc", script, cwd=tmp_path, env=clean, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "invited: 1001\n" in done.stdout
    assert re.search(r"^count +2 *$", done.stdout, re.MULTILINE), done.stdout
    shown = json.loads((tmp_path / "messages.json").read_text(encoding="utf-8"))["messages"]
    (said,) = [message for message in shown if message["event"].get("body") == "加入"]
    assert [attempt["status"] for attempt in said["attempts"]] == [200], said


def test_a_web_request_invites_any_number(platform, emulator, group, tmp_path):
    emulator.never_logged_in("new4")
    asking = f"""
from fastapi.testclient import TestClient
accounts = [str(number) for number in range(1000, 1120)] + ["new4"]
with TestClient(app) as browser:
    answer = browser.post("/groups/{group}/members", json=accounts).json()
print(len(answer["invited"]), list(answer["refused"]), answer["unknown"])
"""
    assert run_program(BLOCKS[WEB][0] + asking, tmp_path, platform) == "120 ['new4'] []\n"
    assert len(members(emulator, group)) == 120


def test_a_web_request_says_when_no_account_was_invited(platform, group, tmp_path):
    asking = f"""
from fastapi.testclient import TestClient
with TestClient(app) as browser:
    print(browser.post("/groups/{group}/members", json=["1001", "1002", "1001"]).status_code)
"""
    down = {"RBIM_BASE_URL": f"http://127.0.0.1:{free_port()}"}
    for fault, status in [(down, 503), ({"RBIM_APP_TOKEN": "wrong"}, 502)]:
        assert run_program(BLOCKS[WEB][0] + asking, tmp_path, platform | fault) == f"{status}\n"


def test_django_calls(platform, group, tmp_path):
    asking = f"""
import django
from django.test import Client as Browser
django.setup()
for group_id in ({group!r}, "g1"):
    answer = Browser().get("/groups/" + group_id)
    print(answer.status_code, {{name: each for name, each in answer.json().items() if name in ("name", "owner", "error")}})
"""
    program = BLOCKS[DJANGO][0] + asking
    out = run_program(program, tmp_path, platform)
    assert out == "200 {'name': '客户交流', 'owner': 'admin'}\n404 {'error': 'no such group'}\n"


def test_a_notebook_awaits_in_its_cells(platform, tmp_path):
    """As IPython does it, which runs all cells in one event loop."""
    program = f"""
import asyncio
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
async def main():
    for cell in {BLOCKS[JUPYTER]!r}:
        (await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))).raise_error()
asyncio.run(main())
shell.history_manager.end_session()
"""
    run_program(program, tmp_path, platform | {"IPYTHONDIR": str(tmp_path)})


SEARCH = """
import anyio
async def main():
    async with client:
        try:
            print(type(await client.groups.search()).__name__)
        except Exception as error:
            print(error)
anyio.run(main)
"""


@needs_postgres
def test_processes_share_a_rate(platform, tmp_path):
    with postgres() as address:
        program = BLOCKS[RATE][0].replace("postgresql://rbim@db/rbim", address)
        assert run_program(program + SEARCH, tmp_path, platform) == "GroupsFound\n"


def test_processes_divide_the_rate(platform, tmp_path):
    program = BLOCKS[RATE][1] + "print(limits.concurrency, limits.rates[0].limit)"
    assert run_program(program, tmp_path, platform) == "100 50.0\n"
    assert run_program(program, tmp_path, platform | {"WEB_CONCURRENCY": "4"}) == "25 12.5\n"


def test_a_client_trusts_the_authority_of_the_company(platform, emulator, tmp_path):
    """Over TLS, with a certificate of an authority that no machine knows."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "company-ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    with served(emulator.asgi, ssl_certfile=tmp_path / "server.pem") as url:
        variables = platform | {"RBIM_BASE_URL": url}
        assert run_program(BLOCKS[AUTHORITY][0] + SEARCH, tmp_path, variables) == "GroupsFound\n"
        without = "from rbim import AsyncClient\nclient = AsyncClient.from_env()\n" + SEARCH
        assert run_program(without, tmp_path, variables | {"SSL_CERT_FILE": "company-ca.pem"}) == "GroupsFound\n"


@pytest.mark.parametrize("title", AS_THEY_STAND)
def test_a_program_that_only_makes_a_client(title, platform, tmp_path):
    (program,) = BLOCKS[title]
    assert run_program(program, tmp_path, platform) == ""


def test_an_inbox_is_copied_whole(tmp_path, monkeypatch):
    """While it is open, so that its log holds the events."""
    monkeypatch.chdir(tmp_path)

    async def main():
        emulator = Emulator()
        async with Receiver(credentials=emulator.credentials, sink=SqliteInbox("events.db")) as receiver:
            emulator.copy_to(receiver)
            emulator.say("1001", "1002", "你好")
            await emulator.deliver()
            exec(BLOCKS[MOVE][0], {})
        async with SqliteInbox("copy.db") as copy:
            return await copy.counts()

    counts = anyio.run(main)
    assert counts.waiting == 1


def test_a_suite_of_a_reader_passes(pytester):
    pytester.makepyfile(BLOCKS[HANDLERS][0])
    done = pytester.runpytest_subprocess("-W", "error", "--strict-markers", "-p", "no:cacheprovider", "-p", "no:asyncio")
    done.assert_outcomes(passed=2)


def test_the_log_has_each_attempt_and_no_token(platform, tmp_path):
    run_program(BLOCKS[SENT][0], tmp_path, platform)
    lines = (tmp_path / "rbim.log").read_text(encoding="utf-8").splitlines()
    assert [line.split()[3] for line in lines if " rbim " in line] == ["SearchPublicGroups"] * 2
    assert platform["RBIM_APP_TOKEN"] not in "".join(lines)
