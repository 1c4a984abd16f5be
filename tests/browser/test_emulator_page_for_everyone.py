"""The emulator's page for everyone: by keyboard, in both themes, widths and languages, hostile names, and under load."""

import asyncio
import time

import pytest

from helpers.browser import NARROW, WIDE
from helpers.rawclient import connected, signed
from rbim.emulator import Emulator
from rbim.emulator.faults.requests import Fault, Status

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra browser")
expect = playwright.expect

TABS = ["requests", "groups", "tasks", "accounts", "copies", "faults", "settings"]


async def accepting(_headers, _body):
    return 200


async def failing(_headers, _body):
    return 500


async def filled(emulator, server):
    """Give every view something to show."""
    emulator.never_logged_in("1009")
    emulator.copy_to(failing)
    async with connected(server) as raw:
        made = await raw.ask(signed(emulator, "CreateGroup", name="产品公告", type="2", permission="1", declared="欢迎"))
        group_id = made.document["groupId"]
        await raw.ask(signed(emulator, "InviteJoinGroup", groupId=group_id, members=["1001", "1002"], confirm="0"))
        await raw.ask(signed(emulator, "JoinGroup", groupId=group_id, userName="1003"))
        await raw.ask(signed(emulator, "QueryGroupDetail", groupId="g80000000000000"))
        emulator.faults.add(Fault(effect=Status(503), operation="SearchPublicGroups"))
        await raw.ask(signed(emulator, "SearchPublicGroups"))
    emulator.say("1001", "1002", "hello")
    return group_id


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_has_no_serious_finding_in_any_view(emulator, server, opened, theme, width):
    await filled(emulator, server)
    window = await opened(server.url, theme=theme, width=width)
    found = {}
    for tab in TABS:
        panel = await window.show(tab)
        await expect(panel).to_be_visible()
        if tab != "settings":
            await expect(panel.locator("tbody tr").first if tab != "tasks" else panel.locator(".empty")).to_be_visible()
        if tab == "faults":
            for each in await panel.locator("summary").all():
                await each.click()
        found[tab] = await window.axe()
    for tab in ("requests", "groups", "copies"):
        panel = await window.show(tab)
        await panel.locator("tbody tr button").first.click()
        await expect(window.get_by_role("dialog")).to_be_visible()
        found[f"dialog of {tab}"] = await window.axe()
        await window.keyboard.press("Escape")
    assert {view: findings for view, findings in found.items() if findings} == {}


async def test_axe_has_no_serious_finding_in_the_first_view(emulator, server, opened):
    await filled(emulator, server)
    window = await opened(server.url, theme="dark", width=NARROW)
    await expect(window.locator("#panel-requests tbody tr")).to_have_count(5)
    assert await window.axe() == []


async def test_no_view_is_wider_than_a_narrow_window(emulator, server, opened):
    group_id = await filled(emulator, server)
    window = await opened(server.url, width=NARROW)
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "ModifyGroup", groupId=group_id, name="长" * 50))
    for tab in TABS:
        await window.show(tab)
        assert await window.evaluate("document.documentElement.scrollWidth") <= NARROW, tab


async def test_everything_is_reached_and_done_by_keyboard_alone(emulator, server, opened):
    await filled(emulator, server)
    window = await opened(server.url)
    keys = window.keyboard
    await expect(window.locator("#panel-requests tbody tr")).to_have_count(5)
    await keys.press("Tab")
    assert await window.evaluate("document.activeElement.textContent") == "Skip to the content"
    await keys.press("Tab")
    for tab in [*TABS[1:], TABS[0], TABS[1]]:  # round and round
        await keys.press("ArrowRight")
        await expect(window.locator(f"#tab-{tab}")).to_be_focused()
        await expect(window.locator(f"#panel-{tab}")).to_be_visible()
    await keys.press("End")
    await expect(window.locator("#panel-settings")).to_be_visible()
    await keys.press("Home")
    await expect(window.locator("#panel-requests")).to_be_visible()
    await keys.press("ArrowRight")
    await expect(window.locator("#panel-groups tbody tr")).to_have_count(1)
    for _ in range(10):
        await keys.press("Tab")
        if await window.evaluate("document.activeElement.textContent") == "产品公告":
            break
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert await window.evaluate(outline) == "solid"
    await keys.press("Enter")
    dialog = window.get_by_role("dialog")
    await expect(dialog).to_be_visible()
    for _ in range(10):
        await keys.press("Tab")
        inside = "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
        assert await window.evaluate(inside)  # a modal dialog keeps the focus
        if await window.evaluate("document.activeElement.getAttribute('aria-label')") == "Confirm: 1001":
            break
    await keys.press("Enter")
    async with asyncio.timeout(10):
        while "1001" not in next(iter(emulator.state.groups.values())).members:
            await asyncio.sleep(0.01)
    await keys.press("Escape")
    await expect(dialog).to_have_count(0)
    assert await window.evaluate("document.activeElement.textContent") == "产品公告"  # where the focus was


HOSTILE = {
    "markup": "<img src=x onerror=alert(1)><script>alert(2)</script>",
    "direction": "abc\u202egnp.exe\u202c",
    "invisible": "a\u200bb\ufeffc\u2066d",
    "NUL": "a\0b\x1b[31mc\x7f",
    "long": "x" * 10_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_name_is_only_text_and_its_controls_are_seen(kind, opened, served):
    name = HOSTILE[kind]
    emulator = Emulator()
    document = emulator.export()
    document["groups"] = [
        {
            "group_id": "g1",
            "name": name,
            "type": "0",
            "permission": "0",
            "target": "1",
            "declared": name,
            "group_domain": name,
            "created": "2026-01-01T00:00:00+00:00",
            "members": {name: "0"},
            "invited": [f"{name}2"],
            "applied": [],
        }
    ]
    emulator.load(document)
    emulator.copy_to(accepting)
    server = await served(emulator)
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "CreateGroup", name=name[:50], type="1", userName=name))
        await raw.ask(signed(emulator, "ModifyGroup", groupId=name, name=name))
    emulator.push(["1001"], name)
    window = await opened(server.url)
    alerts = []
    window.page.on("dialog", lambda dialog: alerts.append(dialog.message))
    for tab in ("requests", "groups", "accounts", "copies"):
        panel = await window.show(tab)
        await expect(panel.locator("tbody tr").first).to_be_visible()
        assert await panel.locator("tbody img, tbody script").count() == 0
        assert await window.evaluate("document.documentElement.scrollWidth") <= WIDE, tab
        if tab in {"groups", "copies"}:
            await panel.locator("tbody tr button").first.click()
            dialog = window.get_by_role("dialog")
            await expect(dialog).to_be_visible()
            text = await dialog.inner_text()
            if kind == "markup":
                assert name in text
                assert await dialog.locator("img, script").count() == 0
            elif kind == "long":
                assert name in text.replace("\n", "")
            else:
                nul = ["\\u0000", "\\u001b", "␡"] if tab == "copies" else ["␀", "␛", "␡"]  # JSON escapes two of them
                seen = {"direction": ["U+202E"], "invisible": ["U+200B", "U+FEFF", "U+2066"], "NUL": nul}
                assert all(each in text for each in seen[kind])
                assert not set(name) & set("\0\x1b\u202e\u200b\ufeff\u2066") & set(text)
            await window.keyboard.press("Escape")
    assert alerts == []


async def test_the_page_speaks_the_language_of_the_browser(emulator, server, opened):
    await filled(emulator, server)
    for language, lang, title, tab in (
        ("zh-CN", "zh-CN", "rbim 模拟器", "群组"),
        ("zh-TW", "zh-CN", "rbim 模拟器", "群组"),
        ("en-GB", "en", "rbim emulator", "Groups"),
        ("fr-FR", "en", "rbim emulator", "Groups"),
    ):
        window = await opened(server.url, language=language)
        await expect(window.get_by_role("heading", level=1)).to_have_text(title)
        await expect(window.get_by_role("tab").nth(1)).to_contain_text(tab)
        assert await window.evaluate("document.documentElement.lang") == lang
        assert await window.title() == title


async def test_nothing_is_loaded_from_elsewhere_in_any_view(emulator, server, opened):
    await filled(emulator, server)
    window = await opened(server.url)
    for tab in TABS:
        await window.show(tab)
    await expect(window.locator("#state")).to_have_text("Live")
    assert len(window.requests) > 15
    assert {each.split("/_emulator/")[0] for each in window.requests if each != f"{server.url}/"} == {server.url}


RATE, SECONDS = 1000, 4


@pytest.mark.slow
@pytest.mark.ci
async def test_at_a_thousand_requests_a_second_counts_are_exact_and_the_page_responds(emulator, server, opened, told):
    window = await opened(server.url)
    request = signed(emulator, "CreateGroup", name="load", type="1")
    burst = RATE // 20
    async with connected(server) as raw:
        began = time.perf_counter()
        for number in range(SECONDS * 20):
            await raw.send(request * burst)
            for _ in range(burst):
                await raw.answer()
            await asyncio.sleep(max(0.0, began + (number + 1) / 20 - time.perf_counter()))
            if number == SECONDS * 10:
                pressed = time.perf_counter()
                await window.show("groups")
                await window.show("requests")
                responded = time.perf_counter() - pressed
        took = time.perf_counter() - began
    await expect(window.locator("#total")).to_have_text(f"{RATE * SECONDS:,}")
    count = window.locator("#panel-requests .toolbar .muted")
    await expect(count).to_have_attribute("data-total", str(RATE * SECONDS))
    assert len(emulator.requests) == RATE * SECONDS
    first = window.locator("#panel-requests tbody tr").first
    await expect(first).to_contain_text(f"{RATE * SECONDS:,}")
    assert responded < 3, f"two tabs took {responded:.1f} s to open"
    assert await window.locator("#panel-requests tbody tr").count() == 100
    told(f"{RATE * SECONDS / took:,.0f} requests per second; two tabs opened in {responded:.2f} s")
