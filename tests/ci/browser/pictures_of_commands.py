"""The pictures of the pages of commands: a job that a platform throttles, and a receiver with deliveries of all kinds.

The commands run in processes of their own, so their figures differ each time.
"""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from tempfile import TemporaryDirectory

import anyio
import httpx

from helpers.callback_process import MINE, event
from helpers.job_commands import CREDENTIALS, write_csv
from helpers.page_callbacks import filled, serving_page
from helpers_ci import browser as chromium
from helpers_ci.page_jobs import running
from rbim import AsyncClient, GroupType
from rbim.callbacks.signature import sign
from rbim.emulator import Emulator
from rbim.emulator.faults import Code, Fault, Latency, Throttle
from rbim.emulator.server.server import serve

from .pictures import HEIGHT, SETTLED, Shot, small

ROWS, GROUPS = 24_000, 12
SECONDS = 14  # from the start of a command until its pictures
ERRORS = ["ValueError: unknown city: 上海市", *["app.errors.OrderError: no connection to orders"] * 4]


async def job_pages(browser, folder, names):
    """Take pictures of the page of ``rbim invite``: some accounts and one group are refused, and the platform throttles."""
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
        with TemporaryDirectory() as temporary:
            rows = [
                (groups[n % GROUPS], f"guest{n // 41 % 60:04}" if n % 41 == 0 else f"1380013{n:05}") for n in range(ROWS)
            ]
            source = write_csv(f"{temporary}/members.csv", [*rows, ("", "")])
            flags = {"base-url": server.url}
            variables = {"RBIM_APP_ID": "app", "RBIM_APP_TOKEN": "the-token", "RBIM_USER_NAME": "admin"}
            words = (
                "invite",
                source,
                "--chunk",
                "10",
                "--concurrency",
                "40",
                *(f"--{name}={each}" for name, each in flags.items()),
            )
            async with AsyncExitStack() as stack:
                found = await in_thread(stack, running(*words, **variables))
                async for path in shots(browser, folder, JOB, names, found.page.address):
                    yield path


async def callback_pages(browser, folder, names):
    """Take pictures of the page of ``rbim callback serve``: one in nine events fails, some deliveries are refused."""
    answered = 0

    async def application(reader, writer):
        nonlocal answered
        answered += 1
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"}")
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            % (b"500 No" if answered % 9 == 0 else b"200 OK")
        )
        writer.close()

    with TemporaryDirectory() as temporary:
        await filled(f"{temporary}/events.db", ERRORS, 1)
        handler = await asyncio.start_server(application, "127.0.0.1", 0)
        target = f"http://127.0.0.1:{handler.sockets[0].getsockname()[1]}/"
        async with AsyncExitStack() as stack:
            process, page = await in_thread(stack, serving_page(f"{temporary}/events.db", "--forward-to", target))
            sending = asyncio.create_task(deliver(process.url))
            stack.callback(sending.cancel)
            async for path in shots(browser, folder, CALLBACK, names, page.address):
                yield path
        handler.close()


async def deliver(url):
    """Send deliveries until it is cancelled: some are signed wrongly, or changed on their way."""
    kinds = ("TEXT", "PICTURE", "TEAM_JOIN", "TEXT", "TEAM_KICK")
    async with httpx.AsyncClient(trust_env=False) as sender:
        for number in range(1_000_000):
            body = event(msgId=f"m{number}", to=f"g8000004983729{number % 8}", msgType=kinds[number % len(kinds)])
            headers = sign(body, credentials=MINE, now=datetime.now(UTC))
            if number % 11 == 0:
                headers["MD5"], headers["CheckSum"] = headers["CheckSum"], headers["MD5"]
            elif number % 17 == 0:
                body += b"\n"
            await sender.post(url, content=body, headers=headers)
            await asyncio.sleep(0.03 + 0.05 * (number % 7 == 0))


async def in_thread(stack, blocking):
    """Enter a context manager that blocks, and leave it with the stack."""
    entered = await anyio.to_thread.run_sync(blocking.__enter__)
    stack.push_async_callback(partial(anyio.to_thread.run_sync, blocking.__exit__, None, None, None))
    return entered


async def shots(browser, folder, known, names, address):
    """Open a window for each picture, and take all of them after a while."""
    async with AsyncExitStack() as stack:
        pages = {name: await stack.enter_async_context(opened(browser, address, known[name])) for name in names}
        await anyio.sleep(SECONDS)
        for name, page in pages.items():
            if known[name].view:
                await page.locator(f"#tab-{known[name].view}").click()
        await anyio.sleep(4 * SETTLED)
        for name, page in pages.items():
            path = folder / f"{name}.png"
            path.write_bytes(small(await page.screenshot()))
            yield path


@asynccontextmanager
async def opened(browser, address, shot):
    size = {"width": shot.width, "height": HEIGHT}
    context = await browser.new_context(viewport=size, color_scheme=shot.theme, locale=shot.language)
    try:
        page = await context.new_page()
        await page.goto(address)
        yield page
    finally:
        await context.close()


def views(name, *tabs):
    """Return the four pictures of a page: the tabs that are open, wide in both themes and narrow in both."""
    narrow = {"width": chromium.NARROW, "language": "zh-CN"}
    looks = {"light": {}, "dark": {"theme": "dark"}, "narrow-light": narrow, "narrow-dark": {**narrow, "theme": "dark"}}
    return {f"{name}-page-{look}": Shot(view=tab, **how) for (look, how), tab in zip(looks.items(), tabs, strict=True)}


JOB = views("job", "", "reasons", "", "accounts")
CALLBACK = views("callback", "", "dead", "", "dead")
PICTURES = dict.fromkeys(JOB, job_pages) | dict.fromkeys(CALLBACK, callback_pages)
"""The function that takes each picture, by the name of its file without ``.png``."""
