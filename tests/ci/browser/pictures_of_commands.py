"""The pictures of ``rbim page``: a job that a platform throttles, and an inbox with dead letters.

The commands run in processes of their own, so their figures differ each time.
"""

import os
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from helpers.job_commands import CREDENTIALS, write_csv
from helpers.page_client import showing
from helpers.page_inbox import filled
from helpers_ci import browser as chromium
from rbim import AsyncClient, GroupType
from rbim.emulator import Emulator
from rbim.emulator.faults import Code, Fault, Latency, Throttle
from rbim.emulator.server.server import serve

from .pictures import HEIGHT, SETTLED, small

ROWS, GROUPS = 24_000, 12
SECONDS = 14  # from the start of the job until its pictures
ERRORS = ["ValueError: unknown city: 上海市", *["app.errors.OrderError: no connection to orders"] * 4]
INVITE = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "invite"]


async def job_pages(browser, folder, names):
    """Take pictures of the page of a job: some accounts and one group are refused, and the platform throttles."""
    emulator = Emulator(credentials=CREDENTIALS)
    for number in range(60):
        emulator.never_logged_in(f"guest{number:04}")
    async with serve(emulator) as server:
        async with AsyncClient(base_url=server.url, credentials=CREDENTIALS, user_name="admin") as client:
            made = [await client.groups.create(name=f"客户交流 {number}", type=GroupType.VIP) for number in range(GROUPS)]
        groups = [each.group_id for each in made]
        emulator.faults.add(
            Fault(effect=Latency(0.12, sigma=0.3), operation="InviteJoinGroup"),
            Fault(effect=Code("980015", "content is rejected"), operation="InviteJoinGroup", match={"group_id": groups[3]}),
            Fault(effect=Throttle(90, retry_after=1), operation="InviteJoinGroup"),
        )
        rows = [(groups[n % GROUPS], f"guest{n // 41 % 60:04}" if n % 41 == 0 else f"1380013{n:05}") for n in range(ROWS)]
        with TemporaryDirectory() as temporary:
            source = write_csv(f"{temporary}/members.csv", [*rows, ("", "")])
            words = [*INVITE, source, "--chunk", "10", "--concurrency", "40", "--base-url", server.url, "--quiet"]
            variables = {"RBIM_APP_ID": "app", "RBIM_APP_TOKEN": "the-token", "RBIM_USER_NAME": "admin"}
            command = subprocess.Popen(words, env=os.environ | variables, stdout=subprocess.DEVNULL)
            try:
                await anyio.sleep(SECONDS)
                async for path in shots(browser, folder, JOB, names, f"{source}.invite.journal"):
                    yield path
            finally:
                command.kill()


async def inbox_pages(browser, folder, names):
    with TemporaryDirectory() as temporary:
        inbox = Path(temporary, "events.db")
        await filled(inbox, *ERRORS, quarantined=1, handled=400, waiting=12)
        async for path in shots(browser, folder, INBOX, names, inbox):
            yield path


async def shots(browser, folder, known, names, file):
    async with AsyncExitStack() as stack:
        showed = showing(file)
        page = await anyio.to_thread.run_sync(showed.__enter__)
        stack.push_async_callback(partial(anyio.to_thread.run_sync, showed.__exit__, None, None, None))
        for name in names:
            view, look = known[name]
            async with chromium.opened(browser, page.address, height=HEIGHT, **look) as window:
                await anyio.sleep(4 * SETTLED)
                await window.show(view)
                await anyio.sleep(4 * SETTLED)
                path = folder / f"{name}.png"
                path.write_bytes(small(await window.screenshot()))
                yield path


CHINESE = {"width": chromium.NARROW, "language": "zh-CN", "theme": "dark"}
JOB = {"job-page-light": ("overview", {}), "job-page-narrow-dark": ("accounts", CHINESE)}
INBOX = {"inbox-page-light": ("events", {})}
PICTURES = dict.fromkeys(JOB, job_pages) | dict.fromkeys(INBOX, inbox_pages)
"""The function that takes each picture, by the name of its file without ``.png``."""
