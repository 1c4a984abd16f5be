"""The emulator's page in a browser: what is shown is what the emulator has, and each button does what it says."""

import asyncio
import json
import subprocess
from datetime import timedelta

import pytest

from helpers.rawclient import connected, signed
from rbim import AsyncClient, GroupType
from rbim.emulator import EmulatedClock, Emulator
from rbim.emulator.faults.copies import Delay, Duplicate, Overtaken, Stale, Tamper
from rbim.emulator.faults.requests import (
    Code,
    CutShort,
    DuplicateFields,
    Fault,
    InvalidJson,
    Latency,
    ResetAfter,
    ResetBefore,
    SlowBody,
    Status,
    Throttle,
)
from rbim.emulator.server.server import serve
from rbim.operations import catalogue

playwright = pytest.importorskip("playwright.async_api", reason="needs chromium and the extra browser")
expect = playwright.expect


async def create(emulator, server, name="产品公告", **fields):
    """Create a group over HTTP and return its id."""
    async with connected(server) as raw:
        return (await raw.ask(signed(emulator, "CreateGroup", name=name, type="2", **fields))).document["groupId"]


async def invite(emulator, server, group_id, *members, confirm="0"):
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "InviteJoinGroup", groupId=group_id, members=list(members), confirm=confirm))


async def until(true):
    """Wait until something is true of the emulator."""
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


async def accepting(_headers, _body):
    """Accept each copy."""
    return 200


def rows(panel):
    return panel.locator("tbody tr")


# Requests.


async def test_a_browser_is_led_from_the_root_to_the_page(server, opened):
    window = await opened(server.url)
    assert window.page.url.startswith(f"{server.url}/_emulator/")
    await expect(window.get_by_role("heading", level=1)).to_have_text("rbim emulator")
    await expect(window.locator("#state")).to_have_text("Live")
    await expect(window.get_by_text("No request so far.")).to_be_visible()


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
    took = emulator.asgi.exchanges.of(emulator.requests.records[0]).took
    assert took is not None
    await expect(rows(panel).last.locator("td").last).to_have_text(f"{round(took * 100_000) / 100:.3g} ms")


async def test_an_answer_that_takes_long_shows_its_latency_when_it_is_there(opened, served):
    emulator = Emulator(clock=EmulatedClock())
    emulator.faults.add(Fault(effect=Latency(90)))
    server = await served(emulator)
    window = await opened(server.url)
    async with connected(server) as raw:
        await raw.send(signed(emulator, "CreateGroup", name="later", type="1"))
        row = rows(window.locator("#panel-requests")).first
        await expect(row.locator("td").last).to_have_text("…")
        await emulator.advance(90)
        await expect(row.locator("td").last).to_have_text("1 min 30 s")


async def test_a_request_opens_with_all_that_was_sent_and_answered(emulator, server, opened):
    group_id = await create(emulator, server, "一组")
    window = await opened(server.url)
    await rows(window.locator("#panel-requests")).first.get_by_role("button").click()
    dialog = window.get_by_role("dialog")
    await expect(dialog.locator("[data-part=headers]")).to_contain_text("POST /2013-12-26/Application/")
    await expect(dialog.locator("[data-part=headers]")).to_contain_text("Authorization: ", ignore_case=True)
    assert json.loads(await dialog.locator("[data-part=body]").inner_text())["name"] == "一组"
    assert json.loads(await dialog.locator("[data-part=answer-body]").inner_text())["groupId"] == group_id
    await expect(dialog.locator("[data-part=answer]")).to_contain_text("HTTP 200")
    assert emulator.credentials.app_token.reveal() not in await window.content()
    await window.button("Close").click()
    await expect(dialog).to_have_count(0)


@pytest.mark.parametrize("emulated", [False, True])
async def test_the_curl_command_of_a_request_can_be_pasted_and_works(emulated, opened, served):
    emulator = Emulator(clock=EmulatedClock() if emulated else None)
    server = await served(emulator)
    name = 'it\'s $HOME `x` "q" \\ !\n公告'
    await create(emulator, server, name)
    window = await opened(server.url)
    await rows(window.locator("#panel-requests")).first.get_by_role("button").click()
    await window.button("Copy: As a curl command").click()
    await expect(window.get_by_role("status").get_by_text("Copied")).to_be_visible()
    command = await window.evaluate("navigator.clipboard.readText()")
    token = emulator.credentials.app_token.reveal()
    assert token not in command
    variables = {"RBIM_BASE_URL": server.url, "RBIM_APP_ID": emulator.credentials.app_id, "RBIM_APP_TOKEN": token}
    ran = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", command],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        timeout=20,
        check=True,
    )
    assert json.loads(ran.stdout)["statusCode"] == "000000", ran
    assert [group.name for group in emulator.state.groups.values()] == [name, name]


async def test_the_list_is_filtered_by_text_and_by_outcome(emulator, server, opened):
    for number in range(4):
        await create(emulator, server, f"group {number}")
    async with connected(server) as raw:
        await raw.ask(signed(emulator, "QueryGroupDetail", groupId="g80000000000000"))
    window = await opened(server.url)
    panel = window.locator("#panel-requests")
    await expect(rows(panel)).to_have_count(5)
    await panel.get_by_role("searchbox").fill("GROUP 2")
    await expect(rows(panel)).to_have_count(1)
    await expect(rows(panel)).to_contain_text("group 2")
    await panel.get_by_role("searchbox").fill("")
    await panel.get_by_label("Outcome").select_option("refused")
    await expect(rows(panel)).to_have_count(1)
    await expect(rows(panel)).to_contain_text("QueryGroupDetail")
    await panel.get_by_label("Outcome").select_option("fault")
    await expect(rows(panel)).to_have_count(0)


async def test_a_paused_list_stands_still_and_counts_and_goes_on(emulator, server, opened):
    await create(emulator, server)
    window = await opened(server.url)
    panel = window.locator("#panel-requests")
    await expect(rows(panel)).to_have_count(1)
    await window.button("Pause").click()
    await create(emulator, server)
    await create(emulator, server)
    await expect(panel.get_by_text("2 new")).to_be_visible()
    await expect(rows(panel)).to_have_count(1)
    await window.button("Resume").click()
    await expect(rows(panel)).to_have_count(3)


async def test_requests_can_be_cleared_here_and_elsewhere_and_the_list_begins_anew(emulator, server, opened):
    for _ in range(3):
        await create(emulator, server)
    window = await opened(server.url)
    panel = window.locator("#panel-requests")
    await expect(rows(panel)).to_have_count(3)
    await window.show("settings")
    await window.button("Clear requests").click()
    await until(lambda: len(emulator.requests) == 0)
    await window.show("requests")
    await expect(rows(panel)).to_have_count(0)
    await create(emulator, server, "anew")
    await expect(rows(panel)).to_have_count(1)
    emulator.requests.clear()  # by the Python code that holds it
    await create(emulator, server, "once more")
    await expect(rows(panel)).to_have_count(1)
    await expect(rows(panel)).to_contain_text("once more")


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


# Groups, tasks, accounts.


async def test_a_group_shows_its_members_with_their_roles(emulator, server, opened):
    group_id = await create(emulator, server, "产品公告")
    await invite(emulator, server, group_id, "1001", "1002", confirm="1")
    window = await opened(server.url)
    panel = await window.show("groups")
    await expect(rows(panel)).to_contain_text(group_id)
    await expect(rows(panel)).to_contain_text("3 / 500")
    await rows(panel).get_by_role("button").click()
    members = window.get_by_role("dialog").get_by_role("table", name="Members: 3")
    await expect(members.locator("tbody tr")).to_have_count(3)
    assert await members.locator("tbody tr").all_inner_texts() == ["admin\tcreator", "1001\tmember", "1002\tmember"]


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


async def test_groups_are_found_by_a_part_of_their_name_or_id(emulator, server, opened):
    async with AsyncClient(base_url=server.url, credentials=emulator.credentials) as client:
        for number in range(250):
            await client.groups.create(name=f"team {number:03}", type=GroupType.TEMPORARY)
    window = await opened(server.url)
    panel = await window.show("groups")
    await expect(panel.get_by_text("200 of 250 shown")).to_be_visible()
    await panel.get_by_role("searchbox").fill("TEAM 00")
    await expect(rows(panel)).to_have_count(10)
    await panel.get_by_role("searchbox").fill("team 007")
    await expect(rows(panel)).to_have_count(1)
    await panel.get_by_role("searchbox").fill("nothing")
    await expect(panel.get_by_text("No group so far.")).to_be_visible()
    for name in ("a/b", "rest..", "50% off?#"):
        await create(emulator, server, name)
    for text, name in {"a/b": "a/b", "/": "a/b", "..": "rest..", ".": "rest..", "% off?#": "50% off?#"}.items():
        await panel.get_by_role("searchbox").fill(text)
        await expect(rows(panel)).to_have_count(1)
        await expect(rows(panel)).to_contain_text(name)


async def test_a_call_task_shows_whether_it_may_call_now(opened, served):
    emulator = Emulator(clock=EmulatedClock())
    today = (emulator.clock.now() + timedelta(hours=8)).date()
    server = await served(emulator)
    async with AsyncClient(base_url=server.url, credentials=emulator.credentials, clock=emulator.clock) as client:
        task = await client.calls.create_task(
            bot_id=1,
            task_name="回访",
            start_date=today,
            end_date=today,
            max_concurrent=3,
            min_concurrent=1,
            caller="01012345678",
        )
    window = await opened(server.url)
    panel = await window.show("tasks")
    row = rows(panel)
    for text in (task.task_id, "回访", "01012345678", f"{today} \u2013 {today}"):
        await expect(row).to_contain_text(text)
    expected = "yes" if emulator.may_call(task.task_id) else "no"
    await expect(row.locator("td").last).to_have_text(expected)
    await emulator.advance(hours=10)
    assert ("yes" if emulator.may_call(task.task_id) else "no") != expected
    await expect(row.locator("td").last).not_to_have_text(expected)


async def test_accounts_log_in_for_the_first_time_by_both_buttons(emulator, server, opened):
    emulator.never_logged_in("1008", "1009")
    window = await opened(server.url)
    panel = await window.show("accounts")
    await window.button("Log in: 1008").click()
    await until(lambda: emulator.state.has_logged_in("1008"))
    await panel.get_by_label("Account").last.fill("1009")
    await panel.locator("form").get_by_role("button").click()
    await until(lambda: emulator.state.has_logged_in("1009"))
    await panel.get_by_label("Account").last.fill("1009")
    await panel.locator("form").get_by_role("button").click()
    await expect(panel.get_by_role("alert")).to_contain_text("has logged in before")
    window.allow("404")


# Message copies.


async def test_a_target_of_copies_is_set_and_removed(emulator, server, opened):
    window = await opened(server.url)
    panel = await window.show("copies")
    await panel.get_by_label("Address of the receiver").fill("http://127.0.0.1:9/inbox")
    await panel.get_by_label("Mode").select_option("high-guarantee")
    await window.button("Copy to it").click()
    await until(lambda: emulator.copier.dispatch.destination is not None)
    destination = emulator.copier.dispatch.destination
    assert (destination.target, destination.high) == ("http://127.0.0.1:9/inbox", True)
    await expect(panel.get_by_text("http://127.0.0.1:9/inbox (high-guarantee)")).to_be_visible()
    await window.button("Stop").click()
    await until(lambda: emulator.copier.dispatch.destination is None)
    await expect(window.button("Stop")).to_be_hidden()
    await panel.get_by_label("Address of the receiver").fill("http://receiver.test/")
    await window.button("Copy to it").click()
    await expect(panel.get_by_role("alert").first).to_contain_text("is not of this machine")
    window.allow("409")


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


async def test_without_a_target_the_page_says_that_a_message_is_not_copied(emulator, server, opened):
    window = await opened(server.url)
    await window.show("copies")
    await window.button("Say it").click()
    await expect(window.get_by_role("status").get_by_text("there is no target")).to_be_visible()
    await window.show("settings")
    emulator.copy_to(accepting)
    emulator.say("1001", "1002", "hello")
    await until(lambda: len(emulator.deliveries) == 1)
    await window.button("Clear deliveries").click()
    await until(lambda: len(emulator.deliveries) == 0)


# Faults and outages.

READY = {
    "429, retry after 2 s": Status(429, retry_after=2),
    "503": Status(503),
    "at most 5 per second": Throttle(5, retry_after=1),
    "answer after 2 s": Latency(2),
    "slow body": SlowBody(2),
    "reset before the effect": ResetBefore(),
    "reset after the effect": ResetAfter(),
    "answer cut short": CutShort(0.5),
    "answer not JSON": InvalidJson(),
    "fields twice": DuplicateFields(),
    "code 999999": Code("999999"),
}
READY_COPIES = {
    "2 s later": Delay(2),
    "delivered twice": Duplicate(1),
    "overtaken by the next": Overtaken(1),
    "one byte changed": Tamper(),
    "signed an hour ago": Stale(3600),
}


async def test_every_ready_made_fault_is_what_its_button_says(emulator, server, opened):
    window = await opened(server.url)
    panel = await window.show("faults")
    for card, ready, plan in (
        ("#card-faults", READY, emulator.faults),
        ("#card-copy-faults", READY_COPIES, emulator.copy_faults),
    ):
        inside = panel.locator(card)
        buttons = inside.get_by_role("group", name="Ready-made faults").get_by_role("button")
        assert await buttons.all_inner_texts() == list(ready)
        for number, (name, effect) in enumerate(ready.items(), 1):
            await window.button(name, within=inside).click()
            await until(lambda plan=plan, number=number: len(list(plan)) == number)
            assert list(plan)[-1].effect == effect
            assert list(plan)[-1].times == 1
        await window.button("Remove all", within=inside).click()
        await until(lambda plan=plan: list(plan) == [])


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


async def test_a_fault_of_ones_own_is_added_or_refused_with_the_reason(emulator, server, opened):
    window = await opened(server.url)
    card = (await window.show("faults")).locator("#card-faults")
    await card.get_by_text("A fault of your own, as JSON").first.click()
    await card.get_by_role("textbox").fill('{"effect": {"kind": "nothing"}}')
    await window.button("Add", within=card).click()
    await expect(card.get_by_role("alert")).to_contain_text("kind: 'nothing' is not one of latency")
    window.allow("400")
    await card.get_by_role("textbox").fill('{"effect": {"kind": "latency", "seconds": 0.5}, "nth": [3]}')
    await window.button("Add", within=card).click()
    await until(lambda: list(emulator.faults) == [Fault(effect=Latency(0.5), nth=(3,))])
    await expect(card.get_by_role("alert")).to_be_hidden()


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


async def test_the_page_goes_on_with_another_emulator_at_the_same_port(opened):
    first, second = Emulator(), Emulator()
    async with serve(first) as server:
        await create(first, server, "before")
        window = await opened(server.url)
        window.allow("ERR_")
        await expect(rows(window.locator("#panel-requests"))).to_contain_text("before")
        port = server.port
    await expect(window.locator("#state")).to_have_text("Connection lost: trying again")
    async with serve(second, port=port) as server:
        await create(second, server, "after")
        await expect(rows(window.locator("#panel-requests"))).to_have_count(1)
        await expect(rows(window.locator("#panel-requests"))).to_contain_text("after")


# Clock and state.


async def test_an_emulated_clock_is_advanced_by_every_button(opened, served):
    emulator = Emulator(clock=EmulatedClock())
    server = await served(emulator)
    window = await opened(server.url)
    panel = await window.show("settings")
    elapsed = 0
    for name, seconds in {"+ 1 second": 1, "+ 1 minute": 60, "+ 1 hour": 3600, "+ 1 day": 86400}.items():
        await window.button(name).click()
        elapsed += seconds
        await until(lambda elapsed=elapsed: emulator.clock.elapsed == elapsed)
    await panel.get_by_label("Seconds").fill("0.5")
    await window.button("Advance").click()
    await until(lambda: emulator.clock.elapsed == elapsed + 0.5)
    shanghai = emulator.clock.now() + timedelta(hours=8)
    await expect(window.locator("#clock")).to_contain_text(f"{shanghai:%H:%M:%S}")


async def test_a_system_clock_has_no_buttons(server, opened):
    window = await opened(server.url)
    panel = await window.show("settings")
    await expect(panel.get_by_text("It cannot be advanced.")).to_be_visible()
    await expect(window.button("Advance")).to_be_hidden()


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


async def test_a_reset_asks_first(emulator, server, opened):
    await create(emulator, server)
    window = await opened(server.url)
    await window.show("settings")
    await window.button("Reset everything…").click()
    await window.button("Cancel", within=window.get_by_role("dialog")).first.click()
    await expect(window.get_by_role("dialog")).to_have_count(0)
    assert len(emulator.state.groups) == 1
    await window.button("Reset everything…").click()
    await window.button("Reset everything").click()
    await until(lambda: len(emulator.state.groups) == 0)
    assert len(emulator.requests) == 0


# Each button.

BUTTONS = {
    "requests": {"Pause", "Copy the command"},
    "groups": {"一组"},
    "tasks": set(),
    "accounts": {"Log in", "Log in: 1009"},
    "copies": {"Copy to it", "Stop", "Say", "Push", "Notify", "Say it", "Message 1", "Send again: 1"},
    "faults": {*READY, *READY_COPIES, "Begin", "End the outage", "Remove: 1", "Remove all"},
    "settings": {
        *("+ 1 second", "+ 1 minute", "+ 1 hour", "+ 1 day", "Advance"),
        *("Download", "Upload…", "Clear requests", "Clear deliveries", "Reset everything…"),
    },
}


async def test_each_button_of_each_view_has_a_name_and_is_pressed_in_a_test_of_this_file(opened, served):
    """A new button is not in the table above: it needs a test that presses it."""
    emulator = Emulator(clock=EmulatedClock())
    emulator.never_logged_in("1009")
    emulator.copy_to(accepting)
    emulator.faults.add(Fault(effect=Latency(0)))
    server = await served(emulator)
    emulator.say("1001", "1002", "hello")
    await until(lambda: len(emulator.deliveries) == 1)
    window = await opened(server.url)
    for tab, named in BUTTONS.items():
        panel = await window.show(tab)
        if tab == "groups":
            await create(emulator, server, "一组")
            await expect(rows(panel)).to_have_count(1)
        if tab in {"accounts", "copies"}:
            await expect(rows(panel).filter(has=window.get_by_role("button"))).to_have_count(1)
        if tab == "faults":
            await expect(rows(panel)).to_have_count(1)
        if tab == "settings":
            await expect(window.button("Advance")).to_be_visible()
        assert await window.names_of_buttons(panel) == named, tab
