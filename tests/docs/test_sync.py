"""The page on synchronous code, docs/sync.md: its class under threads, forks, time limits, gunicorn and Celery."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import anyio
import pytest

from helpers.pages import blocks_of, run_program
from helpers.serving import served
from rbim import AsyncClient, Credentials, GroupType
from rbim.emulator import Emulator

FILES = {block.text.partition("\n")[0].removeprefix("# "): block.text for block in blocks_of("docs/sync.md", "python")}


def test_every_block_is_run_here():
    assert [*FILES] == ["blocking.py", "script.py", "web.py", "tasks.py"]


@pytest.fixture(scope="module")
def emulator():
    return Emulator()


@pytest.fixture(scope="module")
def platform(emulator):
    with served(emulator.asgi) as url:
        yield {
            "RBIM_BASE_URL": url,
            "RBIM_APP_ID": emulator.credentials.app_id,
            "RBIM_APP_TOKEN": emulator.credentials.app_token.reveal(),
        }


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def environment(platform, folder):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    warnings = "always::ResourceWarning"  # an open socket, loop or file at the end
    return kept | platform | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "PYTHONWARNINGS": warnings}


def clean(said):
    assert not re.search("Traceback|(?<!Security)Warning|Exception ignored|never retrieved", said), said


def test_many_threads_share_one_client(platform, folder):
    program = "import sys; sys.path.insert(0, '.'); " + f"exec({FILES['script.py']!r})"
    assert run_program(program, folder, platform) == "200\n201\n"


THREADS = """
import sys, threading
sys.path.insert(0, ".")
from blocking import BlockingClient
rbim = BlockingClient()
"""


def test_it_opens_late_closes_twice_and_opens_again(platform, folder):
    program = f"""{THREADS}
def names():
    return [thread.name for thread in threading.enumerate()]
print(names())
rbim.close()
for _ in range(2):
    rbim.run(lambda client: client.groups.search(name="a"))
    print(names())
    rbim.close()
    rbim.close()
    print(names())
"""
    alone, two = "['MainThread']\n", "['MainThread', 'rbim']\n"
    assert run_program(program, folder, platform) == alone + (two + alone) * 2


def test_an_error_of_a_call_or_of_opening_arrives_in_the_thread_that_called(platform, folder):
    program = f"""{THREADS}
import os
from rbim import RbimError
try:
    rbim.run(lambda client: client.groups.detail(group_id="g1"))
except RbimError as error:
    print(error.code, error.outcome)
token = os.environ.pop("RBIM_APP_TOKEN")
other = BlockingClient()
for _ in range(2):
    try:
        other.run(lambda client: client.groups.search(name="a"))
        print("ok")
    except RbimError as error:
        print(type(error).__name__)
    os.environ["RBIM_APP_TOKEN"] = token
"""
    assert run_program(program, folder, platform) == "900404 refused\nInvalidRequest\nok\n"


def test_closing_ends_calls_that_wait_in_other_threads(platform, folder):
    program = f"""{THREADS}
import anyio
began = threading.Event()
async def long(client):
    began.set()
    await anyio.sleep(3600)
def wait():
    try:
        rbim.run(long)
    except BaseException as error:
        print(type(error).__name__)
thread = threading.Thread(target=wait)
thread.start()
began.wait()
rbim.close()
thread.join()
"""
    assert run_program(program, folder, platform) == "CancelledError\n"


def test_a_call_that_begins_while_another_thread_closes_is_made_before_or_after_and_returns(platform, folder):
    """Not to the loop that ends: there nothing would run it, and nothing would answer."""
    program = f"""{THREADS}
import asyncio
from concurrent.futures import CancelledError
from rbim import ClientClosed
submit = asyncio.run_coroutine_threadsafe
def late(call, loop):
    closing = threading.Thread(target=rbim.close)
    closing.start()
    closing.join(0.3)  # long enough for it to end, if the call lets it
    return submit(call, loop)
asyncio.run_coroutine_threadsafe = late
try:
    rbim.run(lambda client: client.groups.search(name="a"))
except (ClientClosed, CancelledError):
    pass  # closed while it ran
print("returned")
"""
    assert run_program(program, folder, platform) == "returned\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_opens_a_client_of_its_own_and_its_parents_goes_on(platform, folder):
    program = f"""{THREADS}
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks of a process with threads
def group_of(process):
    return rbim.run(lambda client: client.groups.search(name=process)).groups
group_of("parent")  # now there are a thread, a loop and connections
sys.stdout.flush()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        group_of("child")
        print("child", sum(thread.name == "rbim" for thread in threading.enumerate()))
        sys.exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
group_of("parent again")
print("parent")
"""
    lines = run_program(program, folder, platform).splitlines()
    assert sorted(lines) == ["[0, 0, 0]", "child 1", "child 1", "child 1", "parent"]


def test_ctrl_c_in_the_waiting_thread_ends_the_call(platform, folder):
    program = f"""{THREADS}
import os, signal, anyio
ended = threading.Event()
async def long(client):
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await anyio.sleep(3600)
    finally:
        ended.set()
try:
    rbim.run(long)
except KeyboardInterrupt:
    print("interrupted", ended.wait(10))
rbim.run(lambda client: client.groups.search(name="a"))
"""
    assert run_program(program, folder, platform) == "interrupted True\n"


# --------------------------------------------------------------------------------- gunicorn


@contextmanager
def running(command, folder, variables):
    """Run a server until the block ends; then SIGTERM ends it, without a warning."""
    with (folder / "said").open("w+", encoding="utf-8") as said:
        server = subprocess.Popen(command, cwd=folder, env=variables, stdout=said, stderr=subprocess.STDOUT)
        try:
            yield server
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        finally:
            server.kill()
            server.wait()
            said.seek(0)
            text = said.read()
    clean(text)
    assert server.returncode == 0


def until(process, happened):
    """Wait for something that a process does; return it."""
    give_up = time.monotonic() + 60
    while not (found := happened()):
        assert process.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.02)
    return found


def post(url):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
@pytest.mark.parametrize(
    "preload", [pytest.param([], marks=[pytest.mark.slow, pytest.mark.ci]), ["--preload"]], ids=["", "preload"]
)
def test_flask_under_gunicorn(preload, platform, emulator, folder):
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "--workers",
        "2",
        "--threads",
        "8",
        *preload,
        "--bind",
        "127.0.0.1:0",
        "web:app",
    ]
    before = len(emulator.state.groups)
    with running(command, folder, environment(platform, folder)) as server, ThreadPoolExecutor(16) as threads:
        listening = until(server, lambda: re.search(r"Listening at: (\S+)", (folder / "said").read_text(encoding="utf-8")))
        url = f"{listening[1]}/groups/"
        answers = [*threads.map(post, [f"{url}team{number}" for number in range(60)])]
        too_long = post(url + "x" * 51)
    assert {status for status, _ in answers} == {201}
    assert len({answer["group_id"] for _, answer in answers}) == len(emulator.state.groups) - before == 60
    assert too_long == (422, {"error": "InvalidRequest", "outcome": "not sent"})


# --------------------------------------------------------------------------------- Celery

QUEUE = """
from tasks import app, invite
app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
app.conf.worker_hijack_root_logger = False
"""


SEND = """
from queued import invite
for account in {accounts!r}:
    invite.delay({group!r}, account)
"""


async def make_group(platform):
    credentials = Credentials(app_id=platform["RBIM_APP_ID"], app_token=platform["RBIM_APP_TOKEN"])
    async with AsyncClient(base_url=platform["RBIM_BASE_URL"], credentials=credentials) as client:
        return (await client.groups.create(name="团队", type=GroupType.VIP)).group_id


@needs_fork
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=[pytest.mark.slow, pytest.mark.ci])])
def test_celery(pool, platform, emulator, folder):
    """A worker with two processes or threads takes its tasks from a broker of files, and ends on SIGTERM."""
    (folder / "queue").mkdir()
    (folder / "queued.py").write_text(QUEUE, encoding="utf-8")
    variables = environment(platform, folder) | {"BROKER_URL": "filesystem://"}
    group = anyio.run(make_group, platform)
    accounts = [f"{pool}{number}" for number in range(12)]
    sending = SEND.format(group=group, accounts=accounts)
    subprocess.run([sys.executable, "-c", sending], cwd=folder, env=variables, check=True, timeout=60)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "error"]
    command = [sys.executable, "-m", "celery", "--app", "queued", "worker", "--pool", pool, "--concurrency", "2", *quiet]
    with running(command, folder, variables) as worker:
        until(worker, lambda: set(accounts) <= set(emulator.state.groups[group].members))
    assert sorted(emulator.state.groups[group].members) == sorted(["admin", *accounts])
