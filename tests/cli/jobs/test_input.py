"""The input of ``rbim invite``: what is wrong is found before anything is sent, and a dry run knows what groups hold."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import anyio
import pytest

from helpers.job_commands import CREDENTIALS, commands, invitations, made_group, members, rows_in, rows_of, write_csv
from rbim import AsyncClient, GroupType
from rbim.cli.exit_codes import JobExit
from rbim.emulator.faults import Code, Fault


def grouped(platform, kind, count):
    """Return a group of a kind with so many members, its creator included."""

    async def create():
        async with AsyncClient(
            base_url="http://emulator", credentials=CREDENTIALS, user_name="admin", transport=platform
        ) as client:
            group = (await client.groups.create(name="x", type=kind)).group_id
            names = [f"old{number}" for number in range(count - 1)]
            for begin in range(0, len(names), 50):
                await client.groups.invite(group_id=group, members=names[begin : begin + 50])
            return group

    return anyio.run(create)


# ---------------------------------------------------------------- what is no input


def test_a_gzip_file_is_sent_and_what_is_left_is_proposed_as_plain_text(platform, cli, group):
    rows = [*rows_of(group, count=3), (group, "stranger")]
    Path("m.csv.gz").write_bytes(gzip.compress("".join(f"{a},{b}\n" for a, b in [("group", "account"), *rows]).encode()))
    code, _, err = cli("invite", "m.csv.gz")
    assert code == JobExit.INCOMPLETE
    assert len(members(platform, group)) == 3
    (report,) = commands(err)
    assert report[-1].endswith("m.csv.gz.invite.not-done.csv")
    assert cli(*report)[0] == JobExit.DONE
    assert [row["account"] for row in rows_in(report[-1])] == ["stranger"]


@pytest.mark.parametrize("kind", ["list", "workbook", "array"])
def test_what_is_left_of_an_input_is_an_input_and_so_on_until_nothing_is_left(platform, cli, group, kind):
    corpus = Path(__file__).parents[2] / "bulk" / "input" / "corpus"
    file = {"list": "list.txt", "workbook": "openpyxl-list.xlsx", "array": "array-of-numbers.json"}[kind]
    Path(file).write_bytes((corpus / file).read_bytes())
    platform.never_logged_in("13800138001", "13800138002")
    code, _, err = cli("invite", file, "--group", group)
    assert code == JobExit.INCOMPLETE
    for left in (["13800138001", "13800138002"], ["13800138002"]):
        (report,) = commands(err)
        cli(*report)
        rest = report[-1]
        assert Path(rest).suffix == {"list": ".txt", "workbook": ".csv", "array": ".json"}[kind]
        platform.state.never_logged_in.discard(left[0])
        code, _, err = cli("invite", rest, "--group", group)
        assert code == (JobExit.INCOMPLETE if len(left) > 1 else JobExit.DONE)
    assert members(platform, group) == {"13800138000", "13800138001", "13800138002"}


def test_what_is_no_input_is_refused_with_a_next_step_and_leaves_no_journal(platform, cli):
    platform.requests.clear()
    for body, message in [
        (b"", "the input is empty"),
        (b"<html><table><tr><td>account</td></tr></table></html>", "this is HTML, not a table"),
        ("群,账号\n一,张三\n".encode("gb18030"), "--encoding gb18030"),
        ("群,账号,手机号\n1,2,3\n".encode(), "--account-column"),
    ]:
        Path("m.csv").write_bytes(body)
        for command in ("invite", "remove --yes", "invite --dry-run"):
            word, *flags = command.split()
            code, out, err = cli(word, "m.csv", *flags)
            assert (code, out, command) == (JobExit.USAGE, "", command)
            assert message in err
            assert [path.name for path in Path().iterdir()] == ["m.csv"]
    assert not platform.requests.records


def test_damaged_cells_are_not_sent_unless_allowed(platform, cli, group):
    write_csv("m.csv", [(group, "1.38E+10"), (group, "NULL"), (group, "u1")])
    code, _, err = cli("invite", "m.csv")
    assert code == JobExit.INCOMPLETE
    assert members(platform, group) == {"u1"}
    assert "line 2: account: '1.38E+10' looks like a rounded number" in err
    code, _, _ = cli("invite", "m.csv", "--allow-damaged", "--journal", "other.journal")
    assert code == JobExit.DONE
    assert members(platform, group) == {"u1", "1.38E+10", "NULL"}


def test_too_many_bad_rows_send_nothing_and_the_corrected_file_is_sent_by_the_same_command(platform, cli):
    for limit in ("2", "20%", "0%"):
        group = made_group(platform)
        platform.requests.clear()
        write_csv("m.csv", [*rows_of(group), *[("", f"u{number}") for number in range(3)]])
        for dry in ([], ["--dry-run"]):
            code, out, err = cli("invite", "m.csv", "--max-bad", limit, *dry)
            assert (code, out) == (JobExit.USAGE, "")
            assert "rows are invalid" in err
            assert "--max-bad" in err
            assert "line 9: " in err
            assert ("Nothing was sent. " in err and "run the same command again, or delete it" in err) == (not dry)
        (listed,) = json.loads(cli("job", "list", "--json")[1])
        assert (listed["state"], listed["accounts"]["total"]) == ("loading", 0)
        code, _, err = cli("job", "report", "m.csv.invite.journal", "--not-done", "rest.csv")
        assert (code, Path("rest.csv").exists()) == (JobExit.USAGE, False)
        assert "the input was not read completely" in err
        assert not platform.requests.records
        write_csv("m.csv", rows_of(group))
        assert cli("invite", "m.csv", "--max-bad", limit)[0] == JobExit.DONE
        assert len(members(platform, group)) == 7
        Path("m.csv.invite.journal").unlink()


def test_a_chinese_file_is_sent_by_the_printed_command(platform, cli):
    name = "客户 名单.csv"
    for flags in (
        ["--dry-run"],
        ["--group-column", "群", "--declared", "it's a test; really"],
        ["--encoding", "utf-8", "--quiet"],
        ["--quiet", "--encoding=utf-8", "--dry-run"],
    ):
        group = made_group(platform)
        Path(name).write_bytes(f"群,账号\n{group},张三\n".encode("gb18030"))
        code, out, err = cli("invite", name, *flags)
        assert (code, out) == (JobExit.USAGE, "")
        (again,) = commands(err)
        left = [word for word in flags if not word.endswith(("encoding", "utf-8"))]
        assert again == ["invite", name, *left, "--encoding", "gb18030"]
        assert cli(*again)[0] == JobExit.DONE
        assert members(platform, group) == (set() if "--dry-run" in flags else {"张三"})
        for file in Path().glob("*.journal*"):
            file.unlink()


# ---------------------------------------------------------------- a trial with a few accounts


def test_a_limit_sends_the_first_accounts_and_the_printed_command_the_rest(platform, cli, group):
    write_csv("m.csv", rows_of(group, count=120))
    code, out, err = cli("invite", "m.csv", "--limit", "7", "--json")
    assert code == JobExit.DONE
    assert members(platform, group) == {f"u{number}" for number in range(7)}
    assert json.loads(out)["skipped"]["not_sent"] == 113
    assert "the limit of this run was reached (--limit); accounts left: 113 not sent" in err
    (resume,) = commands(err)
    assert cli(*resume, "--limit", "60")[0] == JobExit.DONE
    assert len(members(platform, group)) == 67
    assert (cli(*resume)[0], len(members(platform, group))) == (JobExit.DONE, 120)


# ---------------------------------------------------------------- an edited input


def test_after_an_edit_the_message_has_both_ways_on(platform, cli, group):
    platform.faults.add(Fault(effect=Code("999999"), operation="InviteJoinGroup"))
    write_csv("m.csv", rows_of(group))
    cli("invite", "m.csv", "--chunk", "1", "--concurrency", "1", "--max-failures", "0")
    platform.faults.clear()
    write_csv("m.csv", rows_of(group, count=9))

    code, out, err = cli("invite", "m.csv", "--chunk", "1")

    assert (code, out) == (JobExit.USAGE, "")
    assert "its input had 7 rows, this input has 9" in err
    (resume,) = commands(err)
    assert resume[:2] == ["job", "resume"]
    flags = shlex.split(err.partition("the same command with: ")[2])
    assert Path(flags[1]).name == "m.csv.invite.2.journal"
    assert cli("invite", "m.csv", "--chunk", "1", *flags)[0] == JobExit.DONE
    assert len(members(platform, group)) == 9
    code, out, _ = cli(*resume, "--json")
    assert code == JobExit.INCOMPLETE  # the first ones failed
    assert json.loads(out)["accounts"]["total"] == 7
    Path("m.csv").write_text(f"group,account\n{group},x\n", encoding="utf-8")
    assert "m.csv.invite.3.journal" in cli("invite", "m.csv")[2]


# ---------------------------------------------------------------- what groups hold


@pytest.mark.usefixtures("environment")
def test_a_dry_run_warns_of_groups_with_more_accounts_than_any_group_holds(cli):
    write_csv("m.csv", [*rows_of("g1", count=2001), *rows_of("g2", count=2000), ("g2", "u1")])
    code, out, _ = cli("invite", "m.csv", "--dry-run")
    assert code == JobExit.INCOMPLETE
    assert "warning: g1: 2,001 accounts, but no group holds more than 2,000 members" in out
    assert "warning: g2" not in out
    code, out, _ = cli("invite", "m.csv", "--dry-run", "--json")
    (warning,) = json.loads(out)["warnings"]
    assert (code, warning["group"], warning["accounts"]) == (JobExit.INCOMPLETE, "g1", 2001)
    assert cli("remove", "m.csv", "--dry-run")[0] == JobExit.DONE  # a removal needs no places


def test_groups_are_checked_once_each_and_only_what_does_not_fit_is_said(platform, cli):
    full, small, large = grouped(platform, GroupType.TEMPORARY, 100), grouped(platform, GroupType.TEMPORARY, 98), None
    large = made_group(platform)
    write_csv("m.csv", [*rows_of(full, small, large, "g89999999999999", count=3)])
    platform.requests.clear()

    code, out, _ = cli("invite", "m.csv", "--dry-run", "--check-groups")

    assert code == JobExit.INCOMPLETE
    lines = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert [line.split(": ")[1] for line in lines] == [full, small, "g89999999999999"]
    assert "it is full (100 of 100 members), for 3 accounts" in lines[0]
    assert "2 places are left (98 of 100 members), for 3 accounts" in lines[1]
    assert "no such group" in lines[2]
    assert len(platform.requests.records) == 4
    assert not invitations(platform)
    assert not list(Path().glob("*.journal*"))

    write_csv("n.csv", rows_of(large, count=3))
    code, out, _ = cli("invite", "n.csv", "--dry-run", "--check-groups", "--json")
    assert (code, json.loads(out)["warnings"]) == (JobExit.DONE, [])


def test_a_check_of_groups_needs_a_dry_run_and_a_platform(cli, group, monkeypatch):
    write_csv("m.csv", rows_of(group))
    code, _, err = cli("invite", "m.csv", "--check-groups")
    assert (code, "--dry-run" in err) == (JobExit.USAGE, True)
    monkeypatch.setenv("RBIM_APP_TOKEN", "another")
    code, out, err = cli("invite", "m.csv", "--dry-run", "--check-groups")
    assert (code, out) == (JobExit.REFUSED, "")
    assert "RBIM_APP_TOKEN" in err
    assert not list(Path().glob("*.journal*"))
