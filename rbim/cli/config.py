"""``rbim config``: the settings, and the source of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.printable import printable
from rbim.dialect_text import dialect_fields, flag_of
from rbim.errors import RbimError

if TYPE_CHECKING:
    from rbim.config.config import Config, Setting

__all__ = ["config", "path", "show"]

HELP = """\
Show the configuration. Flags take precedence over environment variables, and these over a profile of rbim.toml: the nearest
file in the working directory or above it, then the user's file.
"""
MASK = "***"
UNITS = {1.0: "s", 60.0: "min", 3600.0: "h"}

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print one JSON object.")]

config = App(name="config", help=HELP, help_format="markdown")


@config.command(sort_key=0)
def show(*, as_json: Json = False) -> int:
    """Show each setting and its source; tokens are masked. Missing settings are listed; they are not an error."""
    from rbim.cli.context import configuration
    from rbim.cli.output import show_json

    try:
        found = configuration()
    except RbimError as error:
        return report_error(error, "rbim config show")
    if as_json:
        settings = {
            key: {"value": _document(setting), "source": _source(setting), "missing": _is_missing(setting)}
            for key, setting in found.values.items()
        }
        show_json({"profile": found.profile, "values": settings, "missing": list(found.missing)})
        return Exit.DONE
    _show(found)
    return Exit.DONE


def _show(found: Config) -> None:
    from rich.text import Text

    from rbim.cli.output import console, table
    from rbim.client.settings import DIALECT_KEYS

    out = console()
    out.print(Text(f"profile: {printable(found.profile or 'none')}"))
    dialect = {key: setting for key, setting in found.values.items() if key in DIALECT_KEYS}
    for settings in (found.values.keys() - dialect.keys(), dialect.keys()):
        out.print()
        made = table("key", "value", "source", whole=("key",))
        for key, setting in found.values.items():
            if key in settings:
                made.add_row(key, Text(printable(_text(setting)) or "-"), Text(printable(_source(setting))))
        out.print(made)
    for missing in found.missing:
        print_error(f"missing: {missing}")


@config.command(sort_key=1)
def path(*, as_json: Json = False) -> int:
    """Show the configuration files in order of precedence, and whether each exists."""
    from rich.text import Text

    from rbim.cli.global_flags import current_flags
    from rbim.cli.output import console, show_json, table
    from rbim.config.files import places

    files = places(current_flags().config)
    if as_json:
        show_json([{"kind": place.kind, "path": str(place.path), "exists": place.exists} for place in files])
        return Exit.DONE
    made = table("kind", "exists", "path", whole=("kind", "exists"))
    for place in files:
        made.add_row(place.kind, "yes" if place.exists else "no", Text(printable(str(place.path))))
    console().print(made)
    return Exit.DONE


def _text(setting: Setting) -> str:
    from rbim.client.settings import DIALECT_KEYS

    value = _document(setting)
    if setting.key in DIALECT_KEYS:
        return dialect_fields()[DIALECT_KEYS[setting.key]].spell(value)
    return ", ".join(value) if setting.key == "rates" else "" if value is None else str(value)


def _document(setting: Setting) -> Any:  # JSON
    """Return the value of a setting as JSON; a token is masked, a mapping of the dialect has the changes of its default."""
    from rbim.client.settings import DIALECT_KEYS, TOKEN_FORMS

    if setting.key in DIALECT_KEYS:
        return dialect_fields()[DIALECT_KEYS[setting.key]].write(setting.value)
    if setting.value is None:
        return None
    if setting.key in TOKEN_FORMS:
        return MASK
    if setting.key == "rates":
        return [f"{rate.limit:g}/{UNITS.get(rate.per, f'{rate.per:g}s')}" for rate in setting.value]
    return setting.value if isinstance(setting.value, (str, int, float)) else str(setting.value)


def _source(setting: Setting) -> str:
    if setting.source.argument:
        return f"flag {flag_of(setting.key.rpartition('.')[2])}"
    return "-" if _is_missing(setting) else str(setting)


def _is_missing(setting: Setting) -> bool:
    from rbim.client.settings import DIALECT_KEYS

    return setting.value is None and setting.key not in DIALECT_KEYS  # None is a value of the dialect
