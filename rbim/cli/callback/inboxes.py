"""The inbox that a command names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.callbacks.inbox.protocols import Archive
    from rbim.callbacks.inbox.sqlite import SqliteInbox

__all__ = ["Unusable", "inbox_of", "with_archive"]

T = TypeVar("T")


class Unusable(Exception):
    """The command cannot be carried out; the cause is printed already. ``code`` is the exit code."""

    code = Exit.USAGE


def inbox_of(inbox: str) -> SqliteInbox:
    """Return the inbox of a command that creates it if it is missing."""
    from rbim.callbacks.inbox.sqlite import SqliteInbox

    return SqliteInbox(Path(inbox))


def with_archive(inbox: str, use: Callable[[Archive], Awaitable[T]]) -> T:
    """Open an existing inbox, and return what ``use`` returns, which must not write to standard output.

    Raises Unusable, and InvalidRequest for a file of another kind.
    """
    import sqlite3

    import anyio

    async def used() -> T:
        async with inbox_of(inbox) as archive:
            return await use(archive)

    if not Path(inbox).is_file():  # it would be created
        print_error(f"{inbox}: no such file; give the inbox of rbim callback serve")
        raise Unusable
    try:
        return anyio.run(used)
    except (OSError, sqlite3.Error) as error:
        print_error(f"{inbox}: {error}")
        raise Unusable from None
