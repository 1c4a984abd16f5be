"""What comes from environment variables. No token is ever in an error that is raised here."""

from __future__ import annotations

import os
from pathlib import Path

from rbim.errors import InvalidRequest
from rbim.signing import Credentials

__all__ = ["credentials_from_env", "needed"]


def credentials_from_env() -> Credentials:
    """Return the credentials of ``RBIM_APP_ID`` and ``RBIM_APP_TOKEN``, or of the file that ``RBIM_APP_TOKEN_FILE`` names.

    The file holds the token and nothing else. Raises InvalidRequest that names the variable that is missing.
    """
    return Credentials(app_id=needed("RBIM_APP_ID"), app_token=_token())


def needed(name: str) -> str:
    """Return an environment variable. Raises InvalidRequest that names it where it is not set."""
    value = os.environ.get(name)
    if not value:
        reason = f"the environment variable {name} is not set"
        raise InvalidRequest(reason, field=name)
    return value


def _token() -> str:
    file = os.environ.get("RBIM_APP_TOKEN_FILE")
    if not os.environ.get("RBIM_APP_TOKEN") and file:
        try:
            return Path(file).read_text(encoding="utf-8-sig").strip()
        except OSError as error:
            why = str(error)
        except UnicodeDecodeError:
            why = "it is not UTF-8"
        # raised out here: a UnicodeDecodeError in its context would hold all of the file
        reason = f"the file that RBIM_APP_TOKEN_FILE names cannot be read: {why}"
        raise InvalidRequest(reason, field="RBIM_APP_TOKEN_FILE")
    return needed("RBIM_APP_TOKEN")
