"""The inbox that a command names: the path of a file, or the address of a PostgreSQL database."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from cyclopts import Parameter

from rbim.cli.errors import require
from rbim.cli.flag_types import FileName
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.callbacks.inbox.sqlite import SqliteInbox
    from rbim.callbacks.inbox.stored import Archive
    from rbim.postgres.inbox import PostgresInbox

__all__ = ["InboxFile", "inbox_of", "is_on_server", "shown_inbox", "with_archive"]

T = TypeVar("T")

InboxFile: TypeAlias = Annotated[FileName, Parameter(help="The file in which `rbim callback serve` stores events.")]


def is_on_server(inbox: str) -> bool:
    """Return whether a text is an address such as ``postgresql://user@host/database#copies``, and not the path of a file.

    One of another scheme, too: as the path of a file it would be shown with its password.
    """
    return "://" in inbox


def shown_inbox(inbox: str) -> str:
    """Return the text for people, without a password."""
    if not is_on_server(inbox):
        return inbox
    from rbim.postgres.errors import without_password

    return without_password(inbox)


def inbox_of(inbox: str, *, create: bool = True) -> SqliteInbox | PostgresInbox:
    """Return the inbox of a command; it is created if it is missing.

    ``create``: whether one in a database is, too. Raises InvalidRequest, and MissingExtra without the extra.
    """
    if not is_on_server(inbox):
        from rbim.callbacks.inbox.sqlite import SqliteInbox

        return SqliteInbox(inbox)
    require("postgres", "psycopg")
    from rbim.postgres.inbox import PostgresInbox

    address, _, name = inbox.rpartition("#") if "#" in inbox.rpartition("@")[2] else (inbox, "", "")
    try:
        return PostgresInbox(address, name=name or "copies", create=create)
    except InvalidRequest as error:
        raise InvalidRequest(f"--inbox: {error.message}", field="--inbox") from None


def with_archive(inbox: str, use: Callable[[Archive], Awaitable[T]]) -> T:
    """Open an existing inbox, and return what ``use`` returns, which must not write to standard output.

    Raises InvalidRequest.
    """
    import logging
    import sqlite3

    import anyio

    async def used() -> T:
        async with inbox_of(inbox, create=False) as archive:
            return await use(archive)

    if is_on_server(inbox):
        logging.getLogger("rbim.postgres").setLevel(logging.ERROR)  # a server that is away is an error of the command
    elif not Path(inbox).is_file():  # it would be created
        raise InvalidRequest(f"{inbox}: no such file; give the inbox of rbim callback serve", field="inbox")
    try:
        return anyio.run(used)
    except ConnectionError as error:
        away = InvalidRequest(str(error), field="inbox")
        away.add_note("")  # it names the server and the next step: no hint besides
        raise away from None
    except (OSError, sqlite3.Error) as error:
        raise InvalidRequest(f"{shown_inbox(inbox)}: {error}", field="inbox") from None
