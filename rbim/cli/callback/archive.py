"""The inbox of a command, opened for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rbim.cli.callback.inboxes import existing_on_servers, is_on_servers
from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from rbim.callbacks.inbox.protocols import Archive

__all__ = ["Unusable", "opened_archive", "with_archive"]

T = TypeVar("T")


class Unusable(Exception):
    """The command cannot be carried out; the cause is printed already. ``code`` is the exit code."""

    code = Exit.USAGE


async def opened_archive(inbox: str) -> AbstractAsyncContextManager[Archive]:
    """Return the inbox that a text names, to be entered: a file, or one on servers. Raises Unusable if there is none.

    Raises ConnectionError if no server answers.
    """
    if is_on_servers(inbox):
        found = await existing_on_servers(inbox)
        if found is None:
            print_error(f"{inbox}: there is no such inbox on the servers; give the inbox of rbim callback serve")
            raise Unusable
        return found
    from rbim.callbacks.inbox.sqlite import SqliteInbox

    path = Path(inbox)
    if not path.is_file():  # noqa: ASYNC240  # nothing else runs. It would be created
        print_error(f"{inbox}: no such file; give the inbox of rbim callback serve")
        raise Unusable
    return SqliteInbox(path)


def with_archive(inbox: str, use: Callable[[Archive], Awaitable[T]]) -> T:
    """Open an inbox, and return what ``use`` returns, which must not write to standard output.

    Raises Unusable, and InvalidRequest for a file of another kind.
    """
    import sqlite3

    import anyio

    async def used() -> T:
        async with await opened_archive(inbox) as archive:
            return await use(archive)

    try:
        return anyio.run(used)
    except (OSError, sqlite3.Error) as error:
        print_error(f"{inbox}: {error}")
        raise Unusable from None
