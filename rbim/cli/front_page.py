"""The list of commands, and the text of ``rbim --help``, made without importing cyclopts so that it is fast."""

from __future__ import annotations

import sys
import textwrap

from rbim.cli.exit_codes import Exit
from rbim.cli.folding import terminal_columns
from rbim.cli.global_flags import FLAGS, SWITCHES
from rbim.operations.catalogue import namespaces, summary_of

__all__ = ["COMMANDS", "INDENT", "SUMMARY", "front_page", "terminal_width"]


SUMMARY = "Client for a Chinese communications platform: its operations, bulk jobs, callbacks, and an emulator."

COMMANDS: dict[str, tuple[str | None, str]] = {
    "operations": (
        "rbim.cli.operations:operations",
        "List the operations with their names in Python and on the wire.",
    ),
    "invite": ("rbim.cli.jobs.commands:invite", "Invite any number of accounts into any number of groups."),
    "remove": ("rbim.cli.jobs.commands:remove", "Remove any number of members from any number of groups."),
    "job": ("rbim.cli.jobs.commands:job", "Show, resume or retry a job, or report on it."),
    "callback": (
        "rbim.cli.callback.commands:callback",
        "Receive callbacks, send test deliveries, explain a refused one.",
    ),
    "page": ("rbim.cli.page:page", "Show a job or an inbox in a browser."),
    "emulator": ("rbim.cli.emulator:serve", "Run an emulator of the platform."),
    "demo": ("rbim.cli.demo:demo", "Invite 5,000 accounts into groups of the emulated platform."),
    "dialect": (
        "rbim.cli.dialect:dialect",
        "List the fields of the dialect, and the rules of the emulator.",
    ),
    "config": ("rbim.cli.config:config", "Show the configuration and its sources."),
    "doctor": ("rbim.cli.doctor:doctor", "Check installation, configuration, connection, clock and credentials."),
    "help": ("rbim.cli.help:show_help", "Show a page of the documentation, or a section of it."),
    "completion": (None, "Install completion for bash, zsh or fish."),
}
"""Every command except those of operations: its function (None: one of cyclopts), and its summary."""

SECTIONS = {
    "Jobs": ("invite", "remove", "job"),
    "Callbacks": ("callback",),
    "Pages": ("page",),
    "Emulator": ("emulator", "demo"),
    "Setup": ("config", "doctor", "dialect", "help", "completion"),
}

EXAMPLES = """\
  rbim emulator
  rbim groups create --name "Product news" --type vip
  rbim groups detail g8 --json
  rbim invite members.csv --rate 50/s --dry-run
  rbim --profile production config show
"""

MORE = "Jobs use more exit codes: see `rbim invite --help`."
INDENT = "  "
NARROWEST, USUAL, WIDEST = 40, 80, 100  # characters in a line
EXIT = 7  # characters in the column of exit codes


def front_page() -> str:
    """Return the text of ``rbim --help``."""
    operations = {name: summary_of(kind) for name, kind in namespaces().items()}
    parts = {"Operations": {**operations, "operations": COMMANDS["operations"][1]}}
    parts |= {title: {name: COMMANDS[name][1] for name in names} for title, names in SECTIONS.items()}
    flags = {f"--{name} {value}": what for name, (value, what) in FLAGS.items()}
    flags |= {f"--{name}": what for name, what in SWITCHES.items()}
    flags |= {"--help, -h": "Show this help, or the help of a command."}
    parts["Flags, before or after any command"] = flags
    width = terminal_width()
    room = max(len(name) for part in parts.values() for name in part) + 4
    lines = ["Usage: rbim COMMAND", "", *textwrap.wrap(SUMMARY, width)]
    for title, part in parts.items():
        lines += ["", f"{title}:"]
        for name, what in part.items():
            lines += _beside(f"  {name}", textwrap.wrap(what, max(width - room, NARROWEST // 2)), room)
    lines += ["", "Examples:", EXAMPLES, "Exit codes:"]
    for code in Exit:
        lines += _beside(f"  {int(code)}", textwrap.wrap(code.meaning, width - EXIT), EXIT)
    lines += ["", *textwrap.wrap(MORE, width)]
    return "\n".join(lines) + "\n"


def terminal_width() -> int:
    """Return the width of the terminal, between NARROWEST and WIDEST; USUAL without one."""
    columns = terminal_columns(sys.stdout)
    return USUAL if columns is None else max(NARROWEST, min(columns, WIDEST))


def _beside(name: str, lines: list[str], room: int) -> list[str]:
    first, *more = lines or [""]
    return [f"{name:{room}}{first}".rstrip(), *(f"{'':{room}}{line}" for line in more)]
