"""The pictures of the local pages: what is shown is a real emulator's, with a service that it serves for two minutes.

The page's clock is Playwright's, so that two minutes take less than one.
"""

import math
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from io import BytesIO
from random import Random

import anyio
from PIL import Image

from helpers.rawclient import connected, signed
from helpers_ci import browser as chromium
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, Latency, Status, Throttle
from rbim.emulator.server.server import serve

SECONDS = 115
SETTLED = 0.5  # seconds of real time until a view that was opened has what it asked for
HEIGHT = 800
NAMES = ["产品公告", "客户交流", "内部测试", "新品发布", "售后支持", "华东区销售", "合作伙伴", "周末值班"]


async def emulator_page(browser, folder, names):
    """Take the picture of the emulator's page with traffic."""
    random = Random(7)  # the same traffic each time
    emulator = Emulator(seed=7)
    emulator.never_logged_in("1009")
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve(emulator))
        page = await window(stack, browser, server.url)
        raw = await stack.enter_async_context(connected(server))
        groups = await made(emulator, raw)
        emulator.faults.add(
            Fault(effect=Latency(0.02, sigma=0.8), probability=0.4),
            Fault(effect=Throttle(46, retry_after=1)),
            Fault(effect=Status(503), operation="QueryGroupDetail", probability=0.04),
        )
        for second in range(SECONDS):
            rate = 18 + 14 * math.sin(second / 9) + 22 * math.exp(-(((second - 80) / 7) ** 2)) + random.uniform(-3, 3)
            for _ in range(max(1, round(rate))):
                await raw.ask(a_request(emulator, random, groups))
            await pass_a_second(page, emulator)
        await anyio.sleep(SETTLED)
        await page.clock.run_for(10)
        path = folder / f"{names[0]}.png"
        path.write_bytes(small(await page.screenshot()))
        yield path


async def window(stack, browser, url):
    context = await browser.new_context(
        viewport={"width": chromium.WIDE, "height": HEIGHT}, color_scheme="light", locale="en-US", reduced_motion="reduce"
    )
    stack.push_async_callback(context.close)
    page = await context.new_page()
    await page.clock.install(time=datetime.now())  # noqa: DTZ005  # of this machine, as a browser's
    await page.goto(url)
    await page.clock.pause_at(datetime.now() + timedelta(seconds=2))  # noqa: DTZ005
    return page


async def pass_a_second(page, emulator):
    """Let a second of the page's time pass, with two questions, and wait until it has all requests."""
    for _ in range(2):
        async with page.expect_response(lambda answer: "/live/" in answer.url):
            await page.clock.run_for(500)
        await anyio.sleep(0.02)
    while (await page.locator("#total").inner_text()).replace(",", "") != str(emulator.requests.count):
        await anyio.sleep(0.02)


async def made(emulator, raw):
    """Make the groups, with members, invitations and requests to join; return their ids."""
    found = []
    for number, name in enumerate(NAMES):
        permission = "1" if number % 3 == 1 else "0"
        answer = await raw.ask(signed(emulator, "CreateGroup", name=name, type=str(number % 5), permission=permission))
        group_id = answer.document["groupId"]
        found.append(group_id)
        members = [str(1001 + (number * 7 + each) % 90) for each in range(5 + number * 4)]
        await raw.ask(signed(emulator, "InviteJoinGroup", groupId=group_id, members=members, confirm="1"))
        if permission == "1":
            await raw.ask(signed(emulator, "InviteJoinGroup", groupId=group_id, members=["2001", "2002"], confirm="0"))
            await raw.ask(signed(emulator, "JoinGroup", groupId=group_id, userName="2003"))
    return found


def a_request(emulator, random, groups):
    group_id, account = random.choice(groups), str(random.randint(1001, 1090))
    kind = random.random()
    if kind < 0.45:
        return signed(emulator, "QueryGroupDetail", groupId=group_id)
    if kind < 0.75:
        members = [str(random.randint(3000, 9000)) for _ in range(random.randint(1, 9))]
        return signed(emulator, "InviteJoinGroup", groupId=group_id, members=members, confirm="0")
    if kind < 0.85:
        return signed(emulator, "JoinGroup", groupId=group_id, userName=account)
    if kind < 0.95:
        return signed(emulator, "SearchPublicGroups", name=random.choice(NAMES)[:2])
    return signed(emulator, "QueryGroupDetail", groupId="g80000000000000")


def small(png):
    """Return a picture with 256 colours, which a page has hardly more of."""
    buffer = BytesIO()
    Image.open(BytesIO(png)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


PICTURES = {"emulator-page-light": emulator_page}
"""The function that takes each picture, by the name of its file without ``.png``."""
