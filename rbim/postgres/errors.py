"""What errors of PostgreSQL mean, as one line without a password and with the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim._support.text import missing_extra, one_line
from rbim.errors import InvalidRequest

try:
    import psycopg
    from psycopg.adapt import Dumper, Loader
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as missing:
    if missing.name != "psycopg":
        raise
    raise ModuleNotFoundError(missing_extra("rbim.postgres", missing.name, "postgres"), name=missing.name) from None

if TYPE_CHECKING:
    from typing import Any

__all__ = ["Dumper", "Loader", "explained", "parameters_of", "psycopg", "server_of", "without_password"]

PREFIXES = ("postgresql://", "postgres://")
NEXT_STEPS = (  # by words of the error, in this order
    ("password", "check the user and the password"),
    ("no encryption", "the server wants TLS: add ?sslmode=require"),
    ("SSL", "check sslmode in the address"),
    ("read-only", "this is a replica, or a server that must not be written to: give the address of the primary"),
    ("permission denied", "grant this user CREATE on the database, or the rights on the tables of the inbox"),
    ("too many", "raise max_connections, or run fewer processes: each has three connections"),
    ("No space left", "free some disk space of the server"),
    ("could not extend", "free some disk space of the server"),
    ("starting up", "it is tried again"),
    ("shutting down", "it is tried again"),
)
MOST_OF_CAUSE = 300


def parameters_of(address: str, field: str = "address") -> dict[str, Any]:
    """Return the connection parameters of an address. Raises InvalidRequest, which names the field and does not quote it."""
    try:
        before_host = address.partition("?")[0].rpartition("@")[0].partition("://")[2]
        if not address.startswith(PREFIXES) or {*before_host} & {*"/#"}:  # else a part of the password is host or database
            raise psycopg.ProgrammingError
        return {name: value for name, value in conninfo_to_dict(address).items() if value is not None}
    except (psycopg.Error, AttributeError, TypeError, UnicodeError):
        address = ""  # a traceback with local variables must not show a password in it
        cause = f"{field}: not the address of a PostgreSQL database, such as postgresql://user@host/database"
        raise InvalidRequest(f"{cause}; in a password, write / as %2F, # as %23 and ? as %3F", field=field) from None


def server_of(parameters: dict[str, Any]) -> str:
    """Return the hosts and the database of connection parameters, for messages."""
    host = parameters.get("host") or parameters.get("hostaddr") or parameters.get("service") or "the default host"
    port, database = parameters.get("port"), parameters.get("dbname") or ""
    return one_line(f"PostgreSQL at {host}{f':{port}' if port else ''}{f'/{database}' if database else ''}", MOST_OF_CAUSE)


def without_password(address: str) -> str:
    """Return an address for people: host, database and name of an inbox, but neither password nor parameters."""
    scheme, slashes, rest = address.partition("://")
    before, at, server = rest.rpartition("@")
    server, sign, name = server.partition("#")
    user = before.partition(":")[0]
    return f"{scheme}{slashes}{user}{at}{server.partition('?')[0]}{sign}{name}"


def explained(error: BaseException, server: str) -> Exception:
    """Return what a caller gets for an error of psycopg: ConnectionError, or InvalidRequest for what no table takes."""
    text = one_line(str(error), MOST_OF_CAUSE) or type(error).__name__
    if isinstance(error, (psycopg.DataError, psycopg.errors.ProgramLimitExceeded, psycopg.errors.OutOfMemory)):
        return InvalidRequest(f"the database can never store it: {text}")
    step = next((step for words, step in NEXT_STEPS if words in text), "")
    return ConnectionError(f"{server}: {text}{f': {step}' if step else ''}")
