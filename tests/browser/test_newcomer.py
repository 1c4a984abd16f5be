"""A newcomer's way: from a clone to a group that a command creates and the browser shows, with commands and seconds."""

import asyncio
import os
import re
import shlex
import sys
import time
from contextlib import asynccontextmanager

import pytest

from helpers.paths import ROOT
from helpers.sockets import free_port

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra browser")

AT_MOST = 120  # seconds, on a machine that is busy
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block():
    """The commands with which the README leads a newcomer to a first call."""
    return next(each for each in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) if "rbim emulator" in each).splitlines()


@asynccontextmanager
async def running(command, environment):
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.slow
@pytest.mark.ci
async def test_the_readmes_commands_end_in_a_group_that_the_browser_shows(opened, told, tmp_path):
    """The environment is that of the tests: making one, and installing into it, is what ``.ci/run`` times."""
    venv, install, export, serve, create = block()
    assert venv.startswith("python3 -m venv")
    assert install.startswith("pip install")
    port = free_port()
    variables = dict(each.split("=", 1) for each in shlex.split(export.replace("8883", str(port)))[1:])
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RBIM_")} | variables
    environment |= {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    assert (serve, create.split()[:3]) == ("rbim emulator & sleep 2", ["rbim", "groups", "create"])

    began = time.perf_counter()
    lines = []

    def step(text):
        lines.append(f"{time.perf_counter() - began:5.1f} s  {text}")

    async with running([sys.executable, "-m", "rbim", "emulator", "--port", str(port)], environment) as emulator:
        assert (await emulator.stdout.readline()).decode().strip() == variables["RBIM_BASE_URL"]
        step(f"$ rbim emulator --port {port}")
        window = await opened(variables["RBIM_BASE_URL"])
        await playwright.expect(window.get_by_text("No request so far.")).to_be_visible()
        step(f"the browser shows {variables['RBIM_BASE_URL']}")
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *shlex.split(create)), stdout=asyncio.subprocess.PIPE, env=environment, cwd=tmp_path
        )
        printed = (await command.communicate())[0].decode()
        step(f"$ {create}")
        group_id = re.search(r"g8\d{13}", printed)[0]
        await playwright.expect(window.locator("#panel-requests tbody tr")).to_contain_text("产品公告")
        panel = await window.show("groups")
        await playwright.expect(panel.locator("tbody tr")).to_contain_text(group_id)
        step(f"the browser shows {group_id}")
        window.allow("ERR_")  # the emulator ends first
    told("\n".join(lines))
    assert time.perf_counter() - began < AT_MOST
