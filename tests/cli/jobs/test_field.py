"""``--field`` of the commands of jobs: a field that the report does not have is said before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.serving import served
from rbim import GroupType
from rbim.cli import Exit, run
from rbim.cli.exit_codes import JobExit
from rbim.cli.field import ANYTHING
from rbim.cli.jobs.shape import ESTIMATE, shape_of_report
from rbim.emulator import Emulator
from rbim.emulator.faults.requests import Fault, Status
from rbim.emulator.platform.rules import RULES
from rbim.operations.groups import CreateGroup


@pytest.fixture
def emulator(bare_environment, tmp_path):
    """The platform of a reader, with a file of accounts for one of its groups, and for one that it does not have."""
    emulator = Emulator()
    group = RULES[CreateGroup](emulator.world, CreateGroup(name="News", type=GroupType.TEMPORARY)).group_id
    bare_environment.chdir(tmp_path)
    emulator.never_logged_in("1003")
    rows = [f"{group},{account}" for account in ("1001", "1002", "1003", "1001")] + ["g80000000000000,1001", ",1"]
    Path("members.csv").write_text("\n".join(["group,account", *rows, ""]), encoding="utf-8")
    with served(emulator.asgi) as url:
        bare_environment.setenv("RBIM_BASE_URL", url)
        bare_environment.setenv("RBIM_APP_ID", emulator.credentials.app_id)
        bare_environment.setenv("RBIM_APP_TOKEN", emulator.credentials.app_token.reveal())
        bare_environment.setenv("no_proxy", "*")
        yield emulator


@pytest.fixture
def cli(capsys):
    def call(*tokens):
        code = run([*map(str, tokens)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize(
    "command",
    [["invite", "members.csv"], ["remove", "members.csv", "--yes"], ["invite", "members.csv", "--dry-run"]],
)
def test_a_wrong_field_is_said_before_anything_is_sent(command, emulator, cli):
    code, out, err = cli(*command, "--field", ".accounts.invted")
    assert (code, out, len(emulator.requests)) == (Exit.USAGE, "", 0)
    assert "--field: there is no " in err
    assert list(Path().glob("*.journal")) == []


@pytest.mark.parametrize("verb", ["resume", "retry"])
def test_a_job_does_not_go_on_with_a_wrong_field(verb, emulator, cli):
    emulator.faults.add(Fault(effect=Status(503)))
    cli("invite", "members.csv", "--quiet", "--max-failures", "1")
    emulator.faults.clear()
    sent = len(emulator.requests)
    code, out, err = cli("job", verb, "members.csv.invite.journal", "--field", ".runs[].why_not")
    assert (code, out, len(emulator.requests)) == (Exit.USAGE, "", sent)
    assert ".runs[].why" in err


def test_a_right_field_is_printed_also_if_the_report_has_no_value_there(emulator, cli):
    code, out, _ = cli("invite", "members.csv", "--quiet", "--field", ".accounts.invited")
    assert (code, out) == (JobExit.INCOMPLETE, "2\n")
    journal = "members.csv.invite.journal"
    assert cli("job", "report", journal, "--field", ".reasons_left_off.reasons")[:2] == (Exit.DONE, "\n")
    assert cli("job", "report", journal, "--field", ".job.source.name")[1] == "members.csv\n"
    code, out, err = cli("job", "report", journal, "--field", ".reasons[].txt")
    assert (code, out, ".reasons[].text" in err) == (Exit.USAGE, "", True)
    assert len(emulator.requests) > 0


def paths_of(document, here=""):
    """Return the paths of all values in a document or a shape; one entry stands for all of a list."""
    if document is ANYTHING:
        return set()
    if isinstance(document, dict):
        return {path for name, each in document.items() for path in paths_of(each, f"{here}.{name}")} or {here}
    if isinstance(document, list):
        return {path for each in document for path in paths_of(each, f"{here}[]")}
    return {here}


def test_the_shape_has_every_path_of_a_report_and_of_an_estimate(emulator, cli):
    _, out, _ = cli("invite", "members.csv", "--dry-run", "--json", "--check-groups")
    estimate = json.loads(out)
    assert paths_of(estimate) <= paths_of(ESTIMATE)
    assert estimate["warnings"]
    _, out, _ = cli("invite", "members.csv", "--quiet", "--json")
    report = json.loads(out)
    for name in ("options", "dialect", "source"):
        del report["job"][name]
    assert paths_of(report) - {".reasons_left_off"} <= paths_of(shape_of_report("invited"))
    assert report["accounts"]["total"] == 6
    assert len(emulator.requests) > 0
