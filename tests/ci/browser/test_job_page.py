"""The page of a job in a browser: what is shown is what the job is, and each button does what it says."""

import asyncio
import csv
import io
import os
import re
import shlex
import signal

import pytest

from helpers.holding import Holding
from helpers.job_commands import CREDENTIALS, STRANGER, commands, made_group, write_csv
from helpers.serving import served
from helpers_ci.browser import NARROW, WIDE, apart
from helpers_ci.page_jobs import running
from rbim.emulator import Emulator
from rbim.emulator.faults import Code, Fault

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra ci")
expect = playwright.expect

HOSTILE = "<img src=x onerror=alert(1)>gpj.exe"
GONE = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING")


@pytest.fixture(scope="module")
def served_platform():
    emulator = Emulator(credentials=CREDENTIALS)
    emulator.never_logged_in(STRANGER)
    emulator.never_logged_in(HOSTILE)
    emulator.door = Holding(emulator.asgi)
    with served(emulator.door) as url:
        yield emulator, url


@pytest.fixture
def platform(served_platform, bare_environment, tmp_path):
    emulator, url = served_platform
    for name, value in {"BASE_URL": url, "APP_ID": "app", "APP_TOKEN": "the-token", "USER_NAME": "admin"}.items():
        bare_environment.setenv(f"RBIM_{name}", value)
    bare_environment.chdir(tmp_path)
    yield emulator
    emulator.door.holding = False
    emulator.faults.clear()


@pytest.fixture
def job(platform):
    """A job of 268 rows of every kind in three groups; one group is refused, and the last request's answer is kept back."""
    group, bad, last = [apart(made_group, platform) for _ in range(3)]
    platform.faults.add(
        Fault(effect=Code("980015", "content is rejected"), operation="InviteJoinGroup", match={"group_id": bad})
    )
    rows = [(group, f"u{number}") for number in range(260)]
    rows += [
        (group, STRANGER),
        (group, HOSTILE),
        (bad, "b1"),
        (bad, "b2"),
        ("", "nobody"),
        (group, "u1"),
        (last, "late"),
        (last, "later"),
    ]
    write_csv("members.csv", rows)
    app = platform.door.app
    platform.door.app = keeping = Keeping(app, last)
    with running("invite", "members.csv", "--chunk", "10", "--max-failures", "none") as found:
        found.release = keeping.release
        yield found
        keeping.release()
    platform.door.app = app


class Keeping:
    """Serves ``app``, but keeps requests back whose body names a group, until they are released."""

    def __init__(self, app, group):
        self.app, self.group, self.keeping = app, group.encode(), True

    def release(self):
        self.keeping = False

    async def __call__(self, scope, receive, send):
        message = await receive()
        while self.keeping and self.group in message.get("body", b""):
            await asyncio.sleep(0.005)
        messages = [message]

        async def again():
            return messages.pop() if messages else await receive()

        await self.app(scope, again, send)


async def settled(window):
    """Wait until the page shows that only the last two accounts wait."""
    await expect(window.locator("[data-state=waiting] output")).to_have_text("2")


async def end_of(job):
    return await asyncio.to_thread(job.ended)


async def test_the_page_follows_the_job_to_its_end_and_keeps_what_it_has(job, opened):
    window = await opened(job.page.address)
    window.allow(GONE[0])
    await settled(window)
    await expect(window.get_by_role("heading", level=1)).to_have_text("rbim invite")
    counts = {"done": "260", "refused": "2", "failed": "2", "unknown": "0", "skipped": "1", "duplicate": "1"}
    for state, count in counts.items():
        await expect(window.locator(f"[data-state={state}] output")).to_have_text(count)
    total = window.locator(".sum")
    assert await total.get_attribute("data-sum") == await total.get_attribute("data-total") == "268"
    await expect(window.locator(".pace")).to_have_text(re.compile("As fast as the platform answers|Begins slowly"))
    await expect(window.locator(".chart")).to_have_count(3)

    job.release()
    code, _, err = await end_of(job)
    result = window.locator(".result")
    await expect(result).to_contain_text(f"Exit code {code}: Some accounts were refused or failed, or some rows are invalid")
    for command in commands(err):
        await expect(result.get_by_text(f"rbim {shlex.join(command)}")).to_be_visible()
    await result.get_by_role("button", name="Copy").first.click()
    assert await window.evaluate("navigator.clipboard.readText()") == f"rbim {shlex.join(commands(err)[0])}"
    await expect(window.locator("[data-state=done] output")).to_have_text("262")
    await expect(window.locator("[data-state=waiting] output")).to_have_text("0")
    assert await total.get_attribute("data-sum") == await total.get_attribute("data-total") == "268"
    await window.show("reasons")
    await expect(window.locator("#panel-reasons")).to_contain_text("980015")
    await window.show("detail")
    await expect(window.locator("#panel-detail")).to_contain_text("repeats line 3")
    await window.show("accounts")
    await expect(window.get_by_role("searchbox")).to_be_disabled()


async def test_accounts_are_found_by_reason_outcome_and_name_and_downloaded(job, opened):
    window = await opened(job.page.address)
    await settled(window)
    panel = await window.show("reasons")
    await panel.get_by_role("row", name="content is rejected").get_by_role("button", name="Show accounts").click()
    accounts = window.locator("#panel-accounts")
    rows = accounts.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("b1")
    assert len([url for url in window.requests if "/accounts?" in url]) == 1
    async with window.expect_download() as download:
        await window.button("Download CSV", within=accounts).click()
    assert [row["account"] for row in await table_of(download)] == ["b1", "b2"]
    await window.button("Any reason").click()
    await accounts.get_by_label("Outcome").select_option("refused")
    await expect(rows).to_have_count(2)
    await expect(rows.last).to_contain_text("<img src=x onerror=alert(1)>gpj.exe")
    assert await window.locator("img[src=x]").count() == 0
    await accounts.get_by_label("Outcome").select_option("done")
    await expect(rows).to_have_count(100)
    await window.button("Show more").click()
    await expect(rows).to_have_count(200)
    await window.button("Show more").click()
    await expect(rows).to_have_count(260)
    await expect(window.button("Show more")).to_be_hidden()
    await window.get_by_role("searchbox").fill("U25")
    await expect(rows).to_have_count(11)
    async with window.expect_download() as download:
        await window.button("Download CSV", within=accounts).click()
    assert [row["account"] for row in await table_of(download)] == ["u25", *(f"u{number}" for number in range(250, 260))]
    await window.get_by_role("searchbox").fill("no such account")
    await expect(accounts.get_by_text("No account is in this selection.")).to_be_visible()
    panel = await window.show("reasons")
    async with window.expect_download() as download:
        await panel.get_by_role("row", name="content is rejected").get_by_role("button", name="Download CSV").click()
    assert [row["account"] for row in await table_of(download)] == ["b1", "b2"]


async def table_of(download):
    file = await (await download.value).path()
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"))))


async def test_the_token_leaves_the_address_and_is_never_in_a_request_line(job, opened):
    window = await opened(job.page.address)
    await settled(window)
    assert job.page.token not in window.page.url
    assert not [url for url in window.requests[1:] if job.page.token in url]
    assert job.page.token not in await window.content()
    await window.reload()
    await settled(window)
    other = await opened(job.page.base)
    await expect(other.get_by_text("Open this page by the address that the command printed")).to_be_visible()
    assert not [url for url in other.requests if url.endswith("/events")]
    for tab in (window, other):  # the address is pasted into a tab that shows the page: only its # is new
        await tab.evaluate("address => location.assign(address)", job.page.address)
        await tab.wait_for_url(lambda url: url == f"{job.page.base}/", timeout=2000)
        await settled(tab)


# Each button.


async def test_every_tab_is_accessible_and_fits_at_both_widths_before_and_after_the_end(job, opened):
    looks = {"en-US": {"width": WIDE, "theme": "light"}, "zh-CN": {"width": NARROW, "theme": "dark"}}
    windows = {language: await opened(job.page.address, language=language, **look) for language, look in looks.items()}
    for window in windows.values():
        window.allow(GONE[0])
        await settled(window)
        await checked(window)
    job.release()
    await end_of(job)
    for language, window in windows.items():
        await window.show("overview")
        await expect(window.locator(".result")).to_be_visible()
        if language == "zh-CN":
            await expect(window.locator(".result")).to_contain_text("部分账号被拒绝或失败")
            await expect(window.locator(".result")).to_contain_text(re.compile("剩余账号.2 失败.再次发送"))
        await checked(window)


async def checked(window):
    for tab in ("reasons", "accounts", "detail", "overview"):
        await window.show(tab)
        assert await window.axe() == [], tab
        wide = await window.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{tab} is {wide} pixels too wide"


async def test_a_killed_command_is_told(job, opened):
    window = await opened(job.page.address)
    for each in GONE:
        window.allow(each)
    await settled(window)
    os.kill(job.popen.pid, signal.SIGKILL)
    await expect(window.locator(".result")).to_contain_text("The command ended without a result")
    await expect(window.locator("[data-state=waiting] output")).to_have_text("2")
