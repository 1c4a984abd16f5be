"""``rbim help``: a page of the documentation, or a section of it, from the package."""

from __future__ import annotations

import re
import sys
from importlib.resources import files
from pathlib import Path

from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.folding import fold_for
from rbim.cli.front_page import COMMANDS
from rbim.config import nearest
from rbim.operations.catalogue import namespace

__all__ = ["PAGES", "show_help"]

PAGES = ("bulk", "callbacks", "cli", "configuration", "dialect", "errors", "questions")
"""The pages in the package: see pyproject.toml."""

HEADING = re.compile(r"(#+) (.+)")


def show_help(topic: str, /) -> int:
    """Show a page of the documentation, such as errors, or one section of it, such as errors#notfound.

    Parameters
    ----------
    topic
        The page: bulk, callbacks, cli, configuration, dialect, errors or questions; or PAGE#SECTION, with the words
        of the section's title joined by hyphens.
    """
    name, _, anchor = topic.lower().partition("#")
    if name not in PAGES:
        command = name in COMMANDS or namespace(name) is not None
        print_error(
            f"{topic}: there is no such page; {nearest(name, PAGES)}", f"See: rbim {name if command else 'help'} --help"
        )
        return Exit.USAGE
    packed = files("rbim") / "docs"
    folder = packed if packed.is_dir() else Path(__file__).parents[2] / "docs"  # the second one is in a clone
    lines = (folder / f"{name}.md").read_text(encoding="utf-8").splitlines()
    sections = _sections(lines)
    if anchor and anchor not in sections:
        print_error(f"{topic}: there is no such section; {nearest(anchor, sections)}", f"See: rbim help {name}")
        return Exit.USAGE
    shown = lines[sections[anchor]] if anchor else lines
    sys.stdout.write(fold_for(sys.stdout, "".join(f"{line}\n" for line in shown)))
    return Exit.DONE


def _sections(lines: list[str]) -> dict[str, slice]:
    """Return the lines of each section, which ends before the next one that is not below it, by its anchor."""
    found: dict[str, slice] = {}
    open_: list[tuple[int, str]] = []
    in_code = False
    for number, line in enumerate([*lines, "# "]):
        in_code ^= line.startswith("```")
        heading = None if in_code else HEADING.match(line)
        if heading is None and number < len(lines):
            continue
        level = 1 if heading is None else len(heading[1])
        while open_ and open_[-1][0] >= level:
            anchor = open_.pop()[1]
            found[anchor] = slice(found[anchor].start, number)
        if heading is not None:
            anchor = re.sub(r"[^\w -]", "", heading[2]).strip().lower().replace(" ", "-")
            open_.append((level, anchor))
            found[anchor] = slice(number, None)
    return found
