"""Credentials, and how they are read from the environment and from files.

No error raised here shows a token.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from attrs import frozen

from rbim._support import json
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = [
    "Credentials",
    "Secret",
    "callback_credentials_from_env",
    "credentials_from_env",
    "credentials_in",
    "needed",
    "secret_of",
    "token_in",
]


OWN = ("RBIM_APP_ID", "RBIM_APP_TOKEN", "RBIM_APP_TOKEN_FILE")
SEVERAL = "RBIM_CALLBACK_CREDENTIALS_FILE"


def credentials_from_env() -> Credentials:
    """Return the credentials of ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN``, or of the file that ``RBIM_APP_TOKEN_FILE`` names.

    The file holds the token and nothing else. Raises InvalidRequest that names the variable that is missing.
    """
    return Credentials(app_id=needed("RBIM_APP_ID"), app_token=_token())


def callback_credentials_from_env() -> tuple[Credentials, ...]:
    """Return all credentials that message copies may be signed with, those of the environment itself first.

    ``RBIM_CALLBACK_CREDENTIALS_FILE`` may name a JSON list of ``{"app_id": "...", "app_token": "..."}``: more applications,
    and older tokens while a rotation lasts. The first of an application is its current one. With such a file the variables
    of :func:`credentials_from_env` may all be left out. Raises InvalidRequest that names what is missing or wrong.
    """
    file = os.environ.get(SEVERAL)
    if not file:
        return (credentials_from_env(),)
    own = (credentials_from_env(),) if any(os.environ.get(name) for name in OWN) else ()
    return credentials_in(file, SEVERAL, first=own)


def needed(name: str) -> str:
    """Return an environment variable. Raises InvalidRequest that names it where it is not set."""
    value = os.environ.get(name)
    if not value:
        raise InvalidRequest(f"the environment variable {name} is not set", field=name)
    return value


def secret_of(name: str) -> Secret:
    """Return the token in an environment variable. Raises InvalidRequest that names it where it is not set."""
    return Secret(needed(name))


def token_in(file: str | Path, named_by: str) -> Secret:
    """Return the token that a file holds, and nothing else. Raises InvalidRequest: the file that ``named_by`` names."""
    try:
        return Secret(Path(file).read_text(encoding="utf-8-sig").strip())
    except OSError as error:  # whose words have the path, where that is one: it may be the token, in the wrong place
        why = str(error) if os.sep in str(file) else error.strerror or type(error).__name__
    except UnicodeDecodeError:
        why = "it is not UTF-8"
    # raised out here: a UnicodeDecodeError in its context would hold all of the file
    raise InvalidRequest(f"the file that {named_by} names cannot be read: {why}", field=named_by)


def credentials_in(file: str | Path, named_by: str, *, first: Iterable[Credentials] = ()) -> tuple[Credentials, ...]:
    """Return ``first`` and the credentials that a file lists in JSON, each once. Raises InvalidRequest as ``token_in``."""
    listed, why = _listed(file)
    # raised out here, where no frame holds what is in the file
    if listed is None:
        raise InvalidRequest(f"the file that {named_by} names cannot be used: {why}", field=named_by)
    return tuple(dict.fromkeys((*first, *listed)))


def _token() -> Secret:
    file = os.environ.get("RBIM_APP_TOKEN_FILE")
    if not os.environ.get("RBIM_APP_TOKEN") and file:
        return token_in(file, "RBIM_APP_TOKEN_FILE")
    return secret_of("RBIM_APP_TOKEN")


def _listed(file: str | Path) -> tuple[tuple[Credentials, ...] | None, str]:
    """Return the credentials in a file, or None and why there are none. Raises nothing that could show a token."""
    try:
        entries = json.loads(Path(file).read_bytes())
    except (OSError, json.NotJson) as error:
        return None, str(error)
    if not isinstance(entries, list) or not entries:
        return None, "a list of at least one object with app_id and app_token is needed"
    found: list[Credentials] = []
    for number, entry in enumerate(cast("Any", entries), start=1):
        try:
            found.append(Credentials(app_id=entry["app_id"], app_token=entry["app_token"]))
        except (TypeError, KeyError, InvalidRequest) as error:
            why = error.message if isinstance(error, InvalidRequest) else "an object with app_id and app_token is needed"
            return None, f"entry {number}: {why}"
    return tuple(found), ""


class Secret:
    """A text that is not shown: not by repr or str, not by logging, not by ``attrs.asdict``, not in a pickle."""

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
        raise TypeError("a secret is not pickled; read it anew where it is needed (AsyncClient.from_env)")


def _fits(text: object) -> bool:
    return isinstance(text, str) and text.isascii() and text.split() == [text]


@frozen(init=False)
class Credentials:
    """An application's identifier and token, from the platform's console.

    Not the *account's* identifier and token: the account-level interface is another product that signs by the same formula,
    and mixing them up is the most common mistake. They belong on a server, never in a client application. Raises
    InvalidRequest for what is empty, not ASCII or has white space in it.
    """

    app_id: str
    app_token: Secret

    def __init__(self, *, app_id: str, app_token: str | Secret) -> None:
        # Rebound at once: a traceback that shows the locals of its frames must find no token here.
        app_token = app_token if isinstance(app_token, Secret) else Secret(app_token)
        object.__setattr__(self, "app_id", app_id)
        object.__setattr__(self, "app_token", app_token)
        for name, fits in (("app_id", _fits(app_id)), ("app_token", _fits(app_token.reveal()))):
            if not fits:
                raise InvalidRequest(f"{name}: ASCII text without white space is needed", field=name)
