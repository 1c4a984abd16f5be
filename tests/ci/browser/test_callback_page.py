"""The page of a receiver in a browser: deliveries as they come, and dead letters that are handled again."""

import asyncio
import signal

import anyio
import pytest

from helpers.callback_process import counts, event
from helpers.page_callbacks import LOST, WRONG, filled, serving_page
from helpers_ci.browser import NARROW, WIDE, apart

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra ci")
expect = playwright.expect

HOSTILE = "<script>alert(1)</script>\u202eg"
GONE = "ERR_CONNECTION_REFUSED"
FORGED = {"CheckSum": "0" * 32, "MD5": "1" * 32, "CurTime": "1700000000000"}


@pytest.fixture
def receiver(tmp_path):
    path = tmp_path / "events.db"
    apart(anyio.run, filled, path, [LOST, WRONG, LOST], 1)
    with serving_page(path, "--print") as (process, page):
        process.page, process.path = page, path
        process.send = lambda *given, **fields: asyncio.to_thread(process.post, event(**fields), *given)
        yield process


async def test_deliveries_appear_as_they_come_and_refused_ones_are_explained(receiver, opened):
    window = await opened(receiver.page.address)
    await expect(window.get_by_text("No delivery has come since the command began.")).to_be_visible()
    await receiver.send(msgId="m1", to="g7")
    rows = window.locator("#panel-deliveries tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("team/g7")
    await expect(rows.first).to_contain_text("handled")
    await receiver.send(FORGED, msgId="m2")
    await expect(rows.first).to_contain_text("401")
    await expect(rows.first).to_contain_text(
        "CheckSum does not match the token configured here, and no usual mistake explains it: a token was renewed"
    )
    await receiver.send(msgId="m3", to=HOSTILE)
    await expect(rows.first).to_contain_text("team/<script>alert(1)</script>U+202Eg")
    await window.get_by_label("Answer", exact=True).select_option("refused")
    await expect(rows).to_have_count(1)
    await rows.first.get_by_role("button").click()
    dialog = window.get_by_role("dialog")
    await expect(dialog).to_contain_text("Diagnosis")
    await expect(dialog.locator(".finding").first).to_contain_text("CheckSum")
    await window.button("Close").click()
    await window.get_by_label("Answer", exact=True).select_option("")
    await window.get_by_role("searchbox").first.fill("g7")
    await expect(rows).to_have_count(1)


async def test_a_dead_letter_is_shown_and_handled_again_after_a_question(receiver, opened):
    window = await opened(receiver.page.address)
    panel = await window.show("dead")
    letters = panel.locator(".live-list tbody tr")
    await expect(letters).to_have_count(3)
    await letters.nth(1).get_by_role("button", name="2", exact=True).click()
    dialog = window.get_by_role("dialog")
    await expect(dialog).to_contain_text("Traceback (most recent call last)")
    await expect(dialog).to_contain_text('"msgId": "mdead1"')
    assert await window.locator("img[src=x]").count() == 0
    await window.button("Close").click()

    await window.button("Handle again", within=letters.first).click()
    await window.button("Cancel", within=dialog.locator("footer")).click()
    await expect(dialog).to_have_count(0)
    assert apart(counts, receiver.path).dead == 3
    await window.button("Handle again", within=letters.first).click()
    await window.button("Handle again", within=dialog).click()
    await expect(letters).to_have_count(2)
    assert (await asyncio.to_thread(receiver.line))["msgId"] == "mdead0"
    await expect(window.get_by_role("status").get_by_text("1 will be handled again.")).to_be_visible()


# Each button.


async def test_every_tab_is_accessible_and_fits_at_both_widths_until_after_the_end(receiver, opened):
    await receiver.send(msgId="m1", to=HOSTILE)
    await receiver.send(FORGED, msgId="m2")
    looks = [(WIDE, "light", "en-US"), (NARROW, "dark", "zh-CN")]
    windows = [await opened(receiver.page.address, width=each[0], theme=each[1], language=each[2]) for each in looks]
    for window in windows:
        window.allow(GONE)
        await expect(window.locator("#panel-deliveries tbody tr")).to_have_count(2)
        for tab in ("dead", "quarantine", "deliveries"):
            panel = await window.show(tab)
            await expect(panel.locator(".live-list tbody tr").first).to_be_visible()
            await fits(window, tab)
        await window.locator("#panel-deliveries tbody tr button").first.click()
        await expect(window.get_by_role("dialog").locator(".finding").first).to_be_visible()
        await fits(window, "dialog")
        await window.keyboard.press("Escape")
    receiver.popen.send_signal(signal.SIGTERM)
    for window in windows:
        await expect(window.locator(".banner")).to_be_visible()
        await expect(window.locator("#panel-deliveries tbody tr")).to_have_count(2)
        await fits(window, "end")


async def fits(window, where):
    assert await window.axe() == [], where
    wide = await window.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{where} is {wide} pixels too wide"
