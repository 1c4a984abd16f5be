"""``rbim dialect``: the fields of the dialect and the rules of the emulator, with the values and the default of each."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from rbim._support.text import printable
from rbim.choices import document_of, spelled
from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Json  # noqa: TC001  # cyclopts reads it
from rbim.cli.front_page import INDENT, terminal_width
from rbim.dialect import Dialect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.choices import Gap

__all__ = ["dialect"]

INTRO = """\
The interface description is silent in some places and contradicts itself in others. Each such place that a client, a \
receiver or a test can notice is a field. Set a field of the dialect by --dialect KEY=VALUE in any command, by RBIM_DIALECT \
(KEY=VALUE,KEY=VALUE), or in the configuration file below [dialect] or [profiles.NAME.dialect]; set a rule of the emulator \
by rbim emulator --rule KEY=VALUE."""
EXAMPLES = """\
  rbim invite members.csv --dialect members_shape=nested
  rbim groups detail g8 --dialect 'codes={"112399": "Throttled"}'
  export RBIM_DIALECT=zone=Asia/Shanghai,invite_limit=5
"""
TABLES = """\
A list is VALUE,VALUE or JSON. A table is JSON with the entries that differ from the default; "none" removes an entry. \
`rbim dialect FIELD` shows one field with all entries of its default, `rbim config show` the present values."""
RULES = "Rules of the emulator"
PARTS = {"": "Client and emulator", "emulator and receiver": "Emulator and receiver", "receiver": "Receiver of callbacks"}


def dialect(
    *fields: str,
    as_json: Annotated[Json, Parameter(help="Print a JSON list.")] = False,
) -> int:
    """List the fields of the dialect and the rules of the emulator: values, defaults, and the gap that each one settles.

    Parameters
    ----------
    fields
        Only these fields, with all entries of their defaults, such as members_shape.
    """
    from rbim.config import nearest
    from rbim.emulator.rules import Rules

    known = {gap.name: (PARTS[gap.only], gap) for gap in Dialect.gaps()} | {gap.name: (RULES, gap) for gap in Rules.gaps()}
    for name in fields:
        if name not in known:
            print_error(f"{printable(name)}: there is no such field; {nearest(name, known)}", "See: rbim dialect")
            return Exit.USAGE
    chosen = [known[name] for name in fields] or list(known.values())
    if as_json:
        from rbim.cli.json_output import show_json

        show_json([_row(part, gap) for part, gap in chosen])
        return Exit.DONE
    width = terminal_width()
    lines: list[str] = []
    if not fields:
        lines += [*textwrap.wrap(INTRO, width), "", *EXAMPLES.splitlines(), "", *textwrap.wrap(TABLES, width)]
    before = ""
    for part, gap in chosen:
        lines += ["", f"{part}:"] if part != before else []
        lines += _about(gap, width, whole=bool(fields))
        before = part
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return Exit.DONE


def _about(gap: Gap, width: int, *, whole: bool) -> Iterator[str]:
    indent = INDENT * 3
    given: Any = gap.default
    entries = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else dict[str, object]()
    default = f"{len(entries)} entries" if entries else spelled(document_of(given))
    choices = f" One of {', '.join(type(given))}." if isinstance(given, StrEnum) else ""
    text = f"{gap.settles[:1].upper()}{gap.settles[1:]}.{choices} [default: {printable(default)}]"
    yield f"{INDENT}{gap.name}"
    yield from textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)
    if whole:
        about = f"Interface description: {gap.section}. Evidence grade: {gap.grade.value}"
        yield from textwrap.wrap(about, width, initial_indent=indent, subsequent_indent=indent)
        yield from (f"{indent}{printable(f'{key}={spelled(document_of(each))}')}" for key, each in entries.items())


def _row(part: str, gap: Gap) -> dict[str, Any]:
    default = gap.default
    return {
        "field": gap.name,
        "part": part,
        "choices": list(type(default)) if isinstance(default, StrEnum) else [],
        "default": document_of(default, {}),
        "settles": gap.settles,
        "section": gap.section,
        "grade": gap.grade.value,
    }
