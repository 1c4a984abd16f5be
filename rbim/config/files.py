"""``rbim.toml``: which files there are, and what their profiles say. No token is ever in an error that is raised here."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from attrs import field, frozen

from rbim.config.keys import KEYS, TOKEN, TOKEN_FORMS, Sealed, nearest
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ConfigFile", "ConfigPlace", "places", "read_file", "readable_by_others"]

NAME = "rbim.toml"
OTHERS = stat.S_IRGRP | stat.S_IROTH
TOP = ("profile", "profiles")


@frozen
class ConfigPlace:
    """Where a file is looked for: ``kind`` is "told" (and then there is no other), "project" or "user"."""

    kind: str
    path: Path
    exists: bool


@frozen(kw_only=True)
class ConfigFile:
    """What one file says: the name of its default profile, and the settings of each profile by key."""

    path: Path
    default: str | None
    profiles: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def holds_token(self) -> bool:
        """Whether a token stands in the file itself."""
        return any(TOKEN in profile for profile in self.profiles.values())


def places(told: str | os.PathLike[str] | None = None) -> tuple[ConfigPlace, ...]:
    """Return where files are looked for, the one that goes before the others first.

    ``told``, else ``RBIM_CONFIG``, is the only one where it is given; otherwise these are the nearest ``rbim.toml`` in the
    working directory or above it, and the user's.
    """
    given = told or os.environ.get("RBIM_CONFIG")
    if given:
        path = Path(os.path.expanduser(given))  # noqa: PTH111  # pathlib's raises where there is no such home
        return (ConfigPlace("told", path.absolute(), path.is_file() or path.is_fifo()),)
    project, user = _project(), _user()
    found = [] if project is None else [ConfigPlace("project", project, os.path.isfile(project))]  # noqa: PTH113  # never raises
    if user is not None and user != project:
        found.append(ConfigPlace("user", user, os.path.isfile(user)))  # noqa: PTH113  # never raises
    return tuple(found)


def _project() -> Path | None:
    """Return the nearest file, or where it would be in the working directory; None where there is no such directory."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    above = (folder / NAME for folder in (here, *here.parents))
    return next((path for path in above if os.path.isfile(path)), here / NAME)  # noqa: PTH113  # never raises


def _user() -> Path | None:
    try:
        from platformdirs import user_config_path
    except ModuleNotFoundError:
        home = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(home if Path(home).is_absolute() else os.path.expanduser("~/.config")) / "rbim"  # noqa: PTH111
    else:
        folder = user_config_path("rbim", appauthor=False)
    return folder / NAME if folder.is_absolute() else None


def read_file(place: ConfigPlace) -> ConfigFile:
    """Return what a file says, all of its profiles checked.

    Raises InvalidRequest that names the file and the line, or the key, that is wrong; and where a file that was found, and
    not named by anybody, belongs to somebody else or may be written to by everybody: it could send the application's
    requests wherever they like.
    """
    if place.kind != "told" and (why := _not_ours(place.path)):
        raise InvalidRequest(f"{place.path}: {why}; name it (--config, RBIM_CONFIG) if it is to be used", field="config")
    found, why = _read(place.path)
    # raised out here: what reads the file has tokens in its frames
    if found is None:
        raise InvalidRequest(f"{place.path}: {why}", field="config")
    return found


def readable_by_others(path: Path) -> bool:
    """Whether the group or everybody may read a file (never on Windows, whose rules are others)."""
    try:
        return os.name == "posix" and bool(path.stat().st_mode & OTHERS)
    except OSError:
        return False


def _not_ours(path: Path) -> str:
    """Return why a file may say what somebody else wants, or nothing."""
    if os.name != "posix":
        return ""
    found = path.stat()
    if found.st_uid not in {os.getuid(), 0}:
        return "the file belongs to another user"
    return "everybody may write to the file" if found.st_mode & stat.S_IWOTH else ""


def _read(path: Path) -> tuple[ConfigFile | None, str]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except OSError as error:
        return None, error.strerror or "it cannot be read"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return None, str(error).partition("\n")[0]
    return _checked(path, document)


def _checked(path: Path, document: dict[str, Any]) -> tuple[ConfigFile | None, str]:
    for name in document:
        if name in KEYS:
            return None, f"{name} stands outside of a profile; it belongs below [profiles.NAME]"
        if name not in TOP:
            return None, f"unknown key {name}; {nearest(name, TOP)}"
    default, profiles = document.get("profile"), document.get("profiles", {})
    if "profile" in document and not (isinstance(default, str) and default):
        return None, "profile: the name of the default profile is needed, a text"
    if not isinstance(profiles, dict):
        return None, "profiles: tables are needed, [profiles.NAME]"
    read: dict[str, Mapping[str, Any]] = {}
    for name, table in cast("dict[str, object]", profiles).items():
        if not isinstance(table, dict):
            return None, f"profiles.{name}: a table is needed, [profiles.{name}]"
        settings, why = _settings(cast("dict[str, object]", table), path.parent)
        if settings is None:
            return None, f"profiles.{name}.{why}"
        read[name] = MappingProxyType(settings)
    return ConfigFile(path=path, default=default, profiles=MappingProxyType(read)), ""


def _settings(table: dict[str, object], base: Path) -> tuple[dict[str, Any] | None, str]:
    settings: dict[str, Any] = {}
    for name, value in table.items():
        if name not in KEYS:
            return None, f"{name}: unknown key; {nearest(name, KEYS)}"
        settings[name], why = KEYS[name].value(Sealed(value), base)
        if why:
            return None, f"{name}: {why}"
    forms = [name for name in TOKEN_FORMS if name in settings]
    if len(forms) > 1:
        return None, f"{forms[1]}: there is {forms[0]} too; one of them says what the token is"
    return settings, ""
