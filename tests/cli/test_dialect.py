"""Commands take every field of the dialect: those that talk to the platform, run jobs, emulate it or receive from it."""

import pytest

from helpers.dialects import FIELDS, other
from rbim import Dialect
from rbim.cli import Exit, run
from rbim.dialect_text import dialect_fields
from rbim.errors import InvalidRequest

ALL = {name: other(name) for name in FIELDS}
TEXTS = {name: field.spell(field.write(ALL[name])) for name, field in dialect_fields().items()}


@pytest.fixture(params=["flags", "variables", "both"])
def flags(request, bare_environment, tmp_path):
    """Choose every field: half of them by a flag and half by a variable, or all in one way. Return the flags."""
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path))
    bare_environment.chdir(tmp_path)
    for name, text in {"BASE_URL": "http://127.0.0.1:1", "APP_ID": "a", "APP_TOKEN": "b", "USER_NAME": "c"}.items():
        bare_environment.setenv(f"RBIM_{name}", text)
    by_flag = {"flags": FIELDS, "variables": [], "both": FIELDS[::2]}[request.param]
    for name in set(FIELDS) - set(by_flag):
        bare_environment.setenv(f"RBIM_{name.upper()}", TEXTS[name])
    return [token for name in by_flag for token in (f"--{name.replace('_', '-')}", TEXTS[name])]


@pytest.fixture
def made(monkeypatch):
    """Replace the last step of each command, which would begin to work, and keep the object with the dialect."""
    made = []

    def end(*positional, **named):
        made.extend([*positional, *named.values()])
        raise InvalidRequest("the end of the test")

    def cannot_listen(emulator, **_):
        made.append(emulator)
        raise OSError

    monkeypatch.setattr("rbim.emulator.server.server.run", cannot_listen)
    monkeypatch.setattr("rbim.cli.callback.serve.Receiver", end)
    monkeypatch.setattr("rbim.cli.operations.commands._send", end)
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
