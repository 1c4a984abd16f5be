"""The emulator's page in a browser: what is shown is what the emulator has, and each button does what it says."""

import asyncio
import json
from datetime import UTC, datetime

import pytest

from helpers.pages import blocks_of
from helpers.rawclient import connected, signed
from helpers.serving import variables_of
from helpers_ci.recipes import serving
from rbim.emulator import Emulator
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.faults import Fault, ResetAfter, Status
from rbim.operations import catalogue

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra ci")
expect = playwright.expect


async def create(emulator, server, name="产品公告", **fields):
    async with connected(server) as raw:
        return (await raw.ask(signed(emulator, "CreateGroup", name=name, type="2", **fields))).document["groupId"]


async def invite(emulator, server, group_id, *members, confirm="0"):
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "InviteJoinGroup", groupId=group_id, members=list(members), confirm=confirm))


async def until(true):
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


def rows(panel):
    return panel.locator("tbody tr")


async def test_requests_appear_as_they_come_with_operation_account_outcome_and_latency(emulator, server, opened):
    window = await opened(server.url)
    await create(emulator, server)
    panel = window.locator("#panel-requests")
    row = rows(panel).first
    await expect(row).to_contain_text("CreateGroup")
    await expect(row).to_contain_text("admin")
    await expect(row).to_contain_text("name 产品公告")
    await expect(row).to_contain_text("done")
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "QueryGroupDetail", groupId="g80000000000000"))
        emulator.faults.add(Fault(effect=Status(429, retry_after=2), times=1))
        await raw.ask(signed(emulator, "SearchPublicGroups"))
    await expect(rows(panel)).to_have_count(3)
    await expect(rows(panel).nth(1)).to_contain_text("900404")
    await expect(rows(panel).first).to_contain_text("HTTP 429")
    await expect(rows(panel).first).to_contain_text("retry_after")
    await expect(window.locator("#total")).to_have_text("3")
    took = emulator.asgi.exchange_of(emulator.requests.records[0]).took
    assert took is not None
    await expect(rows(panel).last.locator("td").last).to_have_text(f"{round(took * 100_000) / 100:.3g} ms")


async def test_a_window_that_was_hidden_resumes_without_a_gap(emulator, server, opened):
    window = await opened(server.url)
    await create(emulator, server, "seen")
    panel = window.locator("#panel-requests")
    await expect(rows(panel)).to_have_count(1)
    hide = (
        "hidden => { Object.defineProperty(document, 'hidden', {value: Boolean(hidden), configurable: true});"
        " document.dispatchEvent(new Event('visibilitychange')); }"
    )
    await window.evaluate(hide, 1)
    await expect(window.locator("#state")).to_have_text("Paused while hidden")
    for number in range(5):
        await create(emulator, server, f"hidden {number}")
    await window.evaluate(hide, 0)
    await expect(window.locator("#state")).to_have_text("Live")
    await expect(rows(panel)).to_have_count(6)
    await expect(rows(panel).first).to_contain_text("hidden 4")
    await expect(rows(panel).last).to_contain_text("seen")


async def test_times_are_those_of_an_emulator_that_came_between_two_questions(server, opened, served):
    window = await opened(server.url)
    await expect(window.locator("#state")).to_have_text("Live")
    other = Emulator(clock=EmulatedClock(datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)))
    successor = await served(other)
    await create(other, successor)

    async def answered_by_the_successor(route):
        path = route.request.url.removeprefix(server.url)
        await route.fulfill(response=await route.fetch(url=successor.url + path))

    await window.route("**/live/*", answered_by_the_successor)
    row = rows(window.locator("#panel-requests")).first
    await expect(row).to_contain_text("CreateGroup")
    of_clock = await window.evaluate("new Date('2026-03-04T05:06:07Z').toLocaleTimeString('en-GB')")
    await expect(row.locator("td").nth(1)).to_have_text(of_clock)
    await window.unroute_all(behavior="wait")


async def test_invitations_and_requests_to_join_are_decided(emulator, server, opened):
    group_id = await create(emulator, server, permission="1")
    await invite(emulator, server, group_id, "1001", "1002")
    async with connected(server) as raw:
        for account in ("1003", "1004"):
            await raw.ask(signed(emulator, "JoinGroup", groupId=group_id, userName=account))
    group = emulator.state.groups[group_id]
    assert (list(group.invited), list(group.applied)) == (["1001", "1002"], ["1003", "1004"])
    window = await opened(server.url)
    panel = await window.show("groups")
    await rows(panel).get_by_role("button").click()
    for name in ("Confirm: 1001", "Decline: 1002", "Approve: 1003", "Reject: 1004"):
        await window.button(name).click()
        await expect(window.button(name)).to_have_count(0)
    assert list(group.members) == ["admin", "1001", "1003"]
    assert (list(group.invited), list(group.applied)) == ([], [])


async def test_messages_are_said_pushed_and_notified_and_their_deliveries_shown_and_repeated(emulator, server, opened):
    received = []

    async def receiver(_headers, body):
        received.append(json.loads(body))
        return 503 if len(received) == 1 else 200

    emulator.copy_to(receiver)
    group_id = await create(emulator, server)
    window = await opened(server.url)
    panel = await window.show("copies")
    card = panel.locator(".card").nth(1)
    await card.get_by_label("Text").first.fill("say this")
    await window.button("Say it").click()
    await until(lambda: len(received) == 1)
    await window.button("Push", within=card).click()
    await card.get_by_label("To accounts or a group").fill("1001, 1002")
    await card.get_by_label("Text").nth(1).fill("push this")
    await window.button("Push it").click()
    await until(lambda: len(received) == 2)
    await window.button("Notify", within=card).click()
    await card.get_by_label("Group", exact=True).fill(group_id)
    await card.get_by_label("Notification").select_option("TEAM_ROLE_UPDATE")
    await card.get_by_label("Accounts that it concerns").fill("1001")
    await window.button("Notify the group").click()
    await until(lambda: len(received) == 3)
    assert [each["convType"] for each in received] == ["PERSON", "CUSTOM_PERSON", "NOTIFY_TEAM"]
    assert [each.get("body") for each in received[:2]] == ["say this", "push this"]
    assert (received[2]["msgType"], len(received[1]["tMembers"])) == ("TEAM_ROLE_UPDATE", 2)

    await expect(rows(panel)).to_have_count(3)
    await expect(rows(panel).last).to_contain_text("attempt 1: HTTP 503")
    await window.button("Send again: 1").click()
    await until(lambda: len(received) == 4)
    assert (received[3]["msgId"], received[3]["resendFlag"]) == (received[0]["msgId"], "1")
    await expect(rows(panel).last).to_contain_text("attempt 2: HTTP 200")
    await rows(panel).last.get_by_role("button").first.click()
    dialog = window.get_by_role("dialog")
    await expect(dialog.locator("tbody tr")).to_have_count(2)
    await expect(dialog.locator("pre").last).to_contain_text("say this")
    await window.button("Send again", within=dialog).click()
    await until(lambda: len(received) == 5)


async def test_an_application_receives_what_is_said_and_its_answer_is_shown(emulator, server, opened, tmp_path):
    """The cookbook's application, which invites who says 加入 to a person; everything else is done on the page."""
    title = "How do I make calls and receive callbacks in one FastAPI application?"
    (recipe,) = [block.text for block in blocks_of("docs/cookbook.md", "python") if block.title == title]
    variables = variables_of(emulator, server.url) | {"VIP_GROUP": await create(emulator, server, "VIP")}
    with serving(recipe, tmp_path, variables) as (port, out):
        window = await opened(server.url)
        panel = await window.show("copies")
        target, card = panel.locator(".card").first, panel.locator(".card").nth(1)
        await target.get_by_label("Address of the receiver").fill(f"http://127.0.0.1:{port}/copies")
        await window.button("Copy to it").click()
        await expect(target.locator(".pill")).to_have_text("on")
        await card.get_by_label("Text").first.fill("加入")
        await window.button("Say it").click()
        for message in ("加入", "TEAM_JOIN"):
            await expect(rows(panel).filter(has_text=message)).to_contain_text("attempt 1: HTTP 200")
        assert await asyncio.to_thread(out.readline) == "invited: 1001\n"
        request = rows(await window.show("requests")).first
        for text in ("InviteJoinGroup", "1001", "done"):
            await expect(request).to_contain_text(text)
        await expect(rows(await window.show("groups"))).to_contain_text("2 / ")


async def test_a_fault_is_armed_for_an_operation_counted_and_removed(emulator, server, opened):
    window = await opened(server.url)
    card = (await window.show("faults")).locator("#card-faults")
    options = await card.get_by_label("Operation").locator("option").all_inner_texts()
    assert set(options[1:]) == {entry.operation.spec.name for entry in catalogue.entries()}
    await card.get_by_label("How often").select_option("always")
    await card.get_by_label("Operation").select_option("CreateGroup")
    await window.button("reset after the effect").click()
    await until(lambda: len(list(emulator.faults)) == 1)
    await card.get_by_label("How often").select_option("every tenth")
    await window.button("503").click()
    await until(lambda: len(list(emulator.faults)) == 2)
    assert list(emulator.faults) == [
        Fault(effect=ResetAfter(), operation="CreateGroup"),
        Fault(effect=Status(503), operation="CreateGroup", every=10),
    ]
    async with connected(server) as raw:
        await raw.send(signed(emulator, "CreateGroup", name="reset", type="1"))
        await until(lambda: len(emulator.state.groups) == 1)
    await expect(card.locator("tbody tr").first).to_contain_text("1 of 1")
    await expect(card.locator("tbody tr").last).to_contain_text("0 of 1")
    await window.button("Remove: 1").click()
    await until(lambda: len(list(emulator.faults)) == 1)
    assert next(iter(emulator.faults)).effect == Status(503)
    await expect(card.locator("tbody tr").first).to_contain_text("0 of 1")  # it goes on counting
    await window.show("requests")
    await expect(rows(window.locator("#panel-requests")).first).to_contain_text("reset_after")


async def test_during_an_outage_the_control_port_has_the_page_and_ends_it(server, opened):
    window = await opened(server.url)
    window.allow("ERR_")  # it tries again and again
    panel = await window.show("faults")
    await panel.get_by_label("Seconds").fill("3600")
    await window.button("Begin").click()
    await until(lambda: not server.listening)
    await expect(window.locator("#state")).to_have_text("Connection lost: trying again")
    await expect(window.locator(".banner code")).to_have_text(server.control_url)
    await window.button("Copy the address of the control port").click()
    assert await window.evaluate("navigator.clipboard.readText()") == server.control_url

    control = await opened(server.control_url)
    await expect(control.get_by_text("Outage: the platform's port refuses connections.")).to_be_visible()
    await control.button("End the outage", within=control.locator(".banner")).click()
    await until(lambda: server.listening)
    await expect(control.locator(".banner")).to_be_hidden()
    await expect(window.locator("#state")).to_have_text("Live")
    await expect(window.locator(".banner")).to_be_hidden()


async def test_the_state_is_downloaded_and_loaded_again(emulator, server, opened, tmp_path):
    await create(emulator, server, "kept")
    window = await opened(server.url)
    await window.show("settings")
    async with window.expect_download() as waiting:
        await window.button("Download").click()
    file = tmp_path / (await waiting.value).suggested_filename
    await (await waiting.value).save_as(file)
    assert json.loads(file.read_text(encoding="utf-8")) == emulator.export()
    await create(emulator, server, "dropped")
    async with window.expect_file_chooser() as choosing:
        await window.button("Upload…").click()
    await (await choosing.value).set_files(file)
    await until(lambda: [group.name for group in emulator.state.groups.values()] == ["kept"])
    await expect(window.get_by_role("status").get_by_text("Loaded: 1 groups, 0 tasks.")).to_be_visible()
    file.write_text("not JSON", encoding="utf-8")
    async with window.expect_file_chooser() as choosing:
        await window.button("Upload…").click()
    await (await choosing.value).set_files(file)
    await expect(window.get_by_role("alert").get_by_text("the body is not JSON")).to_be_visible()
    window.allow("400")
