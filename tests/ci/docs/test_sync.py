"""Synchronous code of the page docs/client.md, under gunicorn and Celery."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.job_commands import made_group
from helpers.pages import blocks_of
from helpers.processes import CLEAN, logged, wait_until

FILES = {
    block.text.partition("\n")[0].removeprefix("# "): block.text
    for block in blocks_of("docs/client.md", "python")
    if block.title in {"Flask", "Celery"}
}


def test_every_block_is_run_here():
    assert [*FILES] == ["web.py", "tasks.py"]


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def environment(platform, folder):
    paths = [str(folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    warnings = "always::ResourceWarning"  # an open socket, loop or file at the end
    return CLEAN | platform | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1", "PYTHONWARNINGS": warnings}


def clean(said):
    assert not re.search("Traceback|(?<!Security)Warning|Exception ignored|never retrieved", said), said


def post(url):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
@pytest.mark.parametrize("preload", [pytest.param([], marks=pytest.mark.ci), ["--preload"]], ids=["", "preload"])
def test_flask_under_gunicorn(preload, platform, emulator, folder):
    words = ["--workers", "2", "--threads", "8", *preload, "--bind", "127.0.0.1:0", "web:app"]
    command = [sys.executable, "-m", "gunicorn", *words]
    before = len(emulator.state.groups)
    options = {"log": folder / "said", "cwd": folder, "env": environment(platform, folder)}
    with logged(*command, **options) as said, ThreadPoolExecutor(16) as threads:
        listening = wait_until(lambda: re.search(r"Listening at: (\S+)", said()))
        url = f"{listening[1]}/groups/"
        answers = [*threads.map(post, [f"{url}team{number}" for number in range(60)])]
        too_long = post(url + "x" * 51)
    clean(said())
    assert {status for status, _ in answers} == {201}
    assert len({answer["group_id"] for _, answer in answers}) == len(emulator.state.groups) - before == 60
    assert too_long == (422, {"error": "InvalidRequest", "outcome": "not sent"})


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


@needs_fork
@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.ci)])
def test_celery(pool, platform, emulator, folder):
    """A worker with two processes or threads takes its tasks from a broker of files, and ends on SIGTERM."""
    (folder / "queue").mkdir()
    (folder / "queued.py").write_text(QUEUE, encoding="utf-8")
    variables = environment(platform, folder) | {"BROKER_URL": "filesystem://"}
    group = made_group(emulator)
    accounts = [f"{pool}{number}" for number in range(12)]
    sending = SEND.format(group=group, accounts=accounts)
    subprocess.run([sys.executable, "-c", sending], cwd=folder, env=variables, check=True, timeout=60)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "error"]
    command = [sys.executable, "-m", "celery", "--app", "queued", "worker", "--pool", pool, "--concurrency", "2", *quiet]
    with logged(*command, log=folder / "said", cwd=folder, env=variables) as said:
        wait_until(lambda: set(accounts) <= set(emulator.state.groups[group].members))
    clean(said())
    assert sorted(emulator.state.groups[group].members) == sorted(["admin", *accounts])
