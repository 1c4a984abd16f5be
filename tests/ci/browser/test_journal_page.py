"""The page of a journal in a browser, beside the job and after it: what it shows, and what each button does."""

import asyncio
import csv
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.holding import Holding
from helpers.job_commands import CREDENTIALS, STRANGER, made_group, write_csv
from helpers.page_client import showing
from helpers.serving import served
from helpers_ci.browser import NARROW, WIDE, apart
from rbim.emulator import Emulator
from rbim.emulator.faults import Code, Fault

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra ci")
expect = playwright.expect

INVITE = [sys.executable, "-X", "utf8", "-c", "from rbim.cli import main; main()", "invite", "members.csv", "--quiet"]
HOSTILE = "<img src=x onerror=alert(1)>gpj.exe"
MANY = 100_000
GONE = "ERR_CONNECTION_REFUSED"


class Keeping:
    """Serves ``app``, but keeps requests back whose body names a group, until they are released."""

    def __init__(self, app):
        self.app, self.group, self.keeping = app, b"", True

    async def __call__(self, scope, receive, send):
        message = await receive()
        while self.keeping and self.group and self.group in message.get("body", b""):
            await asyncio.sleep(0.005)
        messages = [message]

        async def again():
            return messages.pop() if messages else await receive()

        await self.app(scope, again, send)


@pytest.fixture
def platform(tmp_path, monkeypatch):
    emulator = Emulator(credentials=CREDENTIALS)
    emulator.never_logged_in(STRANGER)
    emulator.never_logged_in(HOSTILE)
    emulator.door = Keeping(Holding(emulator.asgi))
    monkeypatch.chdir(tmp_path)
    with served(emulator.door) as url:
        for name, value in {"BASE_URL": url, "APP_ID": "app", "APP_TOKEN": "the-token", "USER_NAME": "admin"}.items():
            monkeypatch.setenv(f"RBIM_{name}", value)
        yield emulator


@pytest.fixture
def job(platform):
    """The page of a job with 268 rows of every kind; one group is refused, and the last request's answer is kept back."""
    group, bad, last = [apart(made_group, platform) for _ in range(3)]
    platform.faults.add(
        Fault(effect=Code("980015", "content is rejected"), operation="InviteJoinGroup", match={"group_id": bad})
    )
    rows = [(group, f"u{number}") for number in range(260)]
    rows += [(group, STRANGER), (group, HOSTILE), (bad, "b1"), (bad, "b2"), ("", "nobody"), (group, "u1")]
    write_csv("members.csv", [*rows, (last, "late"), (last, "later")])
    platform.door.group = last.encode()
    with subprocess.Popen([*INVITE, "--chunk", "10", "--max-failures", "none"], stdout=subprocess.PIPE) as command:
        try:
            journal = Path("members.csv.invite.journal")
            while not journal.exists() or not journal.stat().st_size:
                assert command.poll() is None
            with showing(journal) as page:
                page.command = command
                page.release = lambda: setattr(platform.door, "keeping", False)
                yield page
        finally:
            platform.door.keeping = False
            command.kill()


async def settled(window):
    await expect(window.locator("[data-state=waiting] output")).to_have_text("2", timeout=20_000)


async def finished(page):
    page.release()
    assert await asyncio.to_thread(page.command.wait) == 3


async def test_the_page_follows_the_job_to_its_end_and_goes_on_after_it(job, opened):
    window = await opened(job.address)
    await settled(window)
    await expect(window.get_by_role("heading", level=1)).to_have_text("rbim job")
    counts = {"done": "260", "refused": "2", "failed": "2", "unknown": "0", "skipped": "1", "duplicate": "1"}
    for state, count in counts.items():
        await expect(window.locator(f"[data-state={state}] output")).to_have_text(count)
    total = window.locator(".sum")
    assert await total.get_attribute("data-sum") == await total.get_attribute("data-total") == "268"
    await expect(window.locator(".pill").first).to_have_text("Running")

    await finished(job)
    status = window.locator(".status")
    await expect(status).to_contain_text("Finished")
    await expect(status).to_contain_text("Not done: 2 refused, 2 failed.")
    await expect(window.locator("[data-state=done] output")).to_have_text("262")
    await window.button("Copy").click()
    copied = await window.evaluate("navigator.clipboard.readText()")
    assert copied == f"rbim job retry {Path('members.csv.invite.journal').absolute()}"
    async with window.expect_download() as download:
        await window.button("Download what was not done").click()
    assert (await download.value).suggested_filename == "members.csv.invite.not-done.csv"
    assert [row["account"] for row in await table_of(download)] == [STRANGER, HOSTILE, "b1", "b2"]
    await window.show("detail")
    await expect(window.locator("#panel-detail")).to_contain_text("repeats line 3")


async def test_accounts_are_found_by_reason_outcome_and_name_and_downloaded(job, opened):
    await finished(job)
    window = await opened(job.address)
    panel = await window.show("reasons")
    await panel.get_by_role("row", name="content is rejected").get_by_role("button", name="Show accounts").click()
    accounts = window.locator("#panel-accounts")
    rows = accounts.locator("tbody tr")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("b1")
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
    for count in (200, 262):
        await window.button("Show more").click()
        await expect(rows).to_have_count(count)
    await expect(window.button("Show more")).to_be_hidden()
    await window.get_by_role("searchbox").fill("U25")
    await expect(rows).to_have_count(11)
    await window.get_by_role("searchbox").fill("no such account")
    await expect(accounts.get_by_text("No account is in this selection.")).to_be_visible()


async def table_of(download):
    file = await (await download.value).path()
    return list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig"))))


async def test_the_token_leaves_the_address_and_is_never_in_a_request_line(job, opened):
    window = await opened(job.address)
    await settled(window)
    assert job.token not in window.page.url
    assert not [url for url in window.requests[1:] if job.token in url]
    assert job.token not in await window.content()
    await window.reload()
    await settled(window)
    other = await opened(job.base)
    await expect(other.get_by_text("Open this page by the address that the command printed")).to_be_visible()
    assert not [url for url in other.requests if url.endswith("/state")]
    for tab in (window, other):  # the address is pasted into a tab that shows the page: only its # is new
        await tab.evaluate("address => location.assign(address)", job.address)
        await tab.wait_for_url(lambda url: url.startswith(f"{job.base}/") and job.token not in url, timeout=2000)
        await settled(tab)


async def test_every_tab_is_accessible_and_fits_in_both_languages_themes_and_widths(job, opened):
    looks = {"en-US": {"width": WIDE, "theme": "light"}, "zh-CN": {"width": NARROW, "theme": "dark"}}
    windows = {language: await opened(job.address, language=language, **look) for language, look in looks.items()}
    for window in windows.values():
        await settled(window)
        await checked(window)
    await finished(job)
    await expect(windows["zh-CN"].locator(".status")).to_contain_text(re.compile("未完成.2 被拒绝, 2 失败"))
    for window in windows.values():
        await checked(window)
    await expect(windows["zh-CN"].locator("#panel-detail")).to_contain_text("群为空")
    os.kill(job.popen.pid, 9)
    for window in windows.values():
        window.allow(GONE)
        await expect(window.locator(".banner")).to_be_visible()
        await checked(window)


async def checked(window):
    for tab in ("reasons", "accounts", "detail", "overview"):
        await window.show(tab)
        assert await window.axe() == [], tab
        wide = await window.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{tab} is {wide} pixels too wide"


async def test_a_journal_of_100_000_rows_is_searched_and_downloaded(platform, opened):
    group = apart(made_group, platform)
    write_csv("members.csv", [(group, f"1380{number:08}") for number in range(MANY)])
    subprocess.run([*INVITE, "--limit", "500"], stdout=subprocess.PIPE, check=False)
    with showing("members.csv.invite.journal") as page:
        window = await opened(page.address)
        await expect(window.locator(".sum")).to_contain_text("100,000 rows")
        await expect(window.locator(".status")).to_contain_text("The limit of this run was reached")
        accounts = await window.show("accounts")
        rows = accounts.locator("tbody tr")
        await expect(rows).to_have_count(100)
        await window.get_by_role("searchbox").fill("00099999")
        await expect(rows).to_have_count(1)
        await window.get_by_role("searchbox").fill("")
        await window.show("overview")
        async with window.expect_download() as download:
            await window.button("Download what was not done").click()
        assert len(await table_of(download)) == MANY - 500
