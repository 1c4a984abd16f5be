"""``rbim dialect``: the fields of the dialect, with the flag, the values and the default of each."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Parameter

from rbim._support import json
from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.front_page import INDENT, terminal_width
from rbim.cli.printable import printable
from rbim.dialect_text import dialect_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rbim.dialect_text import DialectField

__all__ = ["dialect"]

INTRO = """\
The interface description is silent in some places and contradicts itself in others. Each such place is a field of the \
dialect. Set a field by its flag in any command, by an environment variable (RBIM_ and its name in capitals), or by its \
key in rbim.toml below [dialect] or [profiles.NAME.dialect]:"""
EXAMPLES = """\
  rbim invite members.csv --api-version 2016-08-15 --members-shape nested
  rbim groups detail g8 --zone Asia/Shanghai --codes 112399=Throttled
  export RBIM_API_VERSION=2016-08-15 RBIM_MEMBERS_SHAPE=nested
"""
TABLES = """\
KEY=VALUE changes entries of the default: KEY=none removes an entry, *=none removes all. Separate entries by commas, or \
repeat the flag. A list or a table can also be JSON. `rbim dialect FIELD` shows one field with all entries of its default, \
`rbim config show` the present values and their sources."""
PARTS = {
    "Client and emulator": "",
    "Emulator and receiver": "emulator and receiver",
    "Receiver of callbacks": "receiver",
    "Emulator": "emulator",
}
"""The parts of the list, and the only user of the choices in each."""

DETAIL = INDENT * 3


def dialect(
    *fields: str,
    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print a JSON list.")] = False,
) -> int:
    """List the fields of the dialect: flags, values and defaults, and the gap that each one settles.

    Parameters
    ----------
    fields
        Only these fields, with all entries of their defaults, such as members_shape.
    """
    from rbim.client.settings import nearest

    known = dialect_fields()
    names = {word: word.replace("-", "_") for word in fields}
    for word, name in names.items():
        if name not in known:
            print_error(f"{printable(word)}: the dialect has no such field; {nearest(name, known)}", "See: rbim dialect")
            return Exit.USAGE
    chosen = [known[name] for name in names.values()] or list(known.values())
    if as_json:
        from rbim.cli.json_output import show_json

        show_json([_row(field) for field in chosen])
        return Exit.DONE
    width = terminal_width()
    lines = _single(chosen, width) if names else _page(width)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return Exit.DONE


def _page(width: int) -> Iterator[str]:
    yield from textwrap.wrap(INTRO, width)
    yield from ("", *EXAMPLES.splitlines(), "")
    yield from textwrap.wrap(TABLES, width)
    for title, only in PARTS.items():
        yield from ("", f"{title}:")
        for field in dialect_fields().values():
            if field.gap.only == only:
                default = field.gap.default
                entries = len(cast("Mapping[str, object]", default)) if isinstance(default, Mapping) else 0
                yield from _about(field, f"{entries:,} entries" if entries else _default(field), width)


def _single(fields: Iterable[DialectField], width: int) -> Iterator[str]:
    """Yield the lines about a few fields, with all that is known of each."""
    for field in fields:
        gap, table = field.gap, isinstance(field.gap.default, Mapping)
        yield from _about(field, "" if table else _default(field), width)
        yield f"{DETAIL}Variable: {field.variable}"
        yield from _wrapped(f"Key in rbim.toml: {field.name}, below [dialect] or [profiles.NAME.dialect]", width)
        yield from _wrapped(f"Interface description: {gap.section}. Evidence grade: {gap.grade.value}", width)
        if table:
            yield f"{DETAIL}Default:"
            for key, document in cast("dict[str, object]", field.form.write_whole(gap.default)).items():
                row = json.dumps(document).decode() if isinstance(document, dict) else ""
                yield f"{DETAIL}{INDENT}{printable(f'{key}={row}' if row else field.form.spell({key: document}))}"


def _about(field: DialectField, default: str, width: int) -> Iterator[str]:
    choice = field.gap.choice
    yield f"{INDENT}{field.flag} {field.form.metavar}"
    yield from _wrapped(f"{choice[:1].upper()}{choice[1:]}{default and f' [default: {default}]'}", width)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=DETAIL, subsequent_indent=DETAIL)


def _default(field: DialectField) -> str:
    return printable(field.spell(field.write(field.gap.default)))


def _row(field: DialectField) -> dict[str, Any]:
    gap = field.gap
    return {
        "field": field.name,
        "flag": field.flag,
        "variable": field.variable,
        "key": f"dialect.{field.name}",
        "value": field.form.metavar,
        "choices": list(field.form.choices),
        "default": field.form.write_whole(gap.default),
        "settles": gap.choice,
        "only": gap.only,
        "section": gap.section,
        "grade": gap.grade.value,
    }
