"""``rbim config``: the settings, and the source of each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rbim._support.text import printable, visible
from rbim.choices import document_of, spelled
from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Json  # cyclopts reads it
from rbim.dialect import Dialect

if TYPE_CHECKING:
    from rbim.config import Setting

__all__ = ["config", "path", "show"]

HELP = """\
Show the configuration. Flags take precedence over environment variables, and these over a profile of the configuration
file: the one that --config or RBIM_CONFIG names, or your own. No file of the working directory is read unless you name it.
"""
MASK = "***"
UNITS = {1.0: "s", 60.0: "min", 3600.0: "h"}

OneObject = Annotated[Json, Parameter(help="Print one JSON object.")]

config = App(name="config", help=HELP, help_format="markdown")


@config.command(sort_key=0)
def show(*, as_json: OneObject = False) -> int:
    """Show each setting and its source; tokens are masked. Missing settings are listed; they are not an error."""
    from rbim.cli.context import configuration
    from rbim.cli.json_output import show_json
    from rbim.cli.output import print_rows
    from rbim.config import DIALECT_KEYS

    found = configuration()
    if as_json:
        settings = {
            key: {"value": _document(key, setting.value), "source": _source(setting), "missing": _source(setting) == "-"}
            for key, setting in found.values.items()
        }
        show_json({"profile": found.profile, "values": settings, "missing": list(found.missing)})
        return Exit.DONE
    sys.stdout.write(f"profile: {printable(found.profile or 'none')}\n")
    parts: tuple[list[dict[str, str]], ...] = ([], [])
    for key, setting in found.values.items():
        document = _document(setting.key, setting.value)
        text = ", ".join(document) if key == "rates" else "" if document is None else spelled(document)
        parts[key in DIALECT_KEYS].append({"key": key, "value": text, "source": _source(setting)})
    for rows in parts:
        sys.stdout.write("\n")
        print_rows(rows, whole=("key",))
    for missing in found.missing:
        print_error(f"missing: {missing}")
    return Exit.DONE


@config.command(sort_key=1)
def path(*, as_json: OneObject = False) -> int:
    """Show which configuration file is read, and whether it exists."""
    from rbim.cli.global_flags import current_flags
    from rbim.cli.json_output import show_json
    from rbim.config import place_of_file

    place = place_of_file(current_flags().config)
    if as_json:
        show_json(place)
    elif place is None:
        sys.stdout.write("no file: there is no home directory; name a file with --config\n")
    else:
        sys.stdout.write(f"{visible(str(place.path))}{'' if place.exists else ' (does not exist)'}\n")
    return Exit.DONE


def _document(key: str, value: Any) -> Any:  # JSON
    """Return the value of a setting as JSON; a token is masked, a mapping of the dialect has the changes of its default."""
    from rbim.config import DIALECT_KEYS, TOKEN_FORMS

    if key in DIALECT_KEYS:
        return document_of(value, getattr(Dialect(), DIALECT_KEYS[key]))
    if value is None:
        return None
    if key in TOKEN_FORMS:
        return MASK
    if key == "rates":
        shared = [f"@{rate.shared}" if rate.shared else "" for rate in value]
        plain = [f"{rate.limit:g}/{UNITS.get(rate.per, f'{rate.per:g}s')}" for rate in value]
        return [f"{each}{where}" for each, where in zip(plain, shared, strict=True)]
    if key == "callback_credentials_file" and not value.exists():
        return "a file that does not exist"  # its name may be a token, by mistake
    return value if isinstance(value, (str, int, float)) else str(value)


def _source(setting: Setting) -> str:
    if setting.source == "argument":
        return f"flag --{setting.key.partition('.')[0].replace('_', '-')}"
    return "-" if setting.value is None and "." not in setting.key else str(setting)  # None is a value of the dialect
