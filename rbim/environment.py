"""What comes from environment variables, and from files with tokens in them. No token is ever in an error raised here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rbim import jsontext
from rbim.errors import InvalidRequest
from rbim.signing import Credentials, Secret

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
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
        reason = f"the environment variable {name} is not set"
        raise InvalidRequest(reason, field=name)
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
    reason = f"the file that {named_by} names cannot be read: {why}"
    raise InvalidRequest(reason, field=named_by)


def credentials_in(file: str | Path, named_by: str, *, first: Iterable[Credentials] = ()) -> tuple[Credentials, ...]:
    """Return ``first`` and the credentials that a file lists in JSON, each once. Raises InvalidRequest as ``token_in``."""
    listed, why = _listed(file)
    # raised out here, where no frame holds what is in the file
    if listed is None:
        reason = f"the file that {named_by} names cannot be used: {why}"
        raise InvalidRequest(reason, field=named_by)
    return tuple(dict.fromkeys((*first, *listed)))


def _token() -> Secret:
    file = os.environ.get("RBIM_APP_TOKEN_FILE")
    if not os.environ.get("RBIM_APP_TOKEN") and file:
        return token_in(file, "RBIM_APP_TOKEN_FILE")
    return secret_of("RBIM_APP_TOKEN")


def _listed(file: str | Path) -> tuple[tuple[Credentials, ...] | None, str]:
    """Return the credentials in a file, or None and why there are none. Raises nothing that could show a token."""
    try:
        entries = jsontext.loads(Path(file).read_bytes())
    except (OSError, jsontext.NotJson) as error:
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
