"""The emulator's page for everyone: by keyboard, in both themes, widths and languages, hostile names, and under load."""

import pytest

from helpers.rawclient import connected, signed
from helpers_ci.browser import NARROW, WIDE
from rbim.emulator import Emulator
from rbim.emulator.faults import Fault, Status

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra ci")
expect = playwright.expect

TABS = ["requests", "groups", "tasks", "accounts", "copies", "faults", "settings"]


async def accepting(_headers, _body):
    return 200


async def failing(_headers, _body):
    return 500


async def filled(emulator, server):
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


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (NARROW, "dark")])
async def test_axe_has_no_serious_finding_in_any_view_and_each_fits(emulator, server, opened, width, theme):
    group_id = await filled(emulator, server)
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "ModifyGroup", groupId=group_id, name="长" * 50))
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
        assert await window.evaluate("document.documentElement.scrollWidth") <= width, tab
    for tab in ("requests", "groups", "copies"):
        panel = await window.show(tab)
        await panel.locator("tbody tr button").first.click()
        await expect(window.get_by_role("dialog")).to_be_visible()
        found[f"dialog of {tab}"] = await window.axe()
        await window.keyboard.press("Escape")
    assert {view: findings for view, findings in found.items() if findings} == {}


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
    await expect(window.locator("#panel-groups tbody tr").first).to_contain_text("2 / ")  # its row is shown anew
    assert "1001" in next(iter(emulator.state.groups.values())).members
    await keys.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(window.get_by_role("button", name="产品公告")).to_be_focused()  # where the focus was


async def test_the_page_speaks_the_language_of_the_browser(emulator, server, opened):
    await filled(emulator, server)
    for language, lang, title, tab in (
        ("zh-TW", "zh-CN", "rbim 模拟器", "群组"),
        ("fr-FR", "en", "rbim emulator", "Groups"),
    ):
        window = await opened(server.url, language=language)
        await expect(window.get_by_role("heading", level=1)).to_have_text(title)
        await expect(window.get_by_role("tab").nth(1)).to_contain_text(tab)
        assert await window.evaluate("document.documentElement.lang") == lang
        assert await window.title() == title


HOSTILE = "<img src=x onerror=alert(1)>abc\u202egnp.exe\u202ca\u200bb\ufeffc\u2066da\0b\x1b[31mc\x7f"


async def test_a_hostile_name_is_only_text_and_its_controls_are_seen(opened, served):
    emulator = Emulator()
    document = emulator.export()
    group = {"group_id": "g1", "name": HOSTILE, "type": "0", "permission": "0", "target": "1", "declared": HOSTILE}
    group |= {"group_domain": HOSTILE, "created": "2026-01-01T00:00:00+00:00", "members": {HOSTILE: "0"}}
    document["groups"] = [group | {"invited": [f"{HOSTILE}{'x' * 10_000}"], "applied": []}]
    emulator.load(document)
    emulator.copy_to(accepting)
    server = await served(emulator)
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "CreateGroup", name=HOSTILE[:50], type="1", userName=HOSTILE))
        await raw.ask(signed(emulator, "ModifyGroup", groupId=HOSTILE, name=HOSTILE))
    emulator.push(["1001"], HOSTILE)
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
            assert "<img src=x onerror=alert(1)>" in text
            controls = ["\\u0000", "\\u001b"] if tab == "copies" else ["␀", "␛"]  # JSON escapes two of them
            assert all(each in text for each in ["U+202E", "U+200B", "U+FEFF", "U+2066", "␡", *controls])
            assert not set(text) & set("\0\x1b\u202e\u200b\ufeff\u2066")
            await window.keyboard.press("Escape")
    assert alerts == []
