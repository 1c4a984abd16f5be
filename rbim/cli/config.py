"""``rbim config``: the settings, and the source of each."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.printable import printable, visible
from rbim.dialect_text import dialect_fields, flag_of
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from rbim.config.config import Config, Setting
    from rbim.config.files import ConfigFile, ConfigPlace, Ignored

__all__ = ["config", "path", "show", "trust", "untrust"]

HELP = """\
Show the configuration. Flags take precedence over environment variables, and these over a profile of rbim.toml: the nearest
file in the working directory or above it, then the user's file. Until you trust a project's file, it sets only rates, time
limits, the transport and the columns of an input.
"""
MASK = "***"
UNITS = {1.0: "s", 60.0: "min", 3600.0: "h"}

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print one JSON object.")]

config = App(name="config", help=HELP, help_format="markdown")


@config.command(sort_key=0)
def show(*, as_json: Json = False) -> int:
    """Show each setting and its source; tokens are masked. Missing settings are listed; they are not an error.

    Settings of a project's file that you do not trust are listed with the reason why rbim ignores them.
    """
    from rbim.cli.context import configuration
    from rbim.cli.json_output import show_json

    try:
        found = configuration()
    except RbimError as error:
        return report_error(error, "rbim config show")
    if as_json:
        settings = {
            key: {"value": _document(key, setting.value), "source": _source(setting), "missing": _is_missing(setting)}
            for key, setting in found.values.items()
        }
        ignored = [_ignored_document(each) for each in found.ignored]
        show_json({"profile": found.profile, "values": settings, "missing": list(found.missing), "ignored": ignored})
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
    if found.ignored:
        out.print()
        made = table("ignored", "reason", whole=("ignored",))
        for each in found.ignored:
            made.add_row(Text(printable(each.key or "all of it")), Text(printable(str(each))))
        out.print(made)
    for missing in found.missing:
        print_error(f"missing: {missing}")


@config.command(sort_key=1)
def path(*, as_json: Json = False) -> int:
    """Show the configuration files in order of precedence, whether each exists, and whether you trust it."""
    from rich.text import Text

    from rbim.cli.global_flags import current_flags
    from rbim.cli.json_output import show_json
    from rbim.cli.output import console, table
    from rbim.config.files import has_trust, places

    files = places(current_flags().config)
    if as_json:
        show_json(
            [
                {"kind": place.kind, "path": str(place.path), "exists": place.exists, "trusted": has_trust(place)}
                for place in files
            ]
        )
        return Exit.DONE
    made = table("kind", "exists", "trusted", "path", whole=("kind", "exists", "trusted"))
    for place in files:
        trusted = "yes" if has_trust(place) else "no" if place.exists else "-"
        made.add_row(place.kind, "yes" if place.exists else "no", trusted, Text(printable(str(place.path))))
    console().print(made)
    return Exit.DONE


@config.command(sort_key=2)
def trust(file: Path | None = None, /, *, as_json: Json = False) -> int:
    """Trust the present content of a project's file: from now on it sets addresses and credentials, too.

    Read the file first. Who writes it decides where your requests go, with signatures made with your token. If the content
    changes, the file is not trusted any more. The list of trusted files is in ~/.local/share/rbim/trusted.

    Parameters
    ----------
    file
        The file (default: the nearest rbim.toml in the working directory or above it).
    """
    from rbim.cli.json_output import show_json
    from rbim.config.files import trust as trust_file

    try:
        place = _project_file(file)
        found = trust_file(place)
    except RbimError as error:
        return report_error(error, "rbim config trust")
    sets = _permissions(found)
    if as_json:
        show_json({"path": str(place.path), "trusted": True, "sets": sets})
        return Exit.DONE
    lines = [f"  {key}: {value}" for key, value in sets.items()] or ["  it sets nothing that needs your trust"]
    return _print(f"trusted: {place.path}", *lines)


@config.command(sort_key=3)
def untrust(file: Path | None = None, /, *, as_json: Json = False) -> int:
    """Trust no content of a project's file any more.

    Parameters
    ----------
    file
        The file (default: the nearest rbim.toml in the working directory or above it).
    """
    from rbim.cli.json_output import show_json
    from rbim.config.trust import revoke

    try:
        place = _project_file(file)
        was_trusted = revoke(place.path)
    except RbimError as error:
        return report_error(error, "rbim config untrust")
    if as_json:
        show_json({"path": str(place.path), "trusted": False, "was_trusted": was_trusted})
        return Exit.DONE
    return _print(f"no longer trusted: {place.path}" if was_trusted else f"was not trusted: {place.path}")


def _print(*lines: str) -> Exit:
    sys.stdout.write("".join(f"{visible(line)}\n" for line in lines))
    return Exit.DONE


def _project_file(file: Path | None) -> ConfigPlace:
    from rbim.config.files import place_of_project

    place = place_of_project(file)
    if place is None or (file is None and not place.exists):
        raise InvalidRequest("there is no rbim.toml in the working directory or above it: name the file", field="config")
    return place


def _permissions(file: ConfigFile) -> dict[str, str]:
    """Return the settings, as text, that the file sets because it is trusted."""
    from rbim.client.settings import KEYS, TOKEN, TOKEN_FORMS
    from rbim.config.config import place_of_token

    found = {} if file.default is None else {"profile": file.default}
    for profile, settings in ((None, file.shared), *file.profiles.items()):
        for key, value in settings.items():
            if key not in KEYS or not KEYS[key].harmless:
                named = key in TOKEN_FORMS and key != TOKEN
                shown = place_of_token(key, value) if named else _spelled(key, value)
                found[f"{'' if profile is None else f'profiles.{profile}.'}{key}"] = shown
    return found


def _ignored_document(ignored: Ignored) -> dict[str, Any]:
    return {"file": str(ignored.file), "profile": ignored.profile, "key": ignored.key, "reason": ignored.cause}


def _text(setting: Setting) -> str:
    return _spelled(setting.key, setting.value)


def _spelled(key: str, value: Any) -> str:
    """Return the value of a setting as text."""
    from rbim.client.settings import DIALECT_KEYS

    document = _document(key, value)
    if key in DIALECT_KEYS:
        return dialect_fields()[DIALECT_KEYS[key]].spell(document)
    return ", ".join(document) if key == "rates" else "" if document is None else str(document)


def _document(key: str, value: Any) -> Any:  # JSON
    """Return the value of a setting as JSON; a token is masked, a mapping of the dialect has the changes of its default."""
    from rbim.client.settings import DIALECT_KEYS, TOKEN_FORMS

    if key in DIALECT_KEYS:
        return dialect_fields()[DIALECT_KEYS[key]].write(value)
    if value is None:
        return None
    if key in TOKEN_FORMS:
        return MASK
    if key == "rates":
        return [f"{rate.limit:g}/{UNITS.get(rate.per, f'{rate.per:g}s')}" for rate in value]
    if key == "callback_credentials_file" and not value.exists():
        return "a file that does not exist"  # its name may be a token, by mistake
    return value if isinstance(value, (str, int, float)) else str(value)


def _source(setting: Setting) -> str:
    if setting.source.argument:
        return f"flag {flag_of(setting.key.rpartition('.')[2])}"
    return "-" if _is_missing(setting) else str(setting)


def _is_missing(setting: Setting) -> bool:
    from rbim.client.settings import DIALECT_KEYS

    return setting.value is None and setting.key not in DIALECT_KEYS  # None is a value of the dialect
