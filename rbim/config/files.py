"""``rbim.toml``: find the files, read their profiles, and decide what they may set. No error raised here contains a token.

A project's file may come from another person, with a cloned repository. Until the user trusts it (:mod:`rbim.config.trust`),
it sets only harmless keys (:class:`rbim.client.settings.SettingKey`), and none if another user could have written it. A file
that the user names, and the user's own file, are trusted.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from attrs import evolve, field, frozen

from rbim.client.settings import DIALECT, DIALECT_KEYS, KEYS, TOKEN, TOKEN_FORMS, Sealed, key_of, nearest, unknown_key
from rbim.config.trust import is_trusted, remember, user_folder
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ConfigFile",
    "ConfigPlace",
    "Ignored",
    "has_trust",
    "place_of_project",
    "places",
    "read_file",
    "readable_by_others",
    "shown_profile",
    "trust",
]

NAME = "rbim.toml"
OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
TOP = ("profile", "profiles", DIALECT)
LONGEST = 64 * 1024  # bytes of a file
MOST_DOTS = 1000  # in a line: the time for a dotted key grows with the square of its parts
POSSIBLE_TOKEN = re.compile(r"'[^']{12,}'")
LONG_NAME = re.compile(r"(?=\S*[0-9])\S{14,}")
"""A part of a profile's name that may be a token; words only, such as production-europe, are shown."""


class ConfigPlace(NamedTuple):
    """A path that is searched for a file; ``kind`` is "given" (then it is the only one), "project" or "user"."""

    kind: str
    path: Path
    exists: bool


@frozen(kw_only=True)
class Ignored:
    """A setting that a project's file has and that rbim does not use, and the reason.

    ``key`` is None for the whole file, ``profile`` for a key outside of the profiles. ``readable``: it would count if the
    user trusted the file.
    """

    file: Path
    key: str | None = None
    profile: str | None = None
    cause: str
    readable: bool = True

    def __str__(self) -> str:
        place = str(self.file) if self.profile is None else f"{self.file} [profiles.{self.profile}]"
        return f"{place}: {self.cause}"


@frozen(kw_only=True)
class ConfigFile:
    """The content of one file: the name of its default profile, and the settings of each profile by key.

    ``shared`` are the settings of every profile: the table of the dialect at the top. ``ignored`` are the settings that the
    file may not make. ``exposed``: it contains a token, and other users can read it. ``trusted``: it is not limited to
    harmless settings.
    """

    path: Path
    default: str | None = field(default=None, repr=False)
    profiles: Mapping[str, Mapping[str, Any]] = field(default=MappingProxyType({}), repr=False)
    shared: Mapping[str, Any] = MappingProxyType({})
    ignored: tuple[Ignored, ...] = ()
    exposed: bool = False
    trusted: bool = True


def places(given: str | os.PathLike[str] | None = None) -> tuple[ConfigPlace, ...]:
    """Return the paths that are searched for files, in order of precedence.

    If ``given`` (default: ``RBIM_CONFIG``) is set, it is the only one. Otherwise: the nearest ``rbim.toml`` in the working
    directory or above it (if the user does not trust it, also the nearest one above that the user trusts), and the user's.
    """
    only = given or os.environ.get("RBIM_CONFIG")
    if only:
        path = Path(os.path.expanduser(only))  # noqa: PTH111  # Path.expanduser raises for an unknown home
        return (ConfigPlace("given", path.absolute(), path.is_file() or path.is_fifo()),)
    project, user = place_of_project(), _user()
    found = [] if project is None or (user is not None and _is_same(project.path, user)) else [project]
    if found and found[0].exists and not has_trust(found[0]) and (above := _trusted_above(found[0].path)) is not None:
        found.insert(0, above)  # a file in a folder of a trusted project must not take its place
    if user is not None:
        found.append(ConfigPlace("user", user, os.path.isfile(user)))  # noqa: PTH113  # never raises
    return tuple(found)


def _trusted_above(nearest: Path) -> ConfigPlace | None:
    above = (ConfigPlace("project", folder / NAME, exists=True) for folder in nearest.parent.parents)
    return next((place for place in above if has_trust(place)), None)


def place_of_project(file: Path | None = None) -> ConfigPlace | None:
    """Return a file as that of a project (default: the nearest one); None if the working directory does not exist."""
    try:
        path = _project() if file is None else file.parent.resolve() / file.name
    except OSError:
        path = None
    return None if path is None else ConfigPlace("project", path, os.path.isfile(path))  # noqa: PTH113  # never raises


def _project() -> Path | None:
    """Return the nearest file, or its path in the working directory; None if that directory does not exist."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    above = (folder / NAME for folder in (here, *here.parents))
    return next((path for path in above if os.path.isfile(path)), here / NAME)  # noqa: PTH113  # never raises


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one == other or one.samefile(other)
    except OSError:
        return False


def _user() -> Path | None:
    folder = user_folder("XDG_CONFIG_HOME", "~/.config", "config")
    return None if folder is None else folder / NAME


def read_file(place: ConfigPlace) -> ConfigFile:
    """Return the content of a file, with all its profiles checked, and without the settings that it may not set.

    Raises InvalidRequest that names the file and the wrong line or key. Also raises it for the user's file if another user
    owns it or can write to it: that user could redirect the application's requests.
    """
    found, cause = _read(place)
    # raised here, where no frame of the traceback holds a token
    if found is None:
        raise InvalidRequest(f"{place.path}: {cause}", field="config")
    return found


def trust(place: ConfigPlace) -> ConfigFile:
    """Trust the present content of a project's file, and return what it sets now. Raises InvalidRequest like read_file."""
    found, cause = _read(place, trusting=True)
    if found is None:
        raise InvalidRequest(f"{place.path}: {cause}", field="config")
    return found


def has_trust(place: ConfigPlace) -> bool:
    """Return whether all settings of a file count: of a project's file, if the user trusts it."""
    try:
        return place.exists and (place.kind != "project" or is_trusted(place.path, _open(place).content))
    except OSError:
        return False


def readable_by_others(path: Path) -> bool:
    """Return whether the group or all users can read a file; False on Windows."""
    try:
        return os.name == "posix" and bool(path.stat().st_mode & OTHERS_READ)
    except (OSError, ValueError):
        return False


# ------------------------------------------------------------------------------ the file


class _Opened(NamedTuple):
    """The content of a file, and what its descriptor says of it."""

    content: bytes
    unsafe: str  # the reason why another user could have written it
    exposed: bool  # other users can read it


def _read(place: ConfigPlace, *, trusting: bool = False) -> tuple[ConfigFile | None, str]:
    """Return a file, or None and the cause. Raises nothing whose traceback could show a token."""
    path, of_project = place.path, place.kind == "project"
    try:
        opened = _open(place)
    except OSError as error:
        cause = error.strerror or "it cannot be read"
        if not of_project or trusting:
            return None, cause
        return _unused(path, cause, readable=False), ""  # of another user, maybe, who must not stop every command here
    trusted = not of_project or trusting or is_trusted(path, opened.content)
    if opened.unsafe and place.kind == "user":
        return None, f"{opened.unsafe}; correct that, or name the file (--config, RBIM_CONFIG) to use it"
    if opened.unsafe and not trusted:
        return _unused(path, opened.unsafe, readable=opened.unsafe != NO_FILE), ""
    if opened.unsafe == NO_FILE:
        return None, NO_FILE
    if len(opened.content) > LONGEST:
        return None, f"it is longer than {LONGEST} bytes"
    found, cause = _parsed(path, opened.content)
    if found is None:
        return None, cause
    if trusting:
        remember(path, opened.content)
    found = evolve(found, exposed=opened.exposed and any(TOKEN in profile for profile in found.profiles.values()))
    return found if trusted else _harmless(found), ""


def _unused(path: Path, cause: str, *, readable: bool) -> ConfigFile:
    return ConfigFile(path=path, ignored=(Ignored(file=path, cause=cause, readable=readable),), trusted=False)


def _open(place: ConfigPlace) -> _Opened:
    """Open a file once, and return its content and its rights, both of the same descriptor."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    linked = False
    if place.kind == "given":
        descriptor = os.open(place.path, flags)
    else:
        flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe in its place must not block
        try:
            descriptor = os.open(place.path, flags | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.EMLINK}:
                raise
            descriptor, linked = os.open(place.path, flags), True
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        unsafe = "" if place.kind == "given" else _unsafe(found)
        if linked and place.kind == "project":
            unsafe = unsafe or "it is a symbolic link"
        if place.kind != "given" and not unsafe and found.st_mode & stat.S_IWGRP and _has_acl(descriptor):
            unsafe = UNSAFE_GROUP
        content = b"" if unsafe == NO_FILE else stream.read(LONGEST + 1)
    return _Opened(content, unsafe, os.name == "posix" and bool(found.st_mode & OTHERS_READ))


def _unsafe(found: os.stat_result) -> str:
    """Return the reason why another user could have written a file. Empty if there is none."""
    if not stat.S_ISREG(found.st_mode):
        return NO_FILE
    if os.name != "posix":
        return ""
    if found.st_uid not in {os.getuid(), 0}:
        return "it belongs to another user"
    if found.st_mode & stat.S_IWOTH:
        return "all users can write to it"
    if found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        return UNSAFE_GROUP
    return ""


NO_FILE = "it is no file"
UNSAFE_GROUP = "its group can write to it"


def _has_acl(descriptor: int) -> bool:
    """Return whether an access control list says more than the mode, whose group bits are then a mask for other users."""
    try:
        return bool(os.getxattr(descriptor, "system.posix_acl_access")) if hasattr(os, "getxattr") else False
    except OSError:
        return False


def _is_private_group(group: int, user: int) -> bool:
    """Return whether a group is the one that many systems give each user: of the user's name, with no other member."""
    import grp
    import pwd

    try:
        owner, found = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:
        return False
    if owner.pw_gid != group or owner.pw_name != found.gr_name or not set(found.gr_mem) <= {owner.pw_name}:
        return False
    return not any(each.pw_gid == group and each.pw_uid != user for each in pwd.getpwall())


def _parsed(path: Path, content: bytes) -> tuple[ConfigFile | None, str]:
    import tomllib

    for number, line in enumerate(content.splitlines(), 1):
        if line.count(b".") > MOST_DOTS:
            return None, f"line {number} has too many dots"
    try:
        return _checked(path, tomllib.loads(content.decode("utf-8-sig")))
    except UnicodeDecodeError:
        return None, "it is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        return None, POSSIBLE_TOKEN.sub("'***'", str(error).partition("\n")[0])
    except RecursionError:
        return None, "it is nested too deeply"
    except ValueError:  # an integer with thousands of digits
        return None, "it has a number with too many digits"
    except Exception as error:  # a traceback from here would show the content
        return None, f"it cannot be used ({type(error).__name__})"


def _harmless(file: ConfigFile) -> ConfigFile:
    """Return a file with its harmless settings only."""
    cause = "this file is not trusted"
    ignored = [Ignored(file=file.path, key="profile", cause=cause)] if file.default else []
    ignored += _ignored(file.shared, file.path, None, cause)
    profiles: dict[str, Mapping[str, Any]] = {}
    for name, settings in file.profiles.items():
        profiles[name] = MappingProxyType({key: value for key, value in settings.items() if _is_harmless(key)})
        ignored += _ignored(settings, file.path, name, cause)
    return evolve(file, default=None, shared={}, profiles=MappingProxyType(profiles), ignored=tuple(ignored), trusted=False)


def _ignored(settings: Mapping[str, Any], path: Path, profile: str | None, cause: str) -> Iterator[Ignored]:
    for key in settings:
        if not _is_harmless(key):
            yield Ignored(file=path, key=key, profile=profile, cause=cause)


def _is_harmless(key: str) -> bool:
    return key in KEYS and KEYS[key].harmless


# ------------------------------------------------------------------------------ its content


def _checked(path: Path, document: dict[str, Any]) -> tuple[ConfigFile | None, str]:
    for name in document:
        if name in KEYS:
            return None, f"{name} is outside of a profile; move it below [profiles.NAME]"
        if name not in TOP:
            return None, f"unknown key {unknown_key(name, TOP)}; {_misplaced(name, f'[{DIALECT}]') or nearest(name, TOP)}"
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
            return None, f"profiles.{shown_profile(name)}: a table is needed, [profiles.{shown_profile(name)}]"
        settings, cause = _settings(name, cast("dict[str, object]", table), path.parent)
        if settings is None:
            return None, f"profiles.{shown_profile(name)}.{cause}"
        read[name] = MappingProxyType(settings)
    return ConfigFile(path=path, default=default, profiles=MappingProxyType(read), shared=shared), ""


def shown_profile(profile: str) -> str:
    """Return the name of a profile for a message, without what may be a token in the wrong place."""
    return LONG_NAME.sub("***", profile)


def _settings(profile: str, table: dict[str, object], base: Path) -> tuple[dict[str, Any] | None, str]:
    settings, cause = _dialect(table.get(DIALECT, {}))
    if settings is None:
        return None, cause
    for name, value in table.items():
        if name == DIALECT:
            continue
        if name not in KEYS:
            place = _misplaced(name, f"[profiles.{shown_profile(profile)}.{DIALECT}]")
            known = (*KEYS, *DIALECT_KEYS.values(), DIALECT) if place else (*KEYS, DIALECT)
            return None, f"{unknown_key(name, known)}: unknown key; {place or nearest(name, known)}"
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
            shown = unknown_key(name, DIALECT_KEYS.values())
            return None, f"{DIALECT}.{shown}: unknown key; {nearest(name, DIALECT_KEYS.values())}"
        settings[key], cause = key_of(key).value(Sealed(value), Path())
        if cause:
            return None, f"{key}: {cause}"
    return settings, ""


def _misplaced(name: str, place: str) -> str:
    return f"it belongs to the dialect: move it below {place}" if name in DIALECT_KEYS.values() else ""
