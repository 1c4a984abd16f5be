"""What ``rbim --help`` and the help of commands show.

``PYTHONPATH=tests python tests/cli/test_help.py`` writes the pages down again.
"""

import io
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from helpers.commands import commands, leaves
from rbim.cli import build_app, run
from rbim.cli.exit_codes import Exit, JobExit
from rbim.cli.front_page import COMMANDS
from rbim.operations.catalogue import summary_of

SNAPSHOT = Path(__file__).parent / "snapshots" / "help.txt"
RULE = "=" * 80
PATIENCE = 60
KEPT = ["", "invite"]  # pages that a reader can judge


def page(command: str, width: int) -> str:
    """Return the help of a command as a terminal of that width shows it; the front page knows only terminals, and 80."""
    out = io.StringIO()
    if command:
        console = Console(file=out, width=width, force_terminal=False)
        build_app()([*command.split(), "--help"], console=console, result_action="return_value")
    else:
        with redirect_stdout(out):
            assert run(["--help"]) == Exit.DONE
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def pages() -> str:
    """Return all pages."""
    parts = [f"{RULE}\n$ rbim {f'{command} '.lstrip()}--help\n{RULE}\n{page(command, 80)}" for command in KEPT]
    return "\n".join(parts)


def sections(text: str) -> dict[str, str]:
    """Return each page of the snapshot by its command."""
    found = re.split(rf"^{RULE}\n\$ rbim (.*?) ?--help\n{RULE}\n", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_the_pages_are_those_of_the_snapshot():
    shown, kept = sections(pages()), sections(SNAPSHOT.read_text(encoding="utf-8"))
    assert list(shown) == list(kept), "PYTHONPATH=tests python tests/cli/test_help.py writes the snapshot"
    for command, text in shown.items():
        assert text == kept[command], "PYTHONPATH=tests python tests/cli/test_help.py writes the snapshot"


def test_a_namespace_without_words_of_its_own_has_none_of_its_bases():
    assert summary_of(type("Members", (), {"methods": classmethod(lambda _: iter([("put_away", None)]))})) == (
        "The operations of members: put-away."
    )


@pytest.mark.parametrize("width", [40, 80])
def test_no_page_is_wider_than_its_terminal(width):
    wide = [command for command in commands() if max(map(cell_len, page(command, width).splitlines())) > width]
    assert wide == []
    assert max(map(cell_len, page("", 80).splitlines())) <= 80


def test_every_page_has_its_use_and_names_the_flags_of_every_command():
    for command in commands():
        text = page(command, 80)
        assert text.startswith(f"Usage: rbim {command} ")
        assert "--profile, --config, --base-url, --transport, --debug" in " ".join(text.split())


def test_the_flags_of_a_job_stand_in_panels():
    titles = re.findall(r"^╭─ (\w+) ", page("invite", 80), re.MULTILINE)
    assert titles[0] == "Arguments"
    assert set(titles) > {"Input", "Pace", "Results", "Resume"}


def test_every_argument_and_flag_of_every_command_has_help():
    app = build_app()
    for command in leaves():
        _, path, _ = app.parse_commands(command.split())
        with app.app_stack(path):
            arguments = [a for a in path[-1].assemble_argument_collection(parse_docstring=True) if a.parse and a.show]
        without = [a.name for a in arguments if not (a.parameter.help or "").strip()]
        assert without == [], command


def test_the_front_page_has_every_command_in_a_section_and_all_exit_codes():
    text = page("", 80)
    for name in [*COMMANDS, "groups", "calls"]:
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1
    told = dict(re.findall(r"^  (\d+) +(.*(?:\n {7}.*)*)$", text, re.MULTILINE))
    assert {int(code): " ".join(words.split()) for code, words in told.items()} == {int(c): c.meaning for c in Exit}


def test_a_job_and_other_commands_agree_on_what_codes_are_about():
    """A script that knows the codes of one command is not misled by those of another."""
    assert {code.name for code in JobExit} & {code.name for code in Exit} >= {"DONE", "REFUSED", "USAGE", "UNKNOWN", "FAULT"}
    for code in Exit:
        if code.name in JobExit.__members__:
            assert JobExit[code.name] == code


HEAVY = ("httpx", "anyio", "asyncio", "sqlite3", "cattrs", "cyclopts", "rich", "ssl", "uvicorn", "tomllib", "platformdirs")


@pytest.mark.parametrize(
    ("tokens", "loaded"),
    [
        (["--help"], []),
        (["--version"], []),
        ([], []),
        (["groups", "create", "--help"], ["cyclopts", "rich", "tomllib"]),
        (["invite", "--help"], ["cyclopts", "rich", "tomllib"]),
    ],
)
def test_help_imports_nothing_that_it_does_not_need(tokens, loaded):
    code = (
        "import sys\n"
        "from rbim.cli import run\n"
        f"code = run({tokens!r})\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False)
    assert done.returncode == Exit.DONE
    assert set(done.stderr.split()) <= set(loaded)


if __name__ == "__main__":
    SNAPSHOT.parent.mkdir(exist_ok=True)
    SNAPSHOT.write_text(pages(), encoding="utf-8", newline="\n")
