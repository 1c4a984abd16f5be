"""What ``rbim --help`` and the help of commands show.

``PYTHONPATH=tests python tests/cli/test_help.py`` writes the pages down again.
"""

import io
import re
import tomllib
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from helpers.commands import commands, leaves
from helpers.paths import ROOT
from rbim import RbimError, Throttled
from rbim.cli import build_app, run
from rbim.cli.exit_codes import Exit
from rbim.cli.front_page import COMMANDS
from rbim.cli.global_flags import FLAGS, SWITCHES
from rbim.cli.help import PAGES

SNAPSHOT = Path(__file__).parent / "snapshots" / "help.txt"
RULE = "=" * 80
KEPT = ["", "invite"]  # pages that a reader can judge


whole_app = cache(build_app)


def page(command: str, width: int) -> str:
    """Return the help of a command as a terminal of that width shows it; the front page knows only terminals, and 80."""
    out = io.StringIO()
    if command:
        console = Console(file=out, width=width, force_terminal=False)
        whole_app()([*command.split(), "--help"], console=console, result_action="return_value")
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


def test_no_page_is_wider_than_its_terminal_and_each_has_its_use_and_the_flags_of_every_command():
    wide = []
    for command in commands():
        text = page(command, 40)
        if max(map(cell_len, text.splitlines())) > 40:
            wide.append(command)
        words = " ".join(text.split())
        assert words.startswith(f"Usage: rbim {command} ")
        assert "--profile, --config, --base-url, --transport, --dialect, --debug" in words
    assert wide == []
    for command in ("", "invite", "groups invite", "callback letters"):
        assert max(map(cell_len, page(command, 80).splitlines())) <= 80


def test_every_argument_and_flag_of_every_command_has_help():
    app = whole_app()
    for command in leaves():
        _, path, _ = app.parse_commands(command.split())
        with app.app_stack(path):
            arguments = [a for a in path[-1].assemble_argument_collection(parse_docstring=True) if a.parse and a.show]
        without = [a.name for a in arguments if not (a.parameter.help or "").strip()]
        assert without == [], command


def test_the_front_page_has_every_command_in_a_section_every_flag_and_all_exit_codes(capsys):
    text = page("", 80)
    for words in ([], ["-h"], ["--help"]):
        assert run(words) == Exit.DONE
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == text.splitlines()
    assert {name for name in whole_app() if not name.startswith("-")} == {*COMMANDS, "groups", "calls"}
    for name in (*FLAGS, *SWITCHES, "help"):
        assert f"--{name}" in text
    for name in [*COMMANDS, "groups", "calls"]:
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1
    told = dict(re.findall(r"^  (\d+) +(.*(?:\n {7}.*)*)$", text, re.MULTILINE))
    assert {int(code): " ".join(words.split()) for code, words in told.items()} == {int(c): c.meaning for c in Exit}


def test_there_are_at_most_40_commands_and_25_flags_of_a_job_in_four_panels():
    assert len(list(leaves())) <= 40
    app = whole_app()
    for command in ("invite", "remove"):
        _, path, _ = app.parse_commands([command])
        with app.app_stack(path):
            flags = [a for a in path[-1].assemble_argument_collection() if a.show and a.name.startswith("--")]
        assert len(flags) <= 25, command
        panels = {group.name for each in flags for group in each.parameter.group}
        assert panels == {"Input", "Pace", "Results", "Resume"}, command


def test_each_page_and_section_that_a_message_names_is_shown_from_the_package(capsys):
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {f"docs/{name}.md": f"rbim/docs/{name}.md" for name in PAGES}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rbim").rglob("*.py"))
    named = set(re.findall(r"`rbim help ([a-z#-]+)`", sources)) | {RbimError().docs, Throttled().docs, *PAGES}
    assert {"configuration", "errors#rbimerror", "questions#is-this-my-platform"} < named
    for topic in named:
        assert run(["help", topic]) == Exit.DONE
        assert capsys.readouterr().out.startswith("#")
    run(["help", "errors#handling-errors"])
    shown = capsys.readouterr().out
    assert (shown.count("\n## "), shown.startswith("## Handling errors\n"), "```python" in shown) == (0, True, True)


if __name__ == "__main__":
    SNAPSHOT.parent.mkdir(exist_ok=True)
    SNAPSHOT.write_text(pages(), encoding="utf-8", newline="\n")
