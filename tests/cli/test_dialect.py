"""Commands take every field of the dialect: those that talk to the platform, run jobs, emulate it or receive from it."""

import json
import re

import pytest

from helpers.dialects import FIELDS, other
from helpers.tables import each_row
from rbim import Dialect
from rbim.choices import spelled
from rbim.cli import Exit, run
from rbim.emulator import Rules
from rbim.errors import InvalidRequest

ALL = {name: other(name) for name in FIELDS}
TEXTS = [f"{name}={spelled(document)}" for name, document in Dialect(**ALL).to_document().items()]


@pytest.fixture
def flags(bare_environment, tmp_path):
    """Choose every field, half of them by a flag and half by a variable; return the flags."""
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path))
    bare_environment.chdir(tmp_path)
    for name, text in {"BASE_URL": "http://127.0.0.1:1", "APP_ID": "a", "APP_TOKEN": "b", "USER_NAME": "c"}.items():
        bare_environment.setenv(f"RBIM_{name}", text)
    bare_environment.setenv("RBIM_DIALECT", ",".join(TEXTS[::2]))
    return [token for text in TEXTS[1::2] for token in ("--dialect", text)]


@pytest.fixture
def made(monkeypatch):
    """Replace the last step of each command, which would begin to work, and keep the object with the dialect."""
    made = []

    def end(*positional, **named):
        made.extend([*positional, *named.values()])
        raise InvalidRequest("the end of the test")

    async def cannot_listen(server):
        made.append(server.emulator)
        raise OSError

    monkeypatch.setattr("rbim.emulator.server.server.Server.__aenter__", cannot_listen)
    monkeypatch.setattr("rbim.cli.callback.serve.Receiver", end)
    monkeypatch.setattr("rbim.cli.operations._send", end)
    monkeypatch.setattr("rbim.cli.jobs.begin.execute", end)
    monkeypatch.setattr("rbim.cli.demo._demonstrate", end)
    return made


def dialects_of(objects):
    """Return the dialects among objects, also of a client, an emulator, or a job's client."""
    for each in objects:
        owner = getattr(each, "client", each)
        found = each if isinstance(each, Dialect) else getattr(owner, "dialect", None)
        if found is not None:
            yield found


TASK = """bot_id = 1
task_name = "a"
start_date = 2099-01-01
end_date = 2099-01-02
min_concurrent = 1
max_concurrent = 2
caller = "1"
"""
COMMANDS = [
    "groups detail g1",
    "calls create-task task.toml",
    "invite rows.csv",
    "emulator",
    "callback serve --inbox events.db",
    "demo",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_takes_every_field(flags, made, command, tmp_path, capsys):
    (tmp_path / "rows.csv").write_text("group,account\ng1,1001\n")
    (tmp_path / "task.toml").write_text(TASK)

    code = run([*command.split(), *flags])

    assert [*dialects_of(made)] == [Dialect(**ALL)], capsys.readouterr().err
    assert code != Exit.DONE  # it was ended


def test_the_list_has_every_field_and_every_rule(capsys):
    assert run(["dialect"]) == Exit.DONE
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 80
    assert run(["dialect", "--json"]) == Exit.DONE
    rows = json.loads(capsys.readouterr().out)
    names = [gap.name for kind in (Dialect, Rules) for gap in kind.gaps()]
    assert [row["field"] for row in rows] == re.findall(r"^  (\w+)$", page, re.MULTILINE) == names
    for row in rows:
        default = row["default"]
        kind = Rules if row["part"] == "Rules of the emulator" else Dialect
        assert kind.from_document({row["field"]: default}) == kind(), row["field"]
    shape = next(row for row in rows if row["field"] == "members_shape")
    known = {"part": "Client and emulator", "default": "plain", "choices": ["plain", "nested"], "grade": "M"}
    assert shape.items() >= known.items()
    assert shape.keys() == {"field", "settles", "section", *known}


def test_one_field_is_shown_with_all_of_its_default(capsys):
    assert run(["dialect", "already_so", "notifications"]) == Exit.DONE
    page = capsys.readouterr().out
    assert 'InviteJoinGroup=["590017"]' in page
    assert "Interface description: Errors. Evidence grade: G" in page
    assert "apply=TEAM_APPLY" in page
    assert re.findall(r"^  (\w+)$", page, re.MULTILINE) == ["already_so", "notifications"]
    assert max(map(len, page.splitlines())) <= 80
    assert run(["dialect", "memberz_shape"]) == Exit.USAGE
    assert "did you mean members_shape?" in capsys.readouterr().err


@pytest.mark.usefixtures("bare_environment")
def test_the_emulators_command_takes_rules(made):
    rules = ["invited_member_fails=true", 'notifications={"apply": "none"}', "resend_after=1,2"]
    run(["emulator", *(token for text in rules for token in ("--rule", text))])
    (emulator,) = made
    assert emulator.rules == Rules(
        invited_member_fails=True,
        notifications={name: text for name, text in Rules().notifications.items() if name != "apply"},
        resend_after=(1, 2),
    )


@pytest.mark.usefixtures("bare_environment")
@each_row("wrong, says", [("colour=red", "unknown key"), ("resend_after=soon", "a number"), ("x", "KEY=VALUE")])
def test_a_wrong_rule_is_one_line(made, wrong, says, capsys):
    assert run(["emulator", "--rule", wrong]) == Exit.USAGE
    err = capsys.readouterr().err
    assert (err.startswith("rbim: --rule: "), says in err, made) == (True, True, [])
