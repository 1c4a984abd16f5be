"""Configuration, in order of precedence: arguments, environment variables, one file with profiles.

::

    profile = "test"                    # the default profile

    [profiles.test]
    base_url = "https://gw.example:8883"
    app_id = "..."
    token_file = "test.token"           # beside this file

    [profiles.test.dialect]             # fields of the dialect; [dialect] holds those of every profile
    api_version = "2016-08-15"

A file is read only if it is named (``--config``, ``RBIM_CONFIG``, ``load(file=...)``) or is the user's own. None is looked
for in the working directory, so that a cloned project cannot redirect requests that the user's token signs.

No error raised here contains a token, not even one under a wrong key, and no frame of its traceback holds one
(``_shielded``).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import stat
import sys
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypedDict, TypeGuard, TypeVar, cast

from attrs import evolve, field, fields, frozen

from rbim._support.text import one_line, quoted, quoted_key
from rbim.choices import read_value
from rbim.client.limits import Limits
from rbim.credentials import Credentials, Secret, credentials_in, token_in
from rbim.dialect import Dialect
from rbim.errors import InvalidRequest
from rbim.transports import TRANSPORTS
from rbim.validators import origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Unpack

    from rbim.client.client import AsyncClient, ClientOptions
    from rbim.client.limits import Rate

__all__ = [
    "Config",
    "ConfigOptions",
    "ConfigPlace",
    "Setting",
    "callback_credentials_from_env",
    "credentials_from_env",
    "environment",
    "load",
    "nearest",
    "pairs_of",
    "place_of_file",
]

logger = logging.getLogger("rbim")

TOKEN = "app_token"  # noqa: S105  # the name of a key
TOKEN_FORMS = (TOKEN, "token_file", "token_env")
"""The keys for the token or its location; each source may have only one of them."""

DIALECT = "dialect"
FIELDS = [each.name for each in fields(Dialect)]
DIALECT_KEYS = MappingProxyType({f"{DIALECT}.{name}": name for name in FIELDS})
"""The keys of the dialect's fields as settings, and the fields."""

DEFAULT, ARGUMENT = "default", "argument"
NAME = "rbim.toml"
MAX_WORD = 100  # characters of a word that is compared with known words
OTHERS_READ = stat.S_IRGRP | stat.S_IROTH
POSSIBLE_TOKEN = re.compile(r"'[^']{12,}'")
LONG_NAME = re.compile(r"(?=\S*[0-9])\S{14,}")
"""A part of a profile's name that may be a token; words only, such as production-europe, are shown."""

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")


# ------------------------------------------------------------------------------ the keys


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("a text is needed, not empty and without NUL characters")
    return value


def _secret(value: object) -> Secret:
    return value if isinstance(value, Secret) else Secret(_text(value))


def _user_agent(value: object) -> str:
    if not (_text(value).isascii() and str(value).isprintable()):
        raise ValueError("a text of printable ASCII is needed, such as 'shop/1.2'")
    return str(value)


def _path(value: object) -> Path:
    text = _text(os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value)
    return Path(os.path.expanduser(text))  # noqa: PTH111  # Path.expanduser raises for an unknown home


def _variable(value: object) -> str:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", _text(value)):
        raise ValueError("the name of an environment variable is needed")
    return str(value)


def _rates(value: object) -> tuple[Rate, ...]:
    entries = [each.strip() for each in value.split(",") if each.strip()] if isinstance(value, str) else value
    return Limits(rates=cast("Any", entries)).rates


def _transport(value: object) -> str:
    if value not in TRANSPORTS:
        raise ValueError(f"{quoted(value)} is not a transport; {nearest(value, TRANSPORTS)}")
    return str(value)


KEYS: Mapping[str, Callable[[object], Any]] = MappingProxyType(
    {
        "base_url": origin,
        "call_base_url": origin,
        "app_id": _text,
        "app_token": _secret,
        "token_file": _path,
        "token_env": _variable,
        "user_name": _text,
        "user_agent": _user_agent,
        "transport": _transport,
        "concurrency": partial(read_value, kind=int),
        "rates": _rates,
        "timeout": partial(read_value, kind=float),
        "deadline": partial(read_value, kind=float),
        "callback_credentials_file": _path,
        "group_column": _text,
        "account_column": _text,
        "user_name_column": _text,
    }
)
"""The keys of a profile but those of the dialect, and the reader of each, which raises ValueError with what is needed."""

COLUMNS = ("group_column", "account_column", "user_name_column")
"""The keys for the columns of a job's input."""

VARIABLES = MappingProxyType(
    {key: f"RBIM_{key.upper()}" for key in KEYS if key != "token_env"} | {"token_file": "RBIM_APP_TOKEN_FILE"}
)
"""The environment variable of each key; RBIM_DIALECT has the fields of the dialect."""


def _shielded(call: Callable[P, R]) -> Callable[P, R]:
    """Raise an InvalidRequest of a function anew: no frame of its traceback then holds a token under a wrong key."""

    @wraps(call)
    def shielded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except InvalidRequest as error:
            wrong = InvalidRequest(error.message, field=error.field)
        args, kwargs = cast("Any", ()), cast("Any", {})
        raise wrong

    return shielded


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the most similar known word, or all known words."""
    from difflib import get_close_matches

    words = list(known)
    found = get_close_matches(word, words, n=1) if isinstance(word, str) and len(word) <= MAX_WORD else []
    return f"did you mean {found[0]}?" if found else f"known are {', '.join(words)}"


def _require_known(names: Iterable[str], known: Sequence[str], where: str, field: str = "") -> None:
    """Raise InvalidRequest for the first unknown key; of one that may be a secret, only its length is shown."""
    for name in names:
        if name not in known:
            hint = nearest(name, known)
            shown = name if hint.startswith("did you mean") else quoted_key(name)
            raise InvalidRequest(f"{where}{shown}: unknown key; {hint}", field=field or shown)


@_shielded
def pairs_of(text: str, where: str, known: Sequence[str]) -> dict[str, str]:
    """Return the fields in a text such as ``zone=+08:00,invite_limit=5``.

    A value ends where its JSON does, or at a comma before the next ``KEY=``. Raises InvalidRequest that names ``where``.
    """
    found: dict[str, str] = {}
    while text:
        key, equals, text = text.partition("=")
        key = key.strip()
        if not equals or key in found:
            cause = f"{quoted_key(key)} is given twice" if equals else "KEY=VALUE is needed"
            raise InvalidRequest(f"{where}: {cause}", field=where)
        following = re.search(r",(?=\s*\w+=)", text)
        end = following.start() if following else len(text)
        with suppress(ValueError):
            end = json.JSONDecoder().raw_decode(text)[1] if text.startswith(("[", "{")) else end
        found[key], text = text[:end].strip(), text[end:].lstrip(", ")
    _require_known(found, known, f"{where}: ", where)
    return found


# ------------------------------------------------------------------------------ the configuration


@frozen
class Setting:
    """A value, its ``key``, for example ``token_file`` for a token in a file, and its source.

    ``source`` is "argument", "default", a variable such as RBIM_TIMEOUT, or a file with the place in it, such as
    ``/srv/rbim.toml: profiles.test.timeout``.
    """

    key: str
    value: Any = field(repr=False)  # a path may be a token, by mistake
    source: str

    def __str__(self) -> str:
        # a missing file or variable is not named: its name may be the token itself, by mistake
        if self.key == "token_file":
            where = f"the file {self.value}" if Path(self.value).exists() else "a file that does not exist"
        elif self.key == "token_env":
            where = f"environment variable {self.value}" if self.value in os.environ else "an environment variable not set"
        else:
            return self.source
        return f"{where}, named by {self.source}"


class ConfigPlace(NamedTuple):
    """The path of the file that is read; ``kind`` is "given" (it is named) or "user" (the user's own)."""

    kind: str
    path: Path
    exists: bool


@frozen(kw_only=True)
class Config:
    """The configuration. It may be incomplete: :attr:`missing` lists the values that a client still needs.

    ``values`` has a :class:`Setting` for every key; the forms of the token (``app_token``, ``token_file``, ``token_env``)
    are one key, ``app_token``; a field of the dialect has a key such as ``dialect.zone``. A value that is not configured
    is None. ``profile`` is the chosen profile or None, ``place`` the path of the file, None without a home. Tokens in files
    and variables are read on use.
    """

    profile: str | None = None
    place: ConfigPlace | None = None
    profiles: tuple[str, ...] = ()
    values: Mapping[str, Setting]

    def __getitem__(self, key: str) -> Any:  # the value of a key
        return self.values[key].value

    @property
    def dialect(self) -> Dialect:
        """The dialect."""
        return Dialect(**{name: self[key] for key, name in DIALECT_KEYS.items()})

    @property
    def missing(self) -> tuple[str, ...]:
        """The reasons why a client cannot be created, one line each; empty if nothing is missing."""
        found: list[str] = []
        for part in (lambda: self._needed("base_url"), lambda: self._needed("app_id"), self._token):
            try:
                part()
            except InvalidRequest as error:
                found.append(error.message)
        return tuple(found)

    @property
    def has_credentials(self) -> bool:
        """Whether the application identifier or its token is configured."""
        return self["app_id"] is not None or self[TOKEN] is not None

    def credentials(self) -> Credentials:
        """Return the application's credentials. Raises InvalidRequest that names the missing or wrong value."""
        app_id, token = self._needed("app_id"), self._token()
        try:
            return Credentials(app_id=app_id, app_token=token)
        except InvalidRequest as error:
            setting = self.values[error.field]
            name = setting.key if setting.source == ARGUMENT else setting.source
            cause = error.message.removeprefix(f"{error.field}: ")
        raise InvalidRequest(f"{name}: {cause}", field=name)

    def callback_credentials(self) -> tuple[Credentials, ...]:
        """Return all credentials that deliveries may be signed with, the application's first.

        See :func:`callback_credentials_from_env` for ``callback_credentials_file``; with such a file the application's own
        credentials are optional. Raises InvalidRequest that names the missing or wrong value.
        """
        several = self.values["callback_credentials_file"]
        if several.value is None:
            return (self.credentials(),)
        own = (self.credentials(),) if self.has_credentials else ()
        return credentials_in(several.value, several.source, first=own)

    def client(self, **options: Unpack[ClientOptions]) -> AsyncClient:
        """Return a client. ``options`` are arguments of AsyncClient; they take precedence over the configuration.

        Raises InvalidRequest that names the missing or wrong value, and ModuleNotFoundError with the pip command if the
        transport needs an extra.
        """
        from rbim.client.client import AsyncClient

        return self.make(AsyncClient, options)

    def make(self, kind: Callable[..., C], options: Mapping[str, Any]) -> C:
        """Return a client of a class, as :meth:`client` does."""
        given = dict(options)
        if "base_url" not in given:
            given["base_url"] = self._needed("base_url")
        if not given.get("credentials") and not given.get("signer"):
            given["credentials"] = self.credentials()
        for name in ("call_base_url", "user_name", "user_agent", "timeout", "deadline"):
            if name not in given and self[name] is not None:
                given[name] = self[name]
        if given.get("limits") is None:
            given["limits"] = Limits(concurrency=self["concurrency"], rates=self["rates"])
        if given.get("transport") is None:
            given["transport"] = self["transport"]
        if given.get("dialect") is None:
            given["dialect"] = self.dialect
        try:
            return kind(**given)
        except InvalidRequest as error:
            setting = self.values.get(error.field or "")
            if setting is not None and setting.source != DEFAULT and error.field not in options:
                error.add_note(f"{error.field} is from: {setting.source}")
            raise

    def _needed(self, key: str) -> Any:  # the value of a key
        if self[key] is not None:
            return self[key]
        cause = f"the environment variable {VARIABLES[key]} is not set"
        if self.profile is not None:
            cause += f", and the profile {_shown_profile(self.profile)!r} has no {'token_file' if key == TOKEN else key}"
        elif self.profiles:
            cause += f", and none of the profiles {', '.join(map(_shown_profile, self.profiles))} is chosen"
        raise InvalidRequest(cause, field=VARIABLES[key])

    def _token(self) -> Secret:
        setting, value = self.values[TOKEN], self._needed(TOKEN)
        if isinstance(value, Secret):
            return value
        if setting.key == "token_env":
            if os.environ.get(value):
                return Secret(os.environ[value])
            raise InvalidRequest(f"the environment variable that {setting.source} names is not set", field="token_env")
        if not Path(value).exists():  # its name may be the token, by mistake
            raise InvalidRequest(f"the file that {setting.source} names does not exist", field=setting.source)
        return token_in(value, setting.source)


class ConfigOptions(TypedDict, total=False):
    """The settings that :func:`load` takes as keyword arguments, by key; None counts as not given."""

    base_url: str | None
    call_base_url: str | None
    app_id: str | None
    app_token: str | Secret | None
    token_file: str | os.PathLike[str] | None
    token_env: str | None
    user_name: str | None
    user_agent: str | None
    transport: str | None
    concurrency: int | None
    rates: Sequence[str | Rate] | None
    timeout: float | None
    deadline: float | None
    callback_credentials_file: str | os.PathLike[str] | None
    group_column: str | None
    account_column: str | None
    user_name_column: str | None


@_shielded
def load(
    profile: str | None = None,
    file: str | os.PathLike[str] | None = None,
    *,
    warn: Callable[[str], object] = logger.warning,
    dialect: Mapping[str, object] | None = None,
    defaults: Mapping[str, object] | None = None,
    **arguments: Unpack[ConfigOptions],
) -> Config:
    """Return the configuration: arguments first, then the environment, then a profile, then ``defaults`` by key.

    ``arguments`` are settings by key (None: not given); ``dialect`` are fields of the dialect by name, and a mapping in it
    has only the entries that differ from the default. ``profile`` defaults to ``RBIM_PROFILE``, then to the ``profile``
    of the file. The file is ``file`` (default: ``RBIM_CONFIG``; missing: an error), or else the user's own, if there is one
    (:func:`place_of_file`). ``warn`` is called with a message for each file with a token that other users can read
    (default: log a warning). The configuration may be incomplete. Raises InvalidRequest that names the wrong file, profile,
    variable or key.
    """
    told = {name: value for name, value in arguments.items() if value is not None}
    _require_known(told, [*KEYS], "")
    _require_known(dialect or {}, FIELDS, f"{DIALECT}: ", DIALECT)
    told |= {f"{DIALECT}.{name}": value for name, value in (dialect or {}).items()}
    place = place_of_file(file)
    default, profiles, shared = _read_file(place) if place and (place.exists or place.kind == "given") else NO_FILE
    name = profile or os.environ.get("RBIM_PROFILE") or default
    if name is not None and name not in profiles:
        where = "any file" if place is None else place.path
        shown = quoted(name) if name == default else repr(name)
        known = ", ".join(map(_shown_profile, profiles)) or "no profiles"
        raise InvalidRequest(f"there is no profile {shown} in {where}: there are {known}", field="profile")
    values = _defaults() | {key: Setting(key, value, DEFAULT) for key, value in (defaults or {}).items()}
    values |= {**shared, **profiles.get(name or "", {}), **_from_environment()}
    for key, value in told.items():
        field, _, shown = key.partition(".")
        values |= _setting(key, value, ARGUMENT, f"{field}: {shown}".removesuffix(": "), field)
    config = Config(profile=name, place=place, profiles=tuple(profiles), values=MappingProxyType(values))
    token, several = config.values[TOKEN], config["callback_credentials_file"]
    # a file that only names a file or a variable with the token contains none itself
    holds_token = any(TOKEN in settings and settings[TOKEN].key == TOKEN for settings in profiles.values())
    named = [place.path] if place is not None and holds_token else []
    named += [path for path in (token.value if token.key == "token_file" else None, several) if path is not None]
    for path in filter(_readable_by_others, dict.fromkeys(named)):
        command = shlex.join(["chmod", "600", str(path)])
        line = one_line(str(path), 4096)  # it changes no terminal and forges no line of a log
        warn(f"{line}: other users can read this file, which contains a token. To fix it: {command}")
    return config


@_shielded
def environment() -> Config:
    """Return the configuration of the environment variables alone. Raises InvalidRequest that names the wrong one."""
    return Config(values=MappingProxyType(_defaults() | _from_environment()))


def credentials_from_env() -> Credentials:
    """Return the credentials in the environment variables.

    They are ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN``, or ``RBIM_APP_TOKEN_FILE`` with the path of a file that holds only the
    token. Raises InvalidRequest that names the missing or wrong variable.
    """
    return environment().credentials()


def callback_credentials_from_env() -> tuple[Credentials, ...]:
    """Return all credentials that deliveries may be signed with, those of the environment variables first.

    ``RBIM_CALLBACK_CREDENTIALS_FILE`` may name a file with a JSON list of ``{"app_id": "...", "app_token": "..."}``: more
    applications, and older tokens during a rotation. The first entry of an application is its current one. With such a
    file the variables of :func:`credentials_from_env` are optional, all together. Raises InvalidRequest that names the
    missing or wrong part.
    """
    return environment().callback_credentials()


# ------------------------------------------------------------------------------ sources


def _setting(key: str, value: object, source: str, place: str, field: str) -> dict[str, Setting]:
    """Return a checked setting, by its key. Raises InvalidRequest that names the place of a wrong value."""
    try:
        read = Dialect.read(DIALECT_KEYS[key], value) if key in DIALECT_KEYS else KEYS[key](value)
    except ValueError as error:
        cause, own = error.message if isinstance(error, InvalidRequest) else str(error), f"{key.rpartition('.')[2]}: "
        raise InvalidRequest(f"{place}: {cause.removeprefix(own)}", field=field) from None
    except (RecursionError, ArithmeticError, TypeError):
        raise InvalidRequest(f"{place}: nested too deeply, too large or of the wrong kind", field=field) from None
    return {TOKEN if key in TOKEN_FORMS else key: Setting(key, read, source)}


def _defaults() -> dict[str, Setting]:
    from rbim.client.client import DEADLINE, TIMEOUT

    known = {"transport": "httpx", "rates": (), "concurrency": Limits().concurrency}
    known |= {"timeout": TIMEOUT, "deadline": DEADLINE}
    known |= {f"{DIALECT}.{gap.name}": gap.default for gap in Dialect.gaps()}
    shown = (key for key in (*KEYS, *DIALECT_KEYS) if key == TOKEN or key not in TOKEN_FORMS)
    return {key: Setting(key, known.get(key), DEFAULT) for key in shown}


def _from_environment() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for key, name in VARIABLES.items():
        if os.environ.get(name) and not (key == "token_file" and TOKEN in found):  # the token is before its file
            found |= _setting(key, os.environ[name], name, name, name)
    name, texts = "RBIM_DIALECT", os.environ.get("RBIM_DIALECT")
    for key, text in (pairs_of(texts, name, FIELDS) if texts else {}).items():
        found |= _setting(f"{DIALECT}.{key}", text, name, f"{name}: {key}", name)
    return found


def place_of_file(given: str | os.PathLike[str] | None = None) -> ConfigPlace | None:
    """Return the path of the file: ``given`` (default: ``RBIM_CONFIG``), or the user's own; None without a home.

    The user's own is ``~/.config/rbim/rbim.toml`` on Linux (or below XDG_CONFIG_HOME); elsewhere where platformdirs, if it
    is installed, says.
    """
    only = given or os.environ.get("RBIM_CONFIG")
    if only:
        path = Path(os.path.expanduser(only))  # noqa: PTH111  # Path.expanduser raises for an unknown home
        return ConfigPlace("given", path.absolute(), path.is_file() or path.is_fifo())
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base if Path(base).is_absolute() else os.path.expanduser("~/.config")) / "rbim"  # noqa: PTH111
    if sys.platform != "linux":  # there it would be the same, but slow
        with suppress(ModuleNotFoundError):
            import platformdirs

            folder = Path(platformdirs.user_config_path("rbim", appauthor=False))
    if not folder.is_absolute():
        return None
    return ConfigPlace("user", folder / NAME, os.path.isfile(folder / NAME))  # noqa: PTH113  # never raises


def _shown_profile(profile: str) -> str:
    """Return the name of a profile for a message, without what may be a token in the wrong place."""
    return LONG_NAME.sub("***", profile)


def _readable_by_others(path: Path) -> bool:
    """Return whether the group or all users can read a file; False on Windows."""
    try:
        return os.name == "posix" and path.is_file() and bool(path.stat().st_mode & OTHERS_READ)
    except (OSError, ValueError):
        return False


# ------------------------------------------------------------------------------ the file


File = tuple[str | None, dict[str, dict[str, Setting]], dict[str, Setting]]
"""The default profile of a file, the settings of each profile, and those of every profile."""

NO_FILE: File = None, {}, {}


def _read_file(place: ConfigPlace) -> File:
    """Return the content of a file, with all its profiles checked. Raises InvalidRequest that names the place."""
    import tomllib

    path, cause = place.path, "" if place.exists else "there is no such file"  # or it is a device, which may have no end
    document: dict[str, Any] = {}
    try:
        if place.exists:
            with path.open("rb") as stream:
                document = tomllib.loads(stream.read().decode("utf-8-sig"))
    except OSError as error:
        cause = error.strerror or "it cannot be read"
    except UnicodeDecodeError:
        cause = "it is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        cause = POSSIBLE_TOKEN.sub("'***'", str(error).partition("\n")[0])
    except (RecursionError, ValueError):
        cause = "it is nested too deeply, or has a number with too many digits"
    default, profiles = document.get("profile"), document.get("profiles", {})
    if moved := next((name for name in document if name in KEYS), ""):
        cause = f"{moved} is outside of a profile; move it below [profiles.NAME]"
    elif "profile" in document and not (isinstance(default, str) and default):
        cause = "profile: the name of the default profile is needed, a text"
    elif not _is_table(profiles) or not all(map(_is_table, profiles.values())):
        cause = "profiles: tables are needed, [profiles.NAME]"
    if cause:
        raise InvalidRequest(f"{path}: {cause}", field="config")
    _require_known(document, ("profile", "profiles", DIALECT), f"{path}: ", "config")
    shared = _settings(path, "", {name: table for name, table in document.items() if name == DIALECT})
    read = {name: _settings(path, f"profiles.{_shown_profile(name)}.", table) for name, table in profiles.items()}
    return default, read, shared


def _is_table(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _settings(path: Path, where: str, table: dict[str, Any]) -> dict[str, Setting]:
    """Return the settings of a profile, or of the top of the file. Raises InvalidRequest that names the place."""
    found: dict[str, Setting] = {}
    _require_known(table, [*KEYS, DIALECT], f"{path}: {where}", "config")
    forms = [key for key in TOKEN_FORMS if key in table]
    dialect = table.get(DIALECT, {})
    if len(forms) > 1:
        raise InvalidRequest(f"{path}: {where}{forms[1]}: {forms[0]} is set too; keep only one of them", field="config")
    if not _is_table(dialect):
        raise InvalidRequest(f"{path}: {where}{DIALECT}: a table is needed, [{where}{DIALECT}]", field="config")
    _require_known(dialect, FIELDS, f"{path}: {where}{DIALECT}.", "config")
    for key, value in [*table.items(), *((f"{DIALECT}.{name}", each) for name, each in dialect.items())]:
        if key == DIALECT:
            continue
        place = f"{path}: {where}{key}"
        found |= _setting(key, value, place, place, "config")
    beside = {key: each for key, each in found.items() if isinstance(each.value, Path)}
    return found | {key: evolve(each, value=path.parent / each.value) for key, each in beside.items()}
