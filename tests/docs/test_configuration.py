"""What docs/configuration.md shows is what runs."""

import collections.abc
import re
from enum import EnumType
from typing import get_type_hints

import pytest

from helpers.pages import blocks_of, run_program
from helpers.paths import ROOT
from helpers.serving import served
from rbim import Dialect
from rbim.cli import Exit, run
from rbim.cli.context import configuration
from rbim.cli.global_flags import split_global_flags, using_flags
from rbim.config import KEYS, VARIABLES, load
from rbim.credentials import Credentials
from rbim.emulator import Emulator

PAGE = "docs/configuration.md"
TOKEN = "the-token-nobody-may-see"
(TOML,), (SHELL,), (PROGRAM,) = (blocks_of(PAGE, language) for language in ("toml", "sh", "python"))
APP = re.search(r'app_id = "(\w+)"', TOML.text)[1]
ADDRESS = "https://gw-test.example:8883"


@pytest.fixture(scope="module")
def url():
    credentials = Credentials(app_id=APP, app_token=TOKEN)
    with served(Emulator(credentials=credentials, dialect=Dialect(api_version="2016-08-15")).asgi) as url:
        yield url


@pytest.fixture
def folder(tmp_path, bare_environment):
    """A working directory with the page's file, which is named, and nothing of the machine's own."""
    bare_environment.setenv("RBIM_CONFIG", str(tmp_path / "rbim.toml"))
    bare_environment.chdir(tmp_path)
    (tmp_path / "rbim.toml").write_text(TOML.text, encoding="utf-8")
    (tmp_path / "test.token").write_text(TOKEN, encoding="utf-8")
    (tmp_path / "test.token").chmod(0o600)
    return tmp_path


def at(text, url):
    return text.replace(ADDRESS, url).replace("http://127.0.0.1:8883", url)


@pytest.mark.parametrize("command", SHELL.text.splitlines())
def test_a_command_works(folder, url, capsys, command):
    (folder / "rbim.toml").write_text(at(TOML.text, url), encoding="utf-8")

    code = run(at(command, url).split()[1:])

    assert (code, capsys.readouterr().err) == (Exit.DONE, "")


VALUES = re.findall(r"^\| .+? \| `(\w+ = .+?)` \| `(\w+=.+?)` \|$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("line", "text"), VALUES, ids=[text for _, text in VALUES])
def test_a_value_is_written_as_the_table_shows(folder, monkeypatch, line, text):
    (folder / "rbim.toml").write_text(f"[dialect]\n{line}\n", encoding="utf-8")
    in_file = load().dialect
    monkeypatch.delenv("RBIM_CONFIG")
    flags, _ = split_global_flags(["--dialect", text])
    with using_flags(flags):
        by_flag = configuration().dialect
    monkeypatch.setenv("RBIM_DIALECT", text)
    assert load().dialect == in_file == by_flag != Dialect()


def test_the_table_shows_each_form_of_a_value():
    types = get_type_hints(Dialect, localns=vars(collections.abc))
    shown = {types[line.partition(" =")[0]] for line, _ in VALUES}
    assert {kind for kind in types.values() if not isinstance(kind, EnumType)} - shown == {int | None}


def test_the_program_works(folder, url):
    (folder / "rbim.toml").write_text(at(TOML.text, url), encoding="utf-8")

    assert run_program(PROGRAM.text, folder).splitlines() == [
        f"{url} from {folder}/rbim.toml: profiles.test.base_url",
        "5.0 from argument",
        "0",
    ]


def test_the_table_lists_every_key():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? *\|", page, re.MULTILINE)

    assert dict(rows) == {key: VARIABLES.get(key, "") for key in KEYS}
