"""``rbim callback serve --page``: deliveries, dead letters and quarantine in a browser, as a program asks for them."""

import json
import sys
from datetime import UTC, datetime

import anyio
import pytest

from helpers.callback_process import MINE, TOKEN, counts, event
from helpers.page_callbacks import LOST, WRONG, filled, serving_page
from rbim.callbacks.signature import sign
from rbim.cli.callback.page import MOST_OF_BODY
from rbim.cli.exit_codes import Exit

COUNTERS = ("accepted", "refused", "unavailable", "gone")


# ---------------------------------------------------------------- deliveries


def test_deliveries_appear_with_their_answers_and_how_they_were_handled(tmp_path):
    with serving_page(tmp_path / "events.db", "--print") as (process, page), page.events() as events:
        assert process.post(event(msgId="m1"))[0] == 200
        assert process.line()["msgId"] == "m1"
        assert process.post(event(msgId="m1", resendFlag="1"))[0] == 200
        assert process.post(event(msgId="m2"), {"CheckSum": "0" * 32, "MD5": "0" * 32, "CurTime": "1700000000000"})[0] == 401
        assert process.post(b"[1]")[0] == 200
        by_number, changes, levels = {}, {}, {}
        for each in events:
            levels = each.get("levels", levels)
            by_number |= {item["number"]: item for item in each["streams"].get("deliveries", {"items": []})["items"]}
            for change in each["streams"].get("changes", {"items": []})["items"]:
                changes[change["number"]] = change["state"]
            if len(by_number) == 4 and levels["counters"]["handled"] and (levels.get("counts") or {}).get("quarantined"):
                break
        code, out, _ = process.stop()

    shown = [(each["status"], each["type"], each["conversation"], each["resent"]) for each in by_number.values()]
    assert shown == [
        (200, "TEXT", "team/g1", False),
        (200, "TEXT", "team/g1", True),
        (401, "", "", False),
        (200, "", "", False),
    ]
    assert [by_number[number]["state"] or changes[number] for number in (1, 2)] == ["handled"] * 2
    assert by_number[3]["reason"] == "checksum_mismatch"
    assert by_number[4]["state"] == "quarantine"
    counters = levels["counters"]
    assert counters["deliveries"] == 4 == sum(counters[name] for name in COUNTERS)
    assert levels["counts"] == {"waiting": 0, "done": 1, "dead": 0, "quarantined": 1}
    assert (levels["handling"], levels["kind"], levels["mode"]) == (["print"], "file", "normal")
    assert levels["url"] == process.url
    assert (code, out) == (Exit.DONE, "")


def test_a_refused_delivery_is_explained_without_a_secret(tmp_path):
    body = event(msgId="m1")
    swapped = signed(body)
    swapped["MD5"], swapped["CheckSum"] = swapped["CheckSum"], swapped["MD5"]
    with serving_page(tmp_path / "events.db") as (process, page):
        assert process.post(body, swapped)[0] == 401
        assert process.post(b"x" * (MOST_OF_BODY + 1), swapped)[0] == 401
        answer = page.get("/refused", number=1)
        assert answer.json()["finding"].startswith("MD5 and CheckSum are swapped: each header has the value of the other.")
        assert TOKEN not in answer.text
        assert page.get("/refused", number=2).json() == page.get("/refused", number=99).json() == {"finding": None}
        assert process.stop()[0] == Exit.DONE


# ---------------------------------------------------------------- dead letters and quarantine


def signed(body, **changes):
    return sign(body, credentials=MINE, now=datetime.now(UTC)) | changes


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "events.db"
    anyio.run(filled, path, [LOST, WRONG, LOST], 2)
    return path


def test_a_dead_letter_is_handled_again(letters):
    with serving_page(letters, "--print") as (process, page):
        first = page.get("/letters", kind="dead").json()["letters"][0]
        assert page.post("/requeue", kind="dead", number=first["number"]).json() == {"events": 1, "left": []}
        assert process.line()["msgId"] == "mdead0"
        assert page.post("/requeue", kind="dead", number=first["number"]).json() == {"error": "it is not there any more"}
        assert process.stop()[0] == Exit.DONE
    assert (counts(letters).dead, counts(letters).done) == (2, 1)


NUMBER = "number: must be a whole number, 0 to 9223372036854775807, not "
REASON = "reason: must be a text, not "
GONE = "it is not there any more"
WRONG_COMMANDS = [
    ({}, "give a number or a reason"),
    ({"kind": "done", "number": 1}, "kind: use dead or quarantine"),
    ({"number": True}, NUMBER + "True"),
    ({"number": "x" * 1000}, NUMBER + "'" + "x" * 99),
    ({"number": 2**63}, NUMBER + "9223372036854775808"),
    ({"reason": [LOST]}, REASON + f"[{LOST!r}]"),
    ({"number": 77}, GONE),
]


def test_a_wrong_command_is_refused_with_its_reason_and_changes_nothing(letters):
    before = counts(letters)
    with serving_page(letters) as (process, page):
        for document, wrong in WRONG_COMMANDS:
            answer = page.post("/requeue", **document)
            assert (answer.status_code, answer.json()) == (400, {"error": wrong}), document
        assert page.client.post("/requeue", json={"kind": "dead", "reason": LOST}).status_code == 404
        answer = page.client.post("/requeue", content=json.dumps({"reason": LOST}), headers=page.authorization)
        assert answer.status_code == 415
        assert process.stop()[0] == Exit.DONE
    assert counts(letters) == before


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM is sent in another way")
def test_the_address_goes_to_standard_error_and_the_token_nowhere_else(tmp_path):
    with serving_page(tmp_path / "events.db") as (process, page):
        assert page.get("/reasons", kind="dead").status_code == 200
        assert page.client.get(f"/reasons?token={page.token}").status_code == 404
        _, out, err = process.stop()
    assert page.token not in out + err
