"""What docs/configuration.md shows is what runs."""

import re

import pytest

from helpers.pages import blocks_of, run_program
from helpers.paths import ROOT
from helpers.serving import served
from rbim.cli import Exit, run
from rbim.config.keys import KEYS
from rbim.credentials import Credentials
from rbim.emulator import Emulator

PAGE = "docs/configuration.md"
TOKEN = "the-token-nobody-may-see"
(TOML,), (SHELL,), (SHOWN,), (PROGRAM,) = (blocks_of(PAGE, language) for language in ("toml", "sh", "text", "python"))
APP = re.search(r'app_id = "(\w+)"', TOML.text)[1]
ADDRESS = "https://gw-test.example:8883"


@pytest.fixture(scope="module")
def url():
    with served(Emulator(credentials=Credentials(app_id=APP, app_token=TOKEN)).asgi) as url:
        yield url


@pytest.fixture
def folder(tmp_path, bare_environment):
    """A working directory with the page's file, and nothing of the machine's own."""
    bare_environment.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
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


def test_what_config_show_shows(folder, capsys, monkeypatch):
    monkeypatch.setenv("RBIM_TIMEOUT", "5")

    run(["config", "show"])

    shown = capsys.readouterr().out.replace(str(folder), "/srv/app")
    assert words(shown) == words(SHOWN.text)


def words(text):
    """Return the words of each line, whatever is between them."""
    return [line.split() for line in text.splitlines() if not line.startswith("─")]


def test_the_program_works(folder, url):
    (folder / "rbim.toml").write_text(at(TOML.text, url), encoding="utf-8")

    assert run_program(PROGRAM.text, folder).splitlines() == [
        f"{url} from {folder}/rbim.toml [profiles.test]",
        "5.0 from argument",
        "0",
    ]


def test_the_table_lists_every_key():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`)? *\|", page, re.MULTILINE)

    assert dict(rows) == {name: key.variable or "" for name, key in KEYS.items()}
