"""The page on migration, docs/migration.md: what goes wrong in its old program, against the emulator; and its steps work.

The old program runs as it stands, in a process of its own, with `requests` and the clock of a server in UTC.
"""

import json
import re

import anyio
import pytest

from helpers.pages import blocks_of, run_program
from helpers.serving import served, variables_of
from rbim import AsyncClient, CreateGroup, GroupType, Outcome, RbimError
from rbim.callbacks import sign
from rbim.clock import SystemClock
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, Latency, ResetAfter
from rbim.emulator.server import serve

FILES = {block.text.partition("\n")[0].removeprefix("# "): block.text for block in blocks_of("docs/migration.md", "python")}

IMPORT = "import sys, warnings; warnings.simplefilter('default'); sys.path.insert(0, '.'); import old\n"


def test_every_block_is_run_here():
    assert [*FILES] == ["old.py", "step1.py", "step2.py", "step3.py"]


def variables(emulator, url):
    return variables_of(emulator, url) | {"TZ": "UTC"}


@pytest.fixture
def emulator():
    return Emulator()


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def old(program, emulator, folder):
    """Run a program of the old module, and what rbim does under the same fault; return what the program prints."""

    async def main():
        async with serve(emulator) as server:
            run = f"{IMPORT}import logging; logging.basicConfig(stream=sys.stdout)\n{program}"
            return await anyio.to_thread.run_sync(run_program, run, folder, variables(emulator, server.url))

    return anyio.run(main)


def new(call, emulator, **options):
    async def main():
        credentials = emulator.credentials
        async with AsyncClient(base_url="http://e", credentials=credentials, transport=emulator, **options) as client:
            try:
                return await call(client)
            except RbimError as error:
                return error

    return anyio.run(main)


@pytest.mark.parametrize("effect", [ResetAfter(), Latency(0.5)], ids=["reset", "time-out"])
def test_an_answer_that_is_lost_makes_a_second_group(effect, emulator, folder):
    emulator.faults.add(Fault(effect=effect, operation=CreateGroup, times=1))
    assert "g8" in old("old.TIMEOUT = 0.3\nprint(old.create_group('公告'))", emulator, folder)
    assert len(emulator.state.groups) == 2

    emulator = Emulator()
    emulator.faults.add(Fault(effect=effect, operation=CreateGroup, times=1))
    error = new(lambda client: client.tuned(timeout=0.3).groups.create(name="公告", type=GroupType.PAID_300), emulator)
    assert error.outcome is Outcome.UNKNOWN
    assert len(emulator.state.groups) == 1


def changed(emulator, **fields):
    async def app(scope, receive, send):
        sent = []

        async def keep(message):
            sent.append(message)

        await emulator.asgi(scope, receive, keep)
        start, *rest = sent
        body = b"".join(message.get("body", b"") for message in rest)
        if "QueryGroupDetail" in scope["path"]:
            body = json.dumps(json.loads(body) | fields).encode()
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        await send(start | {"headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await send({"type": "http.response.body", "body": body})

    return app


DETAIL = """
import anyio
from rbim import AsyncClient
async def main():
    async with AsyncClient.from_env() as client:
        group = await client.groups.detail(group_id={group!r})
        print(group.name, group.count, group.date_created)
anyio.run(main)
"""


@pytest.mark.parametrize(
    ("field", "value", "printed"),
    [("count", "", r"公告 None 20.*"), ("dateCreated", "2026/1/2 3:04", r"公告 1 .*"), ("dateCreated", None, "公告 1 None")],
)
def test_one_odd_field_loses_the_whole_answer(field, value, printed, emulator, folder):
    created = new(lambda client: client.groups.create(name="公告", type=GroupType.PAID_300), emulator)
    with served(changed(emulator, **{field: value})) as url:
        environment = variables(emulator, url)
        asking = f"{IMPORT}print(old.group_detail({created.group_id!r}))"
        assert run_program(asking, folder, environment) == "None\n"
        out = run_program(DETAIL.format(group=created.group_id), folder, environment)
    assert re.fullmatch(printed, out.rstrip("\n"))


POST = """
import sys; sys.path.insert(0, ".")
from {module} import app
for headers, body in {deliveries!r}:
    print(app.test_client().post("/copies", data=body, headers=headers).status_code)
"""


def test_the_old_handler_believes_what_it_gets_and_step_2_does_not(emulator, folder):
    sender = f"{emulator.credentials.app_id}#1001"
    message = {"convType": "PERSON", "msgType": "TEXT", "fromAccount": sender, "to": "1002", "body": "转账", "msgId": "1"}
    body = json.dumps(message, ensure_ascii=False).encode()
    json_type = {"Content-Type": "application/json"}
    signed = {**sign(body, credentials=emulator.credentials, now=SystemClock().now()), **json_type}
    other = body.replace("转账".encode(), "付款".encode())
    deliveries = [(json_type, body), (signed, other), (signed, body)]  # unsigned; a signature of another body; a real one
    said, paid = f"{sender} 转账\n200\n", f"{sender} 付款\n200\n"
    environment = variables(emulator, "http://127.0.0.1:1")

    out = run_program(POST.format(module="old", deliveries=deliveries), folder, environment)
    assert out == said + paid + said
    out = run_program(POST.format(module="step2", deliveries=deliveries), folder, environment)
    assert out == "401\n401\n" + said


PRINTS = {"step1.py": r"000000\n", "step3.py": r"产品公告\n"}


@pytest.mark.parametrize("name", PRINTS)
def test_a_step_works(name, emulator, folder):
    with served(emulator.asgi) as url:
        out = run_program(f"import sys; sys.path.insert(0, '.')\n{FILES[name]}", folder, variables(emulator, url))
    assert re.fullmatch(PRINTS[name], out)
