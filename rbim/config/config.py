"""Configuration: what is told goes before environment variables, and these before the profiles of ``rbim.toml``.

::

    profile = "test"                    # the profile where nobody names one

    [profiles.test]
    base_url = "https://gw.example:8883"
    app_id = "..."
    token_file = "test.token"           # beside this file

A profile of the project's file goes before one of the same name in the user's, key by key. No token is ever in an error
that is raised here.
"""

from __future__ import annotations

import logging
import os
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.client.limits import Limits
from rbim.config.files import places, read_file, readable_by_others
from rbim.config.keys import KEYS, TOKEN, TOKEN_FORMS, Sealed, nearest
from rbim.credentials import Credentials, Secret, credentials_in, secret_of, token_in
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rbim.client.client import AsyncClient
    from rbim.config.files import ConfigFile, ConfigPlace

__all__ = ["Config", "Setting", "Source", "load"]

logger = logging.getLogger("rbim")


@frozen(kw_only=True)
class Source:
    """Where a value comes from: it was ``told``, or is in a ``variable`` or a ``profile`` of a ``file``, else a default."""

    told: bool = False
    variable: str | None = None
    file: Path | None = None
    profile: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody says anything."""
        return not self.told and self.variable is None and self.file is None

    def __str__(self) -> str:
        if self.told:
            return "told"
        if self.variable is not None:
            return f"environment variable {self.variable}"
        return "default" if self.file is None else f"{self.file} [profiles.{self.profile}]"


@frozen
class Setting:
    """A value and its source. ``key`` is the one that gave it: ``token_file``, say, where the token is in a file."""

    key: str
    value: Any
    source: Source

    def __str__(self) -> str:
        if self.key not in TOKEN_FORMS or self.key == TOKEN:
            return str(self.source)
        # what is not there is not shown: it may be the token itself, in the wrong place
        if self.key == "token_file":
            where = f"the file {self.value}" if Path(self.value).exists() else "a file that does not exist"
        else:
            where = f"environment variable {self.value}" if self.value in os.environ else "an environment variable not set"
        return f"{where}, named by {self.source}"


@frozen(kw_only=True)
class Config:
    """What is configured. It may be incomplete: :attr:`missing` says what a client would need yet.

    ``values`` has a :class:`Setting` for every key, the forms of the token (``app_token``, ``token_file``, ``token_env``)
    as one named ``app_token``; None stands for what nobody says. ``profile`` is the one that was chosen, if any, and
    ``places`` are the files that were looked for. Tokens in files and variables are read when they are needed.
    """

    profile: str | None
    places: tuple[ConfigPlace, ...]
    profiles: tuple[str, ...]
    values: Mapping[str, Setting]

    def __getitem__(self, key: str) -> Any:  # the value of a key
        return self.values[key].value

    @property
    def missing(self) -> tuple[str, ...]:
        """What keeps a client from being made, a line each: nothing where all is known that it needs."""
        found: list[str] = []
        for part in (lambda: self._needed("base_url"), lambda: self._needed("app_id"), self._token):
            try:
                part()
            except InvalidRequest as error:
                found.append(error.message)
        return tuple(found)

    def credentials(self) -> Credentials:
        """Return the application's credentials. Raises InvalidRequest that says what is missing or wrong."""
        return Credentials(app_id=self._needed("app_id"), app_token=self._token())

    def callback_credentials(self) -> tuple[Credentials, ...]:
        """Return all credentials that message copies may be signed with, the application's own first.

        ``callback_credentials_file`` is described in ``rbim.credentials.callback_credentials_from_env``; with it, the
        application itself need not be configured. Raises InvalidRequest that says what is missing or wrong.
        """
        several = self.values["callback_credentials_file"]
        if several.value is None:
            return (self.credentials(),)
        own = (self.credentials(),) if self.has_credentials else ()
        return credentials_in(several.value, several.source.variable or str(several.source), first=own)

    @property
    def has_credentials(self) -> bool:
        """Whether anything is said of the application or its token."""
        return self["app_id"] is not None or self[TOKEN] is not None

    def client(self, **options: Any) -> AsyncClient:  # the constructor's own
        """Make a client. ``options`` go to the constructor of AsyncClient, and before the configuration.

        Raises InvalidRequest that says what is missing or wrong, and ModuleNotFoundError that names the pip command where
        the transport needs an extra.
        """
        from rbim.client.client import AsyncClient

        if "base_url" not in options:
            options["base_url"] = self._needed("base_url")
        if not options.get("credentials") and not options.get("signer"):
            options["credentials"] = self.credentials()
        for name in ("call_base_url", "user_name", "timeout", "deadline"):
            options.setdefault(name, self[name])
        if options.get("limits") is None:
            options["limits"] = Limits(concurrency=self["concurrency"], rates=self["rates"])
        if options.get("transport") is None:
            from rbim.transports.by_name import transport_named

            options["transport"] = transport_named(self["transport"])
        try:
            return AsyncClient(**options)
        except InvalidRequest as error:
            setting = self.values.get(error.field or "")
            if setting is not None and setting.value is not None:
                error.add_note(f"{error.field} is from: {setting.source}")
            raise

    def _needed(self, key: str) -> Any:  # the value of a key
        if self[key] is None:
            raise _missing(key, self)
        return self[key]

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


def load(
    profile: str | None = None,
    file: str | os.PathLike[str] | None = None,
    *,
    warn: Callable[[str], object] = logger.warning,
    **told: Any,  # settings by key
) -> Config:
    """Return the configuration: what is ``told`` (None says nothing), then the environment, then a profile.

    ``profile`` (else ``RBIM_PROFILE``, else the ``profile`` of the files) is sought in ``file`` (else ``RBIM_CONFIG``)
    alone, or in the project's file and the user's: ``rbim.config.files.places``. ``warn`` is told of files with a token
    in them that others may read; a logger unless told. Nothing needs to be complete. Raises InvalidRequest that names the
    file, profile, variable or key which is wrong.
    """
    told = {name: Sealed(value) for name, value in told.items() if value is not None}
    looked = places(file)
    files = _files(looked)
    name = profile or os.environ.get("RBIM_PROFILE") or next((each.default for each in files if each.default), None)
    names = tuple(dict.fromkeys(each for one in files for each in one.profiles))
    if name is not None and name not in names:
        raise _no_profile(name, names, looked)
    found = _defaults()
    for layer in (*_from_files(files, name), _from_environment(), _from_told(told)):
        for setting in layer:
            found[TOKEN if setting.key in TOKEN_FORMS else setting.key] = setting
    config = Config(profile=name, places=looked, profiles=names, values=MappingProxyType(found))
    for path in _exposed(files, config):
        mend = shlex.join(["chmod", "600", str(path)])
        warn(f"{path}: others can read this file, and there is a token in it. To mend that: {mend}")
    return config


def _files(looked: Iterable[ConfigPlace]) -> tuple[ConfigFile, ...]:
    for place in looked:
        if place.kind == "told" and not place.exists:
            raise InvalidRequest(f"{place.path}: there is no such file", field="config")
    return tuple(read_file(place) for place in looked if place.exists)


def _no_profile(name: str, names: tuple[str, ...], looked: Iterable[ConfigPlace]) -> InvalidRequest:
    where = " or ".join(str(place.path) for place in looked) or "any file"
    known = f"there are {', '.join(names)}" if names else "there is none"
    return InvalidRequest(f"there is no profile {name!r} in {where}: {known}", field="profile")


def _missing(key: str, config: Config) -> InvalidRequest:
    why = f"the environment variable {KEYS[key].variable} is not set"
    if config.profile is not None:
        why += f", and the profile {config.profile!r} has no {'token_file' if key == TOKEN else key}"
    elif config.profiles:
        why += f", and no profile is chosen of {', '.join(config.profiles)}"
    return InvalidRequest(why, field=KEYS[key].variable or key)


# ------------------------------------------------------------------------------ layers, the lowest first


def _defaults() -> dict[str, Setting]:
    from rbim.client.client import DEADLINE, TIMEOUT

    known = {"transport": "httpx", "rates": (), "concurrency": Limits().concurrency}
    known |= {"timeout": TIMEOUT, "deadline": DEADLINE}
    shown = (key for key in KEYS if key == TOKEN or key not in TOKEN_FORMS)
    return {key: Setting(key, known.get(key), Source()) for key in shown}


def _from_files(files: Iterable[ConfigFile], profile: str | None) -> Iterable[list[Setting]]:
    """Yield what the files say of a profile, the one that goes before the others last."""
    for file in reversed(tuple(files)):
        settings: Mapping[str, Any] = file.profiles.get(profile or "", {})
        source = Source(file=file.path, profile=profile)
        yield [Setting(key, value, source) for key, value in settings.items()]


def _from_environment() -> list[Setting]:
    found: list[Setting] = []
    for key in KEYS.values():
        if key.variable is None or not os.environ.get(key.variable):
            continue
        if key.name == "token_file" and os.environ.get("RBIM_APP_TOKEN"):
            continue  # the token itself goes before a file with it
        value, why = key.from_text(Sealed(os.environ[key.variable]), Path())
        if why:
            raise InvalidRequest(f"{key.variable}: {why}", field=key.variable)
        found.append(Setting(key.name, value, Source(variable=key.variable)))
    return found


def _from_told(told: Mapping[str, Sealed]) -> list[Setting]:
    found: list[Setting] = []
    for name, sealed in told.items():
        if name not in KEYS:
            raise InvalidRequest(f"{name}: unknown key; {nearest(name, KEYS)}", field=name)
        value, why = KEYS[name].value(sealed, Path())
        if why:
            raise InvalidRequest(f"{name}: {why}", field=name)
        found.append(Setting(name, value, Source(told=True)))
    return found


def _exposed(files: Iterable[ConfigFile], config: Config) -> list[Path]:
    """Return the files with a token in them that others may read."""
    with_tokens = [file.path for file in files if file.holds_token]
    if config.values[TOKEN].key == "token_file":
        with_tokens.append(config[TOKEN])
    if config["callback_credentials_file"] is not None:
        with_tokens.append(config["callback_credentials_file"])
    return [path for path in dict.fromkeys(with_tokens) if readable_by_others(path)]
