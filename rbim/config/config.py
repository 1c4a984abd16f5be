"""Configuration, in order of precedence: arguments, environment variables, profiles of ``rbim.toml``.

::

    profile = "test"                    # the default profile

    [profiles.test]
    base_url = "https://gw.example:8883"
    app_id = "..."
    token_file = "test.token"           # beside this file

    [profiles.test.dialect]             # fields of the dialect; [dialect] holds those of every profile
    api_version = "2016-08-15"

A profile in the project's file takes precedence over one of the same name in the user's file, key by key. Until the user
trusts the project's file (``rbim config trust``), it sets only rates, time limits, the transport and columns of an input:
it cannot choose an address that receives requests signed with the user's token. No error raised here contains a token.
"""

from __future__ import annotations

import logging
import os
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypedDict, cast

from attrs import field, frozen

from rbim._support.text import one_line, quoted
from rbim.client.limits import Limits
from rbim.client.settings import (
    DIALECT,
    DIALECT_KEYS,
    KEYS,
    TOKEN,
    TOKEN_FORMS,
    Sealed,
    client_arguments,
    key_of,
    nearest,
    value_from_env,
    variables,
)
from rbim.config.files import places, read_file, readable_by_others, shown_profile
from rbim.credentials import Credentials, Secret, credentials_in, secret_of, token_in
from rbim.dialect import Dialect
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Unpack

    from rbim.client.client import AsyncClient, ClientOptions
    from rbim.client.limits import Rate
    from rbim.config.files import ConfigFile, ConfigPlace, Ignored

__all__ = ["Config", "ConfigOptions", "Setting", "Source", "load", "place_of_token"]

logger = logging.getLogger("rbim")


@frozen(kw_only=True)
class Source:
    """The source of a value: an ``argument``, a ``variable``, a ``file``, or else the default.

    ``profile`` is the profile of the file; None for a value that holds for all its profiles.
    """

    argument: bool = False
    variable: str | None = None
    file: Path | None = None
    profile: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether the value is a default."""
        return not self.argument and self.variable is None and self.file is None

    def __str__(self) -> str:
        if self.argument:
            return "argument"
        if self.variable is not None:
            return f"environment variable {self.variable}"
        if self.file is None:
            return "default"
        return f"{self.file} [{DIALECT if self.profile is None else f'profiles.{self.profile}'}]"


@frozen
class Setting:
    """A value, its source and its ``key``, for example ``token_file`` for a token in a file."""

    key: str
    value: Any = field(repr=False)  # it may be a token under a wrong key
    source: Source

    def __str__(self) -> str:
        if self.key not in TOKEN_FORMS or self.key == TOKEN:
            return str(self.source)
        return f"{place_of_token(self.key, self.value)}, named by {self.source}"


def place_of_token(key: str, value: Any) -> str:  # a path or the name of a variable
    """Return where ``token_file`` or ``token_env`` says that the token is.

    A missing file or variable is not named: its name may be the token itself, by mistake.
    """
    if key == "token_file":
        return f"the file {value}" if Path(value).exists() else "a file that does not exist"
    return f"environment variable {value}" if value in os.environ else "an environment variable not set"


@frozen(kw_only=True)
class Config:
    """The configuration. It may be incomplete: :attr:`missing` lists the values that a client still needs.

    ``values`` has a :class:`Setting` for every key; the forms of the token (``app_token``, ``token_file``, ``token_env``)
    are one key, ``app_token``; a field of the dialect has a key such as ``dialect.zone``. A value that is not configured
    is None. ``profile`` is the chosen profile or None, ``places`` are the files that were searched for, ``ignored`` the
    settings of a file that is not trusted. ``profile_given``: an argument or a variable chose the profile. Tokens in files
    and variables are read on use.
    """

    profile: str | None
    places: tuple[ConfigPlace, ...]
    profiles: tuple[str, ...]
    values: Mapping[str, Setting]
    ignored: tuple[Ignored, ...] = ()
    profile_given: bool = False

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

    def credentials(self) -> Credentials:
        """Return the application's credentials. Raises InvalidRequest that names the missing or wrong value."""
        return Credentials(app_id=self._needed("app_id"), app_token=self._token())

    def callback_credentials(self) -> tuple[Credentials, ...]:
        """Return all credentials that deliveries may be signed with, the application's first.

        See ``rbim.credentials.callback_credentials_from_env`` for ``callback_credentials_file``; with such a file the
        application's own credentials are optional. Raises InvalidRequest that names the missing or wrong value.
        """
        several = self.values["callback_credentials_file"]
        if several.value is None:
            return (self.credentials(),)
        own = (self.credentials(),) if self.has_credentials else ()
        return credentials_in(several.value, several.source.variable or str(several.source), first=own)

    @property
    def has_credentials(self) -> bool:
        """Whether the application identifier or its token is configured."""
        return self["app_id"] is not None or self[TOKEN] is not None

    def client(self, **options: Unpack[ClientOptions]) -> AsyncClient:
        """Return a client. ``options`` are arguments of AsyncClient; they take precedence over the configuration.

        Raises InvalidRequest that names the missing or wrong value, and ModuleNotFoundError with the pip command if the
        transport needs an extra.
        """
        from rbim.client.client import AsyncClient

        arguments = client_arguments(options, self, self._needed)
        try:
            return AsyncClient(**arguments)
        except InvalidRequest as error:
            setting = self.values.get(error.field or "")
            if setting is not None and setting.value is not None:
                error.add_note(f"{error.field} is from: {setting.source}")
            raise

    def _needed(self, key: str) -> Any:  # the value of a key
        if self[key] is None:
            raise _missing(key, self)
        found = self.values[key].source.file
        if found is not None and (other := self._would_replace(key)) is not None:
            raise InvalidRequest(
                f"{key} would be from {_shown(found)}, because {_shown(other.file)} is not trusted, which says otherwise: "
                f"trust it (rbim config trust), or choose with --profile or {KEYS[key].variable}",
                field=key,
            )
        return self[key]

    def _would_replace(self, key: str) -> Ignored | None:
        """Return the setting of a file without trust in whose place a key has a value of the user's file, or None."""
        for each in self.ignored:
            if (each.key == "profile" and not self.profile_given) or (each.key == key and each.profile == self.profile):
                return each
        return None

    def _token(self) -> Secret:
        setting = self.values[TOKEN]
        if setting.value is None:
            raise _missing(TOKEN, self)
        if isinstance(setting.value, Secret):
            return setting.value
        if setting.key == "token_file" and setting.source.variable is None and not Path(setting.value).exists():
            raise InvalidRequest(f"the file that {setting.source} names does not exist", field="token_file")
        if setting.key == "token_file":
            return token_in(setting.value, setting.source.variable or str(setting.source))
        if not os.environ.get(setting.value):
            raise InvalidRequest(f"the environment variable that {setting.source} names is not set", field="token_env")
        return secret_of(setting.value)


class ConfigOptions(TypedDict, total=False):
    """The settings that :func:`load` takes as keyword arguments, by key; None counts as not given."""

    base_url: str | None
    call_base_url: str | None
    app_id: str | None
    app_token: str | Secret | None
    token_file: str | os.PathLike[str] | None
    token_env: str | None
    user_name: str | None
    transport: str | None
    concurrency: int | None
    rates: Sequence[str | Rate] | None
    timeout: float | None
    deadline: float | None
    callback_credentials_file: str | os.PathLike[str] | None
    nats_creds_file: str | os.PathLike[str] | None
    nats_ca_file: str | os.PathLike[str] | None
    nats_cert_file: str | os.PathLike[str] | None
    nats_key_file: str | os.PathLike[str] | None
    group_column: str | None
    account_column: str | None
    user_name_column: str | None


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
    of the files. It is read from ``file`` (default: ``RBIM_CONFIG``), or without one from the project's file and the user's
    (see ``rbim.config.files.places``). ``warn`` is called with a message for a project's file that is not trusted and has
    settings that therefore are ignored, and for each file with a token that other users can read (default: log a warning).
    The configuration may be incomplete. Raises InvalidRequest that names the wrong file, profile, variable or key.
    """
    # rebound at once, so that a traceback that shows local variables shows no token
    arguments = cast("Any", {name: Sealed(value) for name, value in arguments.items() if value is not None})
    given: dict[str, Sealed] = dict(cast("Any", arguments))
    given |= {f"{DIALECT}.{name}": Sealed(value) for name, value in (dialect or {}).items()}
    dialect = None
    searched = places(file)
    files = sorted(_files(searched), key=lambda file: not file.trusted)  # without trust, a file fills gaps only
    names = tuple(dict.fromkeys(each for one in files for each in one.profiles))
    chosen = profile or os.environ.get("RBIM_PROFILE")
    name, cause = _chosen(chosen, files, names, searched)
    if cause:
        raise InvalidRequest(cause, field="profile")
    found = _defaults() | {key: Setting(key, value, Source()) for key, value in (defaults or {}).items()}
    for layer in (*_from_files(files, name), _from_environment(), _from_arguments(given)):
        for setting in layer:
            found[TOKEN if setting.key in TOKEN_FORMS else setting.key] = setting
    ignored = tuple(each for file in files for each in file.ignored)
    config = Config(
        profile=name,
        places=searched,
        profiles=names,
        values=MappingProxyType(found),
        ignored=ignored,
        profile_given=bool(chosen),
    )
    for message in _ignored_now(config):
        warn(message)
    for path in _exposed(files, config):
        command = shlex.join(["chmod", "600", str(path)])
        warn(f"{_shown(path)}: other users can read this file, which contains a token. To fix it: {command}")
    return config


def _files(searched: Iterable[ConfigPlace]) -> tuple[ConfigFile, ...]:
    for place in searched:
        if place.kind == "given" and not place.exists:
            raise InvalidRequest(f"{place.path}: there is no such file", field="config")
    return tuple(read_file(place) for place in searched if place.exists)


def _ignored_now(config: Config) -> Iterable[str]:
    """Yield a message for each file with settings that would count now if the file were trusted."""
    for path in dict.fromkeys(each.file for each in config.ignored):
        profiles = {None, config.profile}  # without a profile, the file may have wanted to choose one
        found = [
            each for each in config.ignored if each.file == path and (config.profile is None or each.profile in profiles)
        ]
        keys = dict.fromkeys((each.key or "").partition(".")[0] for each in found)
        if found:
            what = f"its {', '.join(keys)}" if all(keys) else "it"
            command = shlex.join(["rbim", "config", "trust", *([str(path)] if _shown(path) == str(path) else [])])
            hint = f" Read the file; to trust it: {command}" if found[0].readable else ""
            yield f"{_shown(path)}: {found[0].cause}, so rbim ignores {what}.{hint}"


def _shown(path: Path) -> str:
    """Return a path as one line that changes no terminal and forges no line of a log."""
    return one_line(str(path), LONGEST_PATH)


LONGEST_PATH = 4096


def _chosen(
    given: str | None, files: Sequence[ConfigFile], names: Sequence[str], searched: Iterable[ConfigPlace]
) -> tuple[str | None, str]:
    """Return the profile that was given, or that of the files, and ""; or None and the cause."""
    name = given or next((each.default for each in files if each.default), None)
    if name is None or name in names:
        return name, ""
    where = " or ".join(str(place.path) for place in searched) or "any file"
    known = f"there are {', '.join(map(shown_profile, names))}" if names else "there are no profiles"
    return None, f"there is no profile {repr(given) if given else quoted(name)} in {where}: {known}"


def _missing(key: str, config: Config) -> InvalidRequest:
    cause = f"the environment variable {KEYS[key].variable} is not set"
    if untrusted := next((each for each in config.ignored if _is_of(each, key)), None):
        cause += f", and that of {_shown(untrusted.file)} is ignored until you trust the file (rbim config trust)"
    elif config.profile is not None:
        cause += f", and the profile {shown_profile(config.profile)!r} has no {'token_file' if key == TOKEN else key}"
    elif config.profiles:
        cause += f", and none of the profiles {', '.join(map(shown_profile, config.profiles))} is chosen"
    return InvalidRequest(cause, field=KEYS[key].variable or key)


def _is_of(ignored: Ignored, key: str) -> bool:
    return ignored.key is None or ignored.key == key or (key == TOKEN and ignored.key in TOKEN_FORMS)


# ------------------------------------------------------------------------------ layers, the lowest first


def _defaults() -> dict[str, Setting]:
    from rbim.client.client import DEADLINE, TIMEOUT

    known = {"transport": "httpx", "rates": (), "concurrency": Limits().concurrency}
    known |= {"timeout": TIMEOUT, "deadline": DEADLINE}
    dialect = Dialect()
    known |= {key: getattr(dialect, name) for key, name in DIALECT_KEYS.items()}
    shown = (key for key in (*KEYS, *DIALECT_KEYS) if key == TOKEN or key not in TOKEN_FORMS)
    return {key: Setting(key, known.get(key), Source()) for key in shown}


def _from_files(files: Iterable[ConfigFile], profile: str | None) -> Iterable[list[Setting]]:
    """Yield the settings of all profiles, then those of one, of each file; the file with the highest precedence last."""
    lowest_first = tuple(files)[::-1]
    for file in lowest_first:
        yield [Setting(key, value, Source(file=file.path)) for key, value in file.shared.items()]
    for file in lowest_first:
        settings: Mapping[str, Any] = file.profiles.get(profile or "", {})
        source = Source(file=file.path, profile=profile)
        yield [Setting(key, value, source) for key, value in settings.items()]


def _from_environment() -> list[Setting]:
    found: list[Setting] = []
    for name, variable in variables().items():
        if name == "token_file" and os.environ.get("RBIM_APP_TOKEN"):
            continue  # the token itself takes precedence over its file
        if os.environ.get(variable):
            found.append(Setting(name, value_from_env(name), Source(variable=variable)))
    return found


def _from_arguments(arguments: Mapping[str, Sealed]) -> list[Setting]:
    found: list[Setting] = []
    for name, sealed in arguments.items():
        known = DIALECT_KEYS if name.startswith(f"{DIALECT}.") else KEYS
        if name not in known:
            raise InvalidRequest(f"{name}: unknown key; {nearest(name, known)}", field=name)
        value, cause = key_of(name).value(sealed, Path())
        if cause:
            raise InvalidRequest(f"{name}: {cause}", field=name)
        found.append(Setting(name, value, Source(argument=True)))
    return found


def _exposed(files: Iterable[ConfigFile], config: Config) -> list[Path]:
    """Return the files with a token that other users can read."""
    named: list[Path] = []
    if config.values[TOKEN].key == "token_file":
        named.append(config[TOKEN])
    if config["callback_credentials_file"] is not None:
        named.append(config["callback_credentials_file"])
    exposed = [file.path for file in files if file.exposed]
    return list(dict.fromkeys((*exposed, *(path for path in named if readable_by_others(path)))))
