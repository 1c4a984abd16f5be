"""Credentials, also those in files. No error raised here shows a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from attrs import frozen

from rbim._support import json
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


__all__ = [
    "Credentials",
    "CredentialsProvider",
    "Secret",
    "SecretText",
    "credentials_in",
    "token_in",
]


MAX_TOKEN_FILE = 4096  # bytes of a token's file
MAX_LIST_FILE = 16 * 1024 * 1024  # bytes of a file with several tokens
_LIST = 'a list such as [{"app_id": "...", "app_token": "..."}] is needed'


def token_in(file: str | Path, named_by: str) -> Secret:
    """Return the token in a file that holds nothing else.

    Raises InvalidRequest; ``named_by`` is the variable or key that names the file, for its message.
    """
    try:
        with open(file, "rb") as stream:  # noqa: PTH123  # pathlib would be imported for this alone
            token = Secret(stream.read(MAX_TOKEN_FILE + 1).decode("utf-8-sig").strip())
        if len(token.reveal()) <= MAX_TOKEN_FILE:
            return token
        cause = f"it is longer than {MAX_TOKEN_FILE} bytes"
    except IsADirectoryError:
        cause = "it is a directory, as Docker makes of a mounted file that is missing on the host: put the file there"
    except OSError as error:  # not its text: that holds the name, which may be the token by mistake
        cause = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        cause = "it is not UTF-8"
    except ValueError:  # a NUL character
        cause = "its name is not valid"
    # not raised inside `except`: a UnicodeDecodeError as its context would hold the whole file
    raise InvalidRequest(f"the file that {named_by} names cannot be read: {cause}", field=named_by)


def credentials_in(file: str | Path, named_by: str, *, first: Iterable[Credentials] = ()) -> tuple[Credentials, ...]:
    """Return ``first`` and then the credentials in a JSON file, without duplicates.

    Raises InvalidRequest like :func:`token_in`.
    """
    listed, cause = _listed(file)
    # raised here, where no frame of the traceback holds the file's content
    if listed is None:
        raise InvalidRequest(f"the file that {named_by} names cannot be used: {cause}", field=named_by)
    return tuple(dict.fromkeys((*first, *listed)))


def _listed(file: str | Path) -> tuple[tuple[Credentials, ...] | None, str]:
    """Return the credentials in a file, or None and the cause. Raises nothing that could show a token."""
    try:
        with open(file, "rb") as stream:  # noqa: PTH123
            entries = json.loads(stream.read(MAX_LIST_FILE))
    except json.NotJson as error:
        return None, f"{error}: {_LIST}"
    except OSError as error:  # not its text: that holds the name, which may be the list by mistake
        return None, error.strerror or type(error).__name__
    except ValueError:  # a NUL character
        return None, "its name is not valid"
    if not isinstance(entries, list) or not entries:
        return None, _LIST
    found: list[Credentials] = []
    for number, entry in enumerate(cast("Any", entries), start=1):
        try:
            found.append(Credentials(app_id=entry["app_id"], app_token=entry["app_token"]))
        except (TypeError, KeyError, InvalidRequest) as error:
            needed_form = "an object with app_id and app_token is needed"
            return None, f"entry {number}: {error.message if isinstance(error, InvalidRequest) else needed_form}"
    return tuple(found), ""


class Secret:
    """A text that is never shown: not by repr, str, logging or ``attrs.asdict``, and not in a pickle."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _: object) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled; read it again in the other process (AsyncClient.from_env)")


class SecretText(Protocol):
    """A secret of another library, such as pydantic's ``SecretStr``."""

    def get_secret_value(self) -> str:
        """Return the text itself."""
        ...


def _secret(token: str | Secret | SecretText) -> Secret:
    if isinstance(token, Secret):
        return token
    reveal = getattr(token, "get_secret_value", None)
    return Secret(reveal() if reveal is not None else cast("str", token))


def _fits(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable() and text.split() == [text]


@frozen(init=False)
class Credentials:
    """An application's identifier and token, from the platform's console.

    Not the *account's* identifier and token: the account-level interface is another product with the same signature
    formula, and to confuse them is the most common mistake. Keep them on a server, never in a client application. Raises
    InvalidRequest for a value that is empty, not ASCII or contains white space or control characters.
    """

    app_id: str
    app_token: Secret

    def __init__(self, *, app_id: str, app_token: str | Secret | SecretText) -> None:
        # Rebound at once, so that a traceback that shows local variables shows no token.
        app_token = _secret(app_token)
        object.__setattr__(self, "app_id", app_id)
        object.__setattr__(self, "app_token", app_token)
        for name, fits in (("app_id", _fits(app_id)), ("app_token", _fits(app_token.reveal()))):
            if not fits:
                raise InvalidRequest(f"{name}: ASCII text without white space is needed", field=name)


CredentialsProvider = Callable[[], Credentials | Awaitable[Credentials]]
"""A function that returns the current credentials of an application, or an async one."""
