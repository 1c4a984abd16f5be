"""The settings of an application: the keys of a configuration, their environment variables, and readers of their values.

``AsyncClient.from_env`` and ``rbim.config`` both read from this one table.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from rbim._support.text import quoted, quoted_key
from rbim.client.limits import Limits, Rate
from rbim.credentials import Secret, credentials_from_env, needed
from rbim.dialect_text import NAMES, dialect_fields, dialect_from_env, variable_of
from rbim.errors import InvalidRequest
from rbim.transports import TRANSPORTS
from rbim.validators import origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rbim.credentials import Credentials
    from rbim.dialect import Dialect

__all__ = [
    "COLUMNS",
    "DIALECT",
    "DIALECT_KEYS",
    "KEYS",
    "TOKEN",
    "TOKEN_FORMS",
    "Environment",
    "Sealed",
    "SettingKey",
    "Settings",
    "client_arguments",
    "key_of",
    "nearest",
    "rates_of",
    "unknown_key",
    "value_from_env",
    "variables",
]

TOKEN = "app_token"  # noqa: S105  # the name of a key
TOKEN_FORMS = (TOKEN, "token_file", "token_env")
"""The keys for the token or its location; each source may have only one of them."""


DIALECT = "dialect"
"""The table with fields of the dialect; as a setting, each has the key ``dialect.FIELD``."""


class Sealed:
    """A value that no repr shows: before it is checked, it may be a token under a wrong key."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def opened(self) -> object:
        """Return the value."""
        return self._value

    def __repr__(self) -> str:
        return "Sealed(***)"


class SettingKey(NamedTuple):
    """One configuration key.

    ``read`` converts a value from a file or an argument; it also gets the base directory for relative paths, and raises
    ValueError with the expected value. ``parse`` converts the text of an environment variable to an argument of ``read``.
    ``harmless``: a project's file may set the key before the user trusts that file.
    """

    name: str
    read: Callable[[object, Path], Any]
    variable: str | None = None
    parse: Callable[[str], object] = str
    harmless: bool = False

    def value(self, sealed: Sealed, base: Path) -> tuple[Any, str]:
        """Return the setting and "", or None and the cause. Raises nothing whose traceback could show a token."""
        try:
            return self.read(sealed.opened(), base), ""
        except InvalidRequest as error:
            return None, error.message
        except ValueError as error:
            return None, str(error)
        except RecursionError:
            return None, "the value is nested too deeply"
        except (ArithmeticError, TypeError):
            return None, "the value is of the wrong kind or too large"

    def from_text(self, text: Sealed, base: Path) -> tuple[Any, str]:
        """Return the setting from the text of an environment variable and "", or None and the cause."""
        try:
            parsed: object = self.parse(cast("str", text.opened()))
        except InvalidRequest as error:
            return None, error.message
        except ValueError:
            parsed = text.opened()
        return self.value(Sealed(parsed), base)


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint for an unknown word: the most similar known word, or all known words."""
    words = list(known)
    found = _similar(word, words)
    return f"did you mean {found}?" if found else f"known are {', '.join(words)}"


def unknown_key(name: str, known: Iterable[str]) -> str:
    """Return an unknown key for an error message; only its length if it may be a secret and resembles no known key."""
    return name if _similar(name, list(known)) else quoted_key(name)


def _similar(word: object, words: list[str]) -> str:
    from difflib import get_close_matches

    found = get_close_matches(word, words, n=1) if isinstance(word, str) and len(word) <= LONGEST else []
    return found[0] if found else ""


LONGEST = 100  # characters of a word that is compared with known words


# ------------------------------------------------------------------------------ readers


def _text(value: object, _: Path) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text is needed")
    if "\0" in value:
        raise ValueError("a text without NUL characters is needed")
    return value


def _url(value: object, base: Path) -> str:
    return origin(_text(value, base))


def _secret(value: object, base: Path) -> Secret:
    return value if isinstance(value, Secret) else Secret(_text(value, base))


def _path(value: object, base: Path) -> Path:
    text = os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else _text(value, base)
    return base / os.path.expanduser(text)  # noqa: PTH111  # Path.expanduser raises for an unknown home


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _variable(value: object, base: Path) -> str:
    if not _VARIABLE.fullmatch(_text(value, base)):
        raise ValueError("the name of an environment variable is needed")
    return cast("str", value)


def _seconds(value: object, _: Path) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= MOST_SECONDS:
        raise ValueError(f"a number of seconds above zero is needed, not {quoted(value)}")
    return float(value)


MOST_SECONDS = 1e9  # some thirty years
MOST = 2**31 - 1  # of a whole number


def _whole(value: object, _: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise ValueError(f"a whole number from 1 is needed, not {quoted(value)}")
    return value


def rates_of(value: object) -> tuple[Rate, ...]:
    """Return the rates of a list of rates, each a Rate or a text such as ``50/s``. Raises ValueError."""
    entries = list(cast("Iterable[object]", value)) if type(value) in {list, tuple} else [None]
    if not all(isinstance(entry, (str, Rate)) for entry in entries):
        raise ValueError(f'a list of rates is needed, such as ["50/s", "600/min"], not {quoted(value)}')
    return tuple(entry if isinstance(entry, Rate) else Rate.parse(cast("str", entry)) for entry in entries)


def _rates(value: object, _: Path) -> tuple[Rate, ...]:
    return rates_of(value)


def _transport(value: object, _: Path) -> str:
    if not isinstance(value, str) or value not in TRANSPORTS:
        raise ValueError(f"{quoted(value)} is not a transport; {nearest(value, TRANSPORTS)}")
    return value


def _split(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


KEYS: Mapping[str, SettingKey] = MappingProxyType(
    {
        key.name: key
        for key in (
            SettingKey(name="base_url", variable="RBIM_BASE_URL", read=_url),
            SettingKey(name="call_base_url", variable="RBIM_CALL_BASE_URL", read=_url),
            SettingKey(name="app_id", variable="RBIM_APP_ID", read=_text),
            SettingKey(name="app_token", variable="RBIM_APP_TOKEN", read=_secret),
            SettingKey(name="token_file", variable="RBIM_APP_TOKEN_FILE", read=_path),
            SettingKey(name="token_env", read=_variable),
            SettingKey(name="user_name", variable="RBIM_USER_NAME", read=_text),
            SettingKey(name="transport", variable="RBIM_TRANSPORT", read=_transport, harmless=True),
            SettingKey(name="concurrency", variable="RBIM_CONCURRENCY", read=_whole, parse=int, harmless=True),
            SettingKey(name="rates", variable="RBIM_RATES", read=_rates, parse=_split, harmless=True),
            SettingKey(name="timeout", variable="RBIM_TIMEOUT", read=_seconds, parse=float, harmless=True),
            SettingKey(name="deadline", variable="RBIM_DEADLINE", read=_seconds, parse=float, harmless=True),
            SettingKey(name="callback_credentials_file", variable="RBIM_CALLBACK_CREDENTIALS_FILE", read=_path),
            SettingKey(name="nats_creds_file", variable="RBIM_NATS_CREDS_FILE", read=_path),
            SettingKey(name="nats_ca_file", variable="RBIM_NATS_CA_FILE", read=_path),
            SettingKey(name="nats_cert_file", variable="RBIM_NATS_CERT_FILE", read=_path),
            SettingKey(name="nats_key_file", variable="RBIM_NATS_KEY_FILE", read=_path),
            SettingKey(name="group_column", variable="RBIM_GROUP_COLUMN", read=_text, harmless=True),
            SettingKey(name="account_column", variable="RBIM_ACCOUNT_COLUMN", read=_text, harmless=True),
            SettingKey(name="user_name_column", variable="RBIM_USER_NAME_COLUMN", read=_text, harmless=True),
        )
    }
)
"""All keys of a profile, in display order."""

COLUMNS = ("group_column", "account_column", "user_name_column")
"""The keys for the columns of a job's input."""


# ------------------------------------------------------------------------------ the dialect

DIALECT_KEYS: Mapping[str, str] = MappingProxyType({f"{DIALECT}.{name}": name for name in NAMES})
"""The keys of the dialect's fields, and the fields."""


def key_of(name: str) -> SettingKey:
    """Return a key, also of the dialect. Raises KeyError."""
    return _dialect_key(DIALECT_KEYS[name]) if name in DIALECT_KEYS else KEYS[name]


@lru_cache
def _dialect_key(name: str) -> SettingKey:
    field = dialect_fields()[name]

    def read(value: object, _: Path) -> Any:
        return field.read(value)

    return SettingKey(name=f"{DIALECT}.{name}", variable=field.variable, read=read, parse=field.parse)


def variables() -> dict[str, str]:
    """Return the environment variable of each key that has one, also of the dialect's."""
    own = {key.name: key.variable for key in KEYS.values() if key.variable}
    return own | {key: variable_of(name) for key, name in DIALECT_KEYS.items()}


# ------------------------------------------------------------------------------ the environment


def value_from_env(name: str) -> Any:  # the value of a key
    """Return the value that an environment variable gives to a key, or None; an empty variable counts as not set.

    Raises InvalidRequest that names the variable.
    """
    key = key_of(name)
    if key.variable is None or not os.environ.get(key.variable):
        return None
    value, cause = key.from_text(Sealed(os.environ[key.variable]), Path())
    if cause:
        raise InvalidRequest(f"{key.variable}: {cause}", field=key.variable)
    return value


class Settings(Protocol):
    """The settings that a client is made of; a setting without a value is None."""

    def __getitem__(self, key: str, /) -> Any: ...

    def credentials(self) -> Credentials:
        """Return the application's credentials. Raises InvalidRequest if they are missing or wrong."""
        ...

    @property
    def dialect(self) -> Dialect:
        """The dialect."""
        ...


class Environment:
    """The settings in environment variables; each variable is read when its value is needed."""

    def __getitem__(self, key: str, /) -> Any:
        return value_from_env(key)

    def credentials(self) -> Credentials:
        """Return the application's credentials. Raises InvalidRequest that names the missing or wrong variable."""
        return credentials_from_env()

    @property
    def dialect(self) -> Dialect:
        """The dialect."""
        return dialect_from_env()

    def needed(self, key: str) -> Any:
        """Return the value of a key. Raises InvalidRequest that names the missing variable."""
        value = self[key]
        return needed(key_of(key).variable or key) if value is None else value

    def source(self, key: str) -> str | None:
        """Return the variable that gives a key its value, or None."""
        variable = variables().get(key)
        return variable if variable and os.environ.get(variable) else None


def client_arguments(options: Mapping[str, Any], settings: Settings, require: Callable[[str], Any]) -> dict[str, Any]:
    """Return arguments of AsyncClient: the ``options``, and the ``settings`` that they leave open; only these are read.

    ``require`` returns the value of a key, and raises InvalidRequest if it has none.
    """
    found = dict(options)
    if "base_url" not in found:
        found["base_url"] = require("base_url")
    if not found.get("credentials") and not found.get("signer"):
        found["credentials"] = settings.credentials()
    for name in ("call_base_url", "user_name", "timeout", "deadline"):
        if name not in found and (value := settings[name]) is not None:
            found[name] = value
    if found.get("limits") is None:
        limits = {name: settings[name] for name in ("concurrency", "rates")}
        found["limits"] = Limits(**{name: value for name, value in limits.items() if value is not None})
    if found.get("transport") is None:
        found["transport"] = settings["transport"]
    if found.get("dialect") is None:
        found["dialect"] = settings.dialect
    return found
