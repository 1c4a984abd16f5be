"""What docs/configuration.md shows is what runs."""

import re
import shlex

import pytest

from helpers.pages import blocks_of, run_program
from helpers.paths import ROOT
from helpers.projects import write_project
from helpers.serving import served
from rbim import Dialect
from rbim.cli import Exit, run
from rbim.cli.context import configuration
from rbim.cli.global_flags import split_global_flags, using_flags
from rbim.client.settings import KEYS
from rbim.config import load
from rbim.credentials import Credentials
from rbim.dialect_text import dialect_fields
from rbim.emulator import Emulator

PAGE = "docs/configuration.md"
TOKEN = "the-token-nobody-may-see"
(TOML,), (SHELL,), (SHOWN,), (PROGRAM,) = (blocks_of(PAGE, language) for language in ("toml", "sh", "text", "python"))
APP = re.search(r'app_id = "(\w+)"', TOML.text)[1]
ADDRESS = "https://gw-test.example:8883"


@pytest.fixture(scope="module")
def url():
    credentials = Credentials(app_id=APP, app_token=TOKEN)
    with served(Emulator(credentials=credentials, dialect=Dialect(api_version="2016-08-15")).asgi) as url:
        yield url


@pytest.fixture
def folder(tmp_path, bare_environment):
    """A working directory with the page's file, and nothing of the machine's own."""
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bare_environment.chdir(tmp_path)
    write_project(tmp_path / "rbim.toml", TOML.text)
    (tmp_path / "test.token").write_text(TOKEN, encoding="utf-8")
    (tmp_path / "test.token").chmod(0o600)
    return tmp_path


def at(text, url):
    return text.replace(ADDRESS, url).replace("http://127.0.0.1:8883", url)


@pytest.mark.parametrize("command", SHELL.text.splitlines())
def test_a_command_works(folder, url, capsys, command):
    write_project(folder / "rbim.toml", at(TOML.text, url))

    code = run(at(command, url).split()[1:])

    assert (code, capsys.readouterr().err) == (Exit.DONE, "")


def test_what_config_show_shows(folder, capsys, monkeypatch):
    monkeypatch.setenv("RBIM_TIMEOUT", "5")
    monkeypatch.setenv("RBIM_MEMBERS_SHAPE", "nested")

    run(["config", "show", "--zone", "+09:00"])

    shown = words(capsys.readouterr().out.replace(str(folder), "/srv/app"))
    *expected, rest = words(SHOWN.text)
    assert (shown[: len(expected)], rest) == (expected, ["..."])


def words(text):
    """Return the words of each line, whatever is between them."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("─")]


VALUES = re.findall(r"^\| .+? \| `(\w+ = .+?)` \| `(--.+?)` \|$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("line", "flag"), VALUES, ids=[flag for _, flag in VALUES])
def test_a_value_is_written_as_the_table_shows(folder, monkeypatch, line, flag):
    word, text = shlex.split(flag)
    write_project(folder / "rbim.toml", f"[dialect]\n{line}\n")
    in_file = load().dialect
    (folder / "rbim.toml").unlink()
    flags, _ = split_global_flags([word, text])
    with using_flags(flags):
        by_flag = configuration().dialect
    monkeypatch.setenv(f"RBIM_{word.removeprefix('--').replace('-', '_').upper()}", text)
    assert load().dialect == in_file == by_flag != Dialect()


def test_the_table_shows_each_form_of_a_value():
    forms = {type(dialect_fields()[line.partition(" =")[0]].form).__name__ for line, _ in VALUES}
    assert forms == {type(field.form).__name__ for field in dialect_fields().values()}


def test_the_program_works(folder, url):
    write_project(folder / "rbim.toml", at(TOML.text, url))

    assert run_program(PROGRAM.text, folder).splitlines() == [
        f"{url} from {folder}/rbim.toml [profiles.test]",
        "5.0 from argument",
        "0",
    ]


def test_the_table_lists_every_key():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? *\|", page, re.MULTILINE)

    assert dict(rows) == {name: key.variable or "" for name, key in KEYS.items()}
