"""The page of a journal: its state, the accounts that it finds, the files that it writes, what limits a job."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import tempfile
from pathlib import Path

import anyio
import httpx
import pytest
from attrs import evolve

from helpers.job_commands import STRANGER, made_group, rows_of, write_csv
from rbim.bulk.report.reading import read_report
from rbim.cli.exit_codes import JobExit
from rbim.emulator.faults import Code, Fault
from rbim.page.journal import _choice_of, accounts_of, journal_page, reason_of_pace, written

JOURNAL = Path("m.csv.invite.journal")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def finished(platform, cli, group):
    """A finished job with rows of every kind."""
    bad = made_group(platform)
    platform.faults.add(
        Fault(effect=Code("980015", "content is rejected"), operation="InviteJoinGroup", match={"group_id": bad})
    )
    others = [(group, STRANGER), (bad, "b1"), ("", "nobody"), (group, "u1"), (group, HOSTILE)]
    write_csv("m.csv", [*rows_of(group, count=250), *others])
    assert cli("invite", "m.csv", "--max-failures", "none")[0] == JobExit.INCOMPLETE
    return JOURNAL


def asked(page, *paths):
    """Return the answers of a page, without a server."""

    async def ask():
        transport, token = httpx.ASGITransport(page), {"authorization": f"Bearer {page.token}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=token) as client:
            return [await client.get(path) for path in paths]

    return anyio.run(ask)


def test_accounts_are_found_by_outcome_reason_and_name_and_downloaded(cli, group, finished):
    whole = list(csv.DictReader(io.StringIO(cli("job", "report", str(finished), "--csv", "-")[1])))
    refusal = next(row["reason"] for row in whole if row["state"] == "failed")
    choices = [
        ({"state": state}, lambda row, state=state: row["state"] == state) for state in {row["state"] for row in whole}
    ]
    for choice, accepts in [
        *choices,
        ({}, lambda _: True),
        ({"state": "failed", "reason": refusal}, lambda row: row["state"] == "failed"),
        ({"code": "980015"}, lambda row: row["state"] == "failed"),
        ({"text": "U2"}, lambda row: "u2" in row["account"]),
        ({"text": "onerror"}, lambda row: row["account"] == HOSTILE),
        ({"text": "%"}, lambda _: False),
        ({"text": group, "state": "refused"}, lambda row: row["group"] == group and row["state"] == "refused"),
    ]:
        shown, after, more = [], 0, True
        while more:
            found = accounts_of(finished, _choice_of(choice), after)
            shown += [(each["row"], each["account"], each["state"], each["reason"]) for each in found["rows"]]
            after, more = (shown[-1][0], found["more"]) if shown else (0, False)
        rows = [row for row in whole if accepts(row)]
        assert shown == [(int(row["row"]), row["account"], row["state"], row["reason"]) for row in rows], choice
        file, ending = written(finished, _choice_of(choice))
        with file:
            file.seek(0)
            downloaded = list(csv.DictReader(io.StringIO(file.read().decode("utf-8-sig"))))
        assert ending == ".csv"
        assert downloaded == rows, choice


def test_the_state_of_a_finished_job_and_the_download_of_what_was_not_done(cli, finished):
    page = journal_page(finished, {"retry": "rbim job retry J"})
    first, again, download, wrong = asked(page, "/state", "/state", "/download?not_done=", "/accounts?after=x")
    state = first.json()
    assert (state["running"], state["why"], state["commands"]) == (False, "complete", {"retry": "rbim job retry J"})
    report = json.loads(cli("job", "report", str(finished), "--json")[1])
    assert state["report"] == {"done_word": "invited", **report}
    assert again.content == first.content
    assert download.text == cli("job", "report", str(finished), "--not-done", "-")[1].replace("\r\n", "\n").replace(
        "\n", "\r\n"
    )
    assert download.headers["content-disposition"].endswith("m.csv.invite.not-done.csv")
    assert (wrong.status_code, wrong.json()) == (400, {"error": "after: use a whole number"})


def test_a_journal_that_is_gone_is_told_and_comes_back(finished):
    page = journal_page(finished, {})
    moved = finished.with_name("elsewhere")
    assert asked(page, "/state")[0].status_code == 200
    finished.rename(moved)
    page = journal_page(finished, {})
    (answer,) = asked(page, "/state")
    assert (answer.status_code, "there is no journal" in answer.json()["error"]) == (400, True)
    moved.rename(finished)
    assert asked(page, "/state")[0].status_code == 200


@pytest.mark.usefixtures("platform")
def test_of_an_input_that_was_not_read_completely_nothing_can_be_downloaded(cli):
    Path("bad.csv").write_text("group,account\ng1,\n")
    assert cli("invite", "bad.csv", "--max-bad", "0")[0] == JobExit.USAGE
    page = journal_page(Path("bad.csv.invite.journal").absolute(), {})
    for download in asked(page, "/download?not_done=", "/download?state=refused"):
        assert (download.status_code, "was not read completely" in download.json()["error"]) == (400, True)


def test_erased_accounts_cannot_be_downloaded(cli, finished):
    assert cli("job", "forget", str(finished), "--yes")[0] == 0
    state, download = asked(journal_page(finished, {}), "/state", "/download?state=refused")
    assert state.json()["report"]["job"]["erased"]
    assert (download.status_code, "accounts were erased" in download.json()["error"]) == (400, True)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes are POSIX's")
def test_the_file_of_a_download_has_no_name_and_no_reader(finished, tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = os.umask(0)
    try:
        with written(finished, {})[0] as file:
            found = os.fstat(file.fileno())
            assert (found.st_nlink, stat.S_IMODE(found.st_mode), list(folder.iterdir())) == (0, 0o600, [])
            assert file.tell() > 1000
    finally:
        os.umask(before)


RATE = {"limit": 600, "per": 60, "each_group": False}
EACH = {"limit": 1, "per": 1, "each_group": True}


def test_the_page_says_what_limits_the_job(finished):
    report = read_report(finished, running=True)
    usual = {"requests": 5.0, "in_flight": 3.0, "concurrency": 10.0, "rate": None, "throttled": 0}
    for changed, throttled, rates, expected in [
        ({}, 0, [], "full"),
        ({"in_flight": 9.0}, 0, [], "concurrency"),
        ({"in_flight": 8.0}, 0, [], "full"),
        ({"requests": 9.0}, 0, [RATE], "rate"),
        ({"requests": 8.9}, 0, [RATE], "full"),
        ({"rate": 5.5, "in_flight": 10.0}, 0, [], "begins"),
        ({"rate": 5.5, "in_flight": 10.0}, 1, [], "throttled"),
        ({"rate": 7.0, "throttled": 1}, 1, [], "throttled"),
        ({"rate": 7.0}, 1, [], "full"),
        ({}, 0, [EACH], "rate of groups"),
    ]:
        now = evolve(
            report,
            accounts=evolve(report.accounts, not_sent=10),
            requests=evolve(report.requests, throttled=throttled),
            over_time=(evolve(report.over_time[-1], **usual | changed),),
        )
        assert (changed, reason_of_pace(now, {"rates": rates})) == (changed, expected)
    assert reason_of_pace(evolve(report, state="loading"), {"rates": []}) == "loading"
    assert reason_of_pace(report, {"rates": []}) == "ending"
