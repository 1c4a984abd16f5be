"""``rbim.toml``: find the files and read their profiles. No error raised here contains a token."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from attrs import field, frozen

from rbim.client.settings import DIALECT, DIALECT_KEYS, KEYS, TOKEN, TOKEN_FORMS, Sealed, key_of, nearest
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ConfigFile", "ConfigPlace", "places", "read_file", "readable_by_others"]

NAME = "rbim.toml"
OTHERS = stat.S_IRGRP | stat.S_IROTH
TOP = ("profile", "profiles", DIALECT)


class ConfigPlace(NamedTuple):
    """A path that is searched for a file; ``kind`` is "given" (then it is the only one), "project" or "user"."""

    kind: str
    path: Path
    exists: bool


@frozen(kw_only=True)
class ConfigFile:
    """The content of one file: the name of its default profile, and the settings of each profile by key.

    ``shared`` are the settings of every profile: the table of the dialect at the top.
    """

    path: Path
    default: str | None
    profiles: Mapping[str, Mapping[str, Any]] = field(repr=False)
    shared: Mapping[str, Any]

    @property
    def holds_token(self) -> bool:
        """Whether the file itself contains a token."""
        return any(TOKEN in profile for profile in self.profiles.values())


def places(given: str | os.PathLike[str] | None = None) -> tuple[ConfigPlace, ...]:
    """Return the paths that are searched for files, in order of precedence.

    If ``given`` (default: ``RBIM_CONFIG``) is set, it is the only one. Otherwise: the nearest ``rbim.toml`` in the working
    directory or above it, and the user's.
    """
    only = given or os.environ.get("RBIM_CONFIG")
    if only:
        path = Path(os.path.expanduser(only))  # noqa: PTH111  # Path.expanduser raises for an unknown home
        return (ConfigPlace("given", path.absolute(), path.is_file() or path.is_fifo()),)
    project, user = _project(), _user()
    found = [] if project is None else [ConfigPlace("project", project, os.path.isfile(project))]  # noqa: PTH113  # never raises
    if user is not None and user != project:
        found.append(ConfigPlace("user", user, os.path.isfile(user)))  # noqa: PTH113  # never raises
    return tuple(found)


def _project() -> Path | None:
    """Return the nearest file, or its path in the working directory; None if that directory does not exist."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    above = (folder / NAME for folder in (here, *here.parents))
    return next((path for path in above if os.path.isfile(path)), here / NAME)  # noqa: PTH113  # never raises


def _user() -> Path | None:
    folder = None if sys.platform == "linux" else _folder_by_platformdirs()  # on Linux it would be the same, but slow
    if folder is None:
        home = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(home if Path(home).is_absolute() else os.path.expanduser("~/.config")) / "rbim"  # noqa: PTH111
    return folder / NAME if folder.is_absolute() else None


def _folder_by_platformdirs() -> Path | None:
    try:
        from platformdirs import user_config_path
    except ModuleNotFoundError:
        return None
    return user_config_path("rbim", appauthor=False)


def read_file(place: ConfigPlace) -> ConfigFile:
    """Return the content of a file, with all its profiles checked.

    Raises InvalidRequest that names the file and the wrong line or key. Also raises it for a file that was found, not
    given, if it belongs to another user or every user can write to it: it could redirect the application's requests.
    """
    if place.kind != "given" and (cause := _untrusted(place.path)):
        raise InvalidRequest(f"{place.path}: {cause}; name it (--config, RBIM_CONFIG) to use it", field="config")
    found, cause = _read(place.path)
    # raised here, where no frame of the traceback holds a token
    if found is None:
        raise InvalidRequest(f"{place.path}: {cause}", field="config")
    return found


def readable_by_others(path: Path) -> bool:
    """Return whether the group or all users can read a file; False on Windows."""
    try:
        return os.name == "posix" and bool(path.stat().st_mode & OTHERS)
    except OSError:
        return False


def _untrusted(path: Path) -> str:
    """Return the reason not to trust a file: another user could have written it. Empty if there is none."""
    if os.name != "posix":
        return ""
    found = path.stat()
    if found.st_uid not in {os.getuid(), 0}:
        return "the file belongs to another user"
    return "all users can write to the file" if found.st_mode & stat.S_IWOTH else ""


def _read(path: Path) -> tuple[ConfigFile | None, str]:
    import tomllib

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
            return None, f"{name} is outside of a profile; move it below [profiles.NAME]"
        if name not in TOP:
            return None, f"unknown key {name}; {_misplaced(name, f'[{DIALECT}]') or nearest(name, TOP)}"
    shared, cause = _dialect(document.get(DIALECT, {}))
    if shared is None:
        return None, cause
    default, profiles = document.get("profile"), document.get("profiles", {})
    if "profile" in document and not (isinstance(default, str) and default):
        return None, "profile: the name of the default profile is needed, a text"
    if not isinstance(profiles, dict):
        return None, "profiles: tables are needed, [profiles.NAME]"
    read: dict[str, Mapping[str, Any]] = {}
    for name, table in cast("dict[str, object]", profiles).items():
        if not isinstance(table, dict):
            return None, f"profiles.{name}: a table is needed, [profiles.{name}]"
        settings, cause = _settings(name, cast("dict[str, object]", table), path.parent)
        if settings is None:
            return None, f"profiles.{name}.{cause}"
        read[name] = MappingProxyType(settings)
    return ConfigFile(path=path, default=default, profiles=MappingProxyType(read), shared=shared), ""


def _settings(profile: str, table: dict[str, object], base: Path) -> tuple[dict[str, Any] | None, str]:
    settings, cause = _dialect(table.get(DIALECT, {}))
    if settings is None:
        return None, cause
    for name, value in table.items():
        if name == DIALECT:
            continue
        if name not in KEYS:
            place = _misplaced(name, f"[profiles.{profile}.{DIALECT}]")
            return None, f"{name}: unknown key; {place or nearest(name, (*KEYS, DIALECT))}"
        settings[name], cause = KEYS[name].value(Sealed(value), base)
        if cause:
            return None, f"{name}: {cause}"
    forms = [name for name in TOKEN_FORMS if name in settings]
    if len(forms) > 1:
        return None, f"{forms[1]}: {forms[0]} is set too; keep only one of them"
    return settings, ""


def _dialect(table: object) -> tuple[dict[str, Any] | None, str]:
    """Return the settings of a table with fields of the dialect."""
    if not isinstance(table, dict):
        return None, f"{DIALECT}: a table is needed, [{DIALECT}]"
    settings: dict[str, Any] = {}
    for name, value in cast("dict[str, object]", table).items():
        key = f"{DIALECT}.{name}"
        if key not in DIALECT_KEYS:
            return None, f"{key}: unknown key; {nearest(name, DIALECT_KEYS.values())}"
        settings[key], cause = key_of(key).value(Sealed(value), Path())
        if cause:
            return None, f"{key}: {cause}"
    return settings, ""


def _misplaced(name: str, place: str) -> str:
    return f"it belongs to the dialect: move it below {place}" if name in DIALECT_KEYS.values() else ""
