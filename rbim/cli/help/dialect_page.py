"""``rbim dialect``: the fields of the dialect, with the flag, the values and the default of each."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from rbim.cli.exit_codes import Exit
from rbim.cli.help.front_page import INDENT, terminal_width
from rbim.cli.printable import printable
from rbim.dialect_text import dialect_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.dialect_text import DialectField

__all__ = ["dialect"]

INTRO = """\
The interface description is silent in some places and contradicts itself in others. Each such place is a field of the \
dialect. Set a field by its flag in any command, by an environment variable (RBIM_ and its name in capitals), or by its \
key in rbim.toml below [dialect] or [profiles.NAME.dialect]:"""
EXAMPLES = """\
  rbim invite members.csv --version 2016-08-15 --members-shape nested
  rbim groups detail g8 --zone Asia/Shanghai --codes 112399=Throttled
  export RBIM_VERSION=2016-08-15 RBIM_MEMBERS_SHAPE=nested
"""
TABLES = """\
KEY=VALUE changes entries of the default: KEY=none removes an entry, *=none removes all. Separate entries by commas, or \
repeat the flag. A list or a table can also be JSON. `rbim config show` shows the present values and their sources."""

DETAIL = INDENT * 3


def dialect(
    *, as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print a JSON list.")] = False
) -> int:
    """List the fields of the dialect: flags, values and defaults, and the gap that each one settles."""
    if as_json:
        from rbim.cli.output import show_json

        show_json([_row(field) for field in dialect_fields().values()])
        return Exit.DONE
    sys.stdout.write("".join(f"{line}\n" for line in _page(terminal_width())))
    return Exit.DONE


def _page(width: int) -> Iterator[str]:
    yield from textwrap.wrap(INTRO, width)
    yield from ("", *EXAMPLES.splitlines(), "")
    yield from textwrap.wrap(TABLES, width)
    parts = {"Client and emulator": False, "Emulator only": True}
    for title, emulator_only in parts.items():
        yield from ("", f"{title}:")
        for field in dialect_fields().values():
            if field.gap.emulator_only is emulator_only:
                yield f"{INDENT}{field.flag} {field.form.metavar}"
                yield from textwrap.wrap(_about(field), width, initial_indent=DETAIL, subsequent_indent=DETAIL)


def _about(field: DialectField) -> str:
    choice, default = field.gap.choice, field.gap.default
    entries = len(cast("Mapping[str, object]", default)) if isinstance(default, Mapping) else 0
    shown = f"{entries:,} entries" if entries else printable(field.spell(field.write(default)))
    return f"{choice[:1].upper()}{choice[1:]} [default: {shown}]"


def _row(field: DialectField) -> dict[str, Any]:
    gap = field.gap
    return {
        "field": field.name,
        "flag": field.flag,
        "variable": field.variable,
        "key": f"dialect.{field.name}",
        "value": field.form.metavar,
        "default": field.write(gap.default),
        "settles": gap.settles,
        "section": gap.section,
        "grade": gap.grade.value,
    }
