"""The page of an inbox in a browser, beside its receiver and after it."""

import asyncio

import anyio
import pytest

from helpers.callback_process import counts, event, serving
from helpers.page_client import showing
from helpers.page_inbox import LOST, WRONG, filled
from helpers_ci.browser import NARROW, WIDE, apart

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra ci")
expect = playwright.expect

HOSTILE = "<script>alert(1)</script>\u202eg"
GONE = "ERR_CONNECTION_REFUSED"


@pytest.fixture
def inbox(tmp_path):
    path = tmp_path / "events.db"
    apart(anyio.run, lambda: filled(path, LOST, WRONG, LOST, quarantined=1, handled=2))
    return path


@pytest.fixture
def page(inbox):
    with showing(inbox) as page:
        yield page


async def test_deliveries_appear_as_they_come_with_msgid_and_body_and_are_found(inbox, page, opened):
    window = await opened(page.address)
    panel = await window.show("events")
    rows = panel.locator("tbody tr")
    await expect(rows).to_have_count(6)
    with serving(inbox) as receiver:
        assert (await asyncio.to_thread(receiver.post, event(msgId="the-one", to=HOSTILE, body="looked for")))[0] == 200
        await expect(rows).to_have_count(7)
        await expect(rows.first).to_contain_text("the-one")
        await expect(rows.first).to_contain_text("team/<script>alert(1)</script>U+202Eg")
        await expect(rows.first).to_contain_text("waiting")
        await asyncio.to_thread(receiver.stop)
    for text in ("looked FOR", "the-one"):
        await panel.get_by_role("searchbox").fill(text)
        await expect(rows).to_have_count(1)
    await rows.first.get_by_role("button").click()
    dialog = window.get_by_role("dialog")
    await expect(dialog).to_contain_text("the-one")
    await expect(dialog).to_contain_text('"body": "looked for"')
    await window.button("Close").click()
    await panel.get_by_role("searchbox").fill("")
    await panel.get_by_label("State").select_option("done")
    await expect(rows).to_have_count(2)


async def test_dead_letters_are_shown_and_handled_again_or_deleted_after_a_question(inbox, page, opened):
    window = await opened(page.address)
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
    assert apart(counts, inbox).dead == 3
    await window.button("Handle again", within=letters.first).click()
    await window.button("Handle again", within=dialog).click()
    await expect(letters).to_have_count(2)
    await expect(window.get_by_role("status").get_by_text("1 will be handled again.")).to_be_visible()
    errors = panel.locator("table").first
    await errors.get_by_role("row", name="ValueError").get_by_role("button", name="Delete all").click()
    await window.button("Delete all", within=dialog).click()
    await expect(letters).to_have_count(1)
    assert (apart(counts, inbox).dead, apart(counts, inbox).waiting) == (1, 1)


async def test_every_tab_is_accessible_and_fits_in_both_languages_themes_and_widths_until_after_the_end(page, opened):
    looks = [(WIDE, "light", "en-US"), (NARROW, "dark", "zh-CN")]
    windows = [await opened(page.address, width=each[0], theme=each[1], language=each[2]) for each in looks]
    for window in windows:
        for tab in ("overview", "dead", "quarantined", "events"):
            panel = await window.show(tab)
            await expect(panel.locator("tbody tr, .chart").first).to_be_visible()
            await fits(window, tab)
        await window.locator("#panel-events tbody tr button").first.click()
        await expect(window.get_by_role("dialog").locator("pre").first).to_be_visible()
        await fits(window, "dialog")
        await window.keyboard.press("Escape")
    await expect(windows[1].locator("#panel-events")).to_contain_text("由应用 an-app 签名")
    page.popen.kill()
    for window in windows:
        window.allow(GONE)
        await expect(window.locator(".banner")).to_be_visible()
        await fits(window, "end")


async def fits(window, where):
    assert await window.axe() == [], where
    wide = await window.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{where} is {wide} pixels too wide"
