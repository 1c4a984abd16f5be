"""What follows a job: files of rows by result, a retry of a part, and the list of all jobs."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console

from helpers.job_commands import STRANGER, invitations, made_group, rows_in, rows_of, write_csv
from rbim.bulk.journal.schema import JOURNAL
from rbim.cli.exit_codes import JobExit
from rbim.emulator.faults import Code, Fault

# ---------------------------------------------------------------- files by result


def test_done_refused_and_not_done_rows_are_written(platform, cli, group):
    platform.faults.add(Fault(effect=Code("999999"), operation="InviteJoinGroup", nth=(2,)))
    write_csv("m.csv", [*rows_of(group, count=4), (group, STRANGER), (group, "=1+1")])
    flags = ["--chunk", "2", "--concurrency", "1", "--max-failures", "none", "--not-done", "rest.csv", "--allow-damaged"]

    code, _, _ = cli("invite", "m.csv", *flags)

    assert code == JobExit.INCOMPLETE
    assert cli("job", "report", "m.csv.invite.journal", "--done", "done.csv", "--refused", "refused.csv")[0] == JobExit.DONE
    found = {
        name: [(row["account"], row["state"]) for row in rows_in(f"{name}.csv")] for name in ("done", "refused", "rest")
    }
    assert found["done"] == [("u0", "invited"), ("u1", "invited"), ("=1+1", "invited")]  # accounts stay exact
    assert found["refused"] == [(STRANGER, "refused")]
    assert found["rest"] == [("u2", "failed"), ("u3", "failed"), (STRANGER, "refused")]
    assert rows_in("refused.csv")[0]["reason"]
    for name in ("done", "refused", "rest"):
        code, out, _ = cli("job", "report", "m.csv.invite.journal", f"--{name.replace('rest', 'not-done')}", "-")
        assert (code, out.encode()) == (JobExit.DONE, Path(f"{name}.csv").read_bytes())
    assert cli("invite", "done.csv", "--allow-damaged", "--json")[0] == JobExit.DONE  # each of them is an input


# ---------------------------------------------------------------- a retry of a part


@pytest.fixture
def mixed(platform, cli, group):
    """A job in two groups: in each, two failed with one code, two with another, and one was refused."""
    other = made_group(platform)
    faults = [
        Fault(effect=Code(code), operation="InviteJoinGroup", nth=nth)
        for code, nth in (("330107", (1, 2)), ("330105", (3, 4)))
    ]
    platform.faults.add(*faults)
    write_csv(
        "m.csv",
        [*rows_of(group, other, count=2), *rows_of(group, other, count=2, prefix="v"), (group, STRANGER), (other, STRANGER)],
    )
    cli("invite", "m.csv", "--chunk", "2", "--concurrency", "1", "--max-failures", "none")
    platform.faults.clear()
    platform.requests.clear()
    return group, other


def sent(platform):
    return sorted((op.group_id, member) for op in invitations(platform) for member in op.members)


def by_code(code):
    return sorted((row["group"], row["account"]) for row in rows_in("all.csv") if row["code"] == code)


def test_a_retry_takes_accounts_by_reason_and_group(platform, cli, mixed):
    group, other = mixed
    cli("job", "report", "m.csv.invite.journal", "--csv", "all.csv")
    wanted, rest = by_code("330107"), by_code("330105")
    assert (len(wanted), len(rest)) == (4, 4)

    assert cli("job", "retry", "m.csv.invite.journal", "--reason", "330107", "--group", group)[0] == JobExit.INCOMPLETE
    assert sent(platform) == [row for row in wanted if row[0] == group]

    platform.requests.clear()
    text = next(row["reason"] for row in rows_in("all.csv") if row["code"] == "330105")
    cli(
        "job",
        "retry",
        "m.csv.invite.journal",
        "--reason",
        text,
        "--reason",
        "no such reason",
        "--group",
        group,
        "--group",
        other,
    )
    assert sent(platform) == rest


def test_refused_accounts_are_sent_again_only_on_request(platform, cli, mixed):
    group, other = mixed
    assert cli("job", "retry", "m.csv.invite.journal", "--only", "refused", "--reason", "")[0] == JobExit.USAGE
    assert cli("job", "retry", "m.csv.invite.journal", "--only", "refused", "--group", group)[0] == JobExit.INCOMPLETE
    assert sent(platform) == [(group, STRANGER)]
    platform.requests.clear()
    cli("job", "retry", "m.csv.invite.journal", "--group", group)
    assert STRANGER not in {account for _, account in sent(platform)}
    platform.requests.clear()
    cli("job", "retry", "m.csv.invite.journal", "--refused", "--group", other)
    assert (other, STRANGER) in sent(platform)
    assert len(sent(platform)) == 5


def test_a_retry_without_accounts_in_its_states_is_an_error_for_every_selection(platform, cli, group):
    write_csv("m.csv", [*rows_of(group, count=2), (group, STRANGER)])
    cli("invite", "m.csv")
    platform.requests.clear()
    for flags, said in [
        ([], "none is failed or unknown"),
        (["--only", "failed"], "none is failed"),
        (["--only", "unknown", "--reason", "330107"], "none is unknown"),
        (["--group", "g"], "none is failed or unknown"),
    ]:
        code, out, err = cli("job", "retry", "m.csv.invite.journal", *flags)
        assert (code, out, f": no account to retry: {said}\n" in err) == (JobExit.USAGE, "", True)
        assert "1 refused (--only refused)" in err
    assert not sent(platform)
    assert len(json.loads(cli("job", "report", "m.csv.invite.journal", "--json")[1])["runs"]) == 1


# ---------------------------------------------------------------- the list of jobs


def test_jobs_are_listed_by_their_content_with_state_and_counts(platform, cli, group):
    Path("jobs").mkdir()
    write_csv("m.csv", [*rows_of(group, count=3), (group, STRANGER)])
    write_csv("n.csv", rows_of(group, count=2))
    cli("invite", "m.csv", "--journal", "jobs/first.db")
    platform.faults.add(Fault(effect=Code("999999"), operation="InviteJoinGroup"))
    cli("invite", "n.csv", "--chunk", "1", "--concurrency", "1", "--max-failures", "0", "--journal", "jobs/second")
    Path("jobs/text.journal").write_text("no journal\n" * 500)
    Path("jobs/empty.journal").touch()
    Path("jobs/folder.journal").mkdir()
    with closing(sqlite3.connect("jobs/other.journal")) as database:
        database.execute("CREATE TABLE job (x)")
    before = sorted(Path("jobs").iterdir())

    code, out, err = cli("job", "list", "jobs", "--json")

    assert (code, err) == (JobExit.DONE, "")
    second, first = json.loads(out)
    assert [Path(each["journal"]).name for each in (first, second)] == ["first.db", "second"]
    assert (first["state"], first["running"], first["accounts"]["invited"], first["accounts"]["refused"]) == (
        "complete",
        False,
        3,
        1,
    )
    assert (second["state"], second["complete"]) == ("incomplete", False)
    assert first == json.loads(cli("job", "status", "jobs/first.db", "--json")[1])
    code, out, err = cli("job", "list", "jobs")
    assert (code, err) == (JobExit.DONE, "")
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[-2:]] == [
        ["second", "InviteJoinGroup", "incomplete"],
        ["first.db", "InviteJoinGroup", "complete"],
    ]
    assert lines[-1].split()[3:9] == ["4", "3", "0", "1", "0", "0"]
    assert sorted(Path("jobs").iterdir()) == before


def test_journals_that_cannot_be_read_are_listed_with_their_cause(cli, group):
    write_csv("m.csv", rows_of(group, count=300))
    cli("invite", "m.csv", "--journal", "good")
    shutil.copy("good", "newer")
    with closing(sqlite3.connect("newer")) as database:
        database.execute("PRAGMA user_version = 999")
    page = Path("good").read_bytes()
    Path("damaged").write_bytes(page[:200] + os.urandom(len(page) - 200))
    Path("cut").write_bytes(page[:150])
    with closing(sqlite3.connect("nothing")) as database:
        database.executescript(f"PRAGMA application_id = {int.from_bytes(JOURNAL.mark)}; PRAGMA user_version = 1; VACUUM")

    code, out, err = cli("job", "list", "--json")
    assert (code, err) == (JobExit.DONE, "")
    found = {Path(each["journal"]).name: each for each in json.loads(out)}
    assert set(found) == {"good", "newer", "damaged", "cut", "nothing"}
    assert {name for name, each in found.items() if each["state"] == "unreadable"} == set(found) - {"good"}
    assert "update rbim" in found["newer"]["cause"]
    assert all(each["cause"] for name, each in found.items() if name != "good")
    code, out, err = cli("job", "list", ".")
    assert code == JobExit.DONE
    assert out.count("unreadable") == 4
    assert [line.split(":")[1].strip() for line in err.splitlines()] == [
        name for name in (line.split()[0] for line in out.splitlines()[2:]) if name != "good"
    ]


def test_a_list_of_jobs_has_whole_names_and_all_counts_on_every_terminal(cli, group, monkeypatch):
    write_csv("customers of the north.csv", [*rows_of(group, count=3), (group, STRANGER)])
    cli("invite", "customers of the north.csv")
    Path("damaged").write_bytes(Path("customers of the north.csv.invite.journal").read_bytes()[:150])
    for width in (60, 80, 100, 140):
        out = io.StringIO()
        shown = Console(file=out, width=width, highlight=False)
        monkeypatch.setattr("rbim.cli.output.console", lambda shown=shown: shown)
        assert cli("job", "list")[0] == JobExit.DONE
        lines = [line.rstrip() for line in out.getvalue().splitlines()]
        assert max(map(len, lines)) <= width
        if width == 140:
            row = next(line.split() for line in lines if line.startswith("customers of the north.csv.invite.journal "))
            assert row[4:12] == ["InviteJoinGroup", "complete", "4", "3", "0", "1", "0", "0"]
        else:
            assert lines[:2] == ["damaged", "  state: unreadable"]
            assert lines[2:8] == [
                "customers of the north.csv.invite.journal",
                "  operation: InviteJoinGroup",
                "  state: complete",
                "  rows: 4",
                "  done: 3",
                "  refused: 1",
            ]


def test_a_folder_without_jobs_and_one_that_is_missing(cli, environment):
    code, out, _ = cli("job", "list")
    assert (code, out) == (JobExit.DONE, f"no journals in {Path().absolute()}\n")
    assert json.loads(cli("job", "list", "--json")[1]) == []
    Path("file").touch()
    for folder in ("missing", "file"):
        code, out, err = cli("job", "list", folder)
        assert (code, out) == (JobExit.USAGE, "")
        assert f"{folder}: cannot be read" in err
    assert environment
