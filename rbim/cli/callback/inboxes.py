"""The inbox that a command names: the path of a file, or a location on NATS servers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from attrs import evolve

from rbim.cli.context import configuration, nats_settings
from rbim.cli.errors import print_error, print_note
from rbim.cli.exit_codes import Exit
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from rbim.callbacks.inbox.protocols import Archive
    from rbim.callbacks.inbox.sqlite import SqliteInbox
    from rbim.jetstream.inbox import JetStreamInbox

__all__ = ["Unusable", "inbox_of", "is_on_servers", "with_archive"]

MANY_SERVERS, COPIES = 3, 3


def is_on_servers(inbox: str) -> bool:
    """Return whether a text is a location such as ``nats://h1,h2,h3/copies``, and not the path of a file."""
    return inbox.startswith(("nats://", "tls://"))


async def _existing_on_servers(inbox: str) -> JetStreamInbox | None:
    """Return the inbox at a location, as it is there and not entered; None if there is none.

    Raises InvalidRequest, MissingExtra without the extra, and ConnectionError if no server answers, or one with an error: it
    may run and not be able to store yet.
    """
    settings = nats_settings(configuration())
    from rbim.jetstream.inbox import existing_inbox

    servers, name = _location(inbox)
    try:
        return await existing_inbox(servers, name=name, settings=settings)
    except (OSError, RbimError):
        raise
    except Exception as error:
        raise ConnectionError(f"the servers cannot be used now: {type(error).__name__}: {error}") from error


def inbox_of(inbox: str, *, takeover: float | None = None) -> SqliteInbox | JetStreamInbox:
    """Return the inbox of a command that creates it if it is missing.

    One on servers is as it is there. If there is none, or no server answers now, it gets the defaults, and three copies of
    each event if there are three servers. ``takeover`` is for those on servers (None: the default). Raises InvalidRequest,
    and MissingExtra without the extra.
    """
    if not is_on_servers(inbox):
        if takeover is not None:
            raise InvalidRequest(
                "--takeover: only for an inbox on servers, such as nats://h1,h2,h3/copies", field="--takeover"
            )
        from rbim.callbacks.inbox.sqlite import SqliteInbox

        return SqliteInbox(Path(inbox))
    import anyio

    try:
        found = anyio.run(_existing_on_servers, inbox)
    except ConnectionError as error:
        print_note(f"{inbox}: {error}")
        found = None
    if found is None:
        found = _new(inbox)
    return found if takeover is None else evolve(found, takeover=takeover)


def _new(inbox: str) -> JetStreamInbox:
    from rbim.jetstream.inbox import JetStreamInbox

    servers, name = _location(inbox)
    copies = COPIES if len(servers) >= MANY_SERVERS else 1
    return JetStreamInbox(servers, name=name, replicas=copies, settings=nats_settings(configuration()))


def _location(inbox: str) -> tuple[tuple[str, ...], str]:
    from rbim.jetstream.settings import location

    try:
        return location(inbox)
    except InvalidRequest as error:
        raise InvalidRequest(f"--inbox: {error.message}", field="--inbox") from None


T = TypeVar("T")


class Unusable(Exception):
    """The command cannot be carried out; the cause is printed already. ``code`` is the exit code."""

    code = Exit.USAGE


async def _opened_archive(inbox: str) -> AbstractAsyncContextManager[Archive]:
    """Return the inbox that a text names, to be entered: a file, or one on servers. Raises Unusable if there is none.

    Raises ConnectionError if no server answers.
    """
    if is_on_servers(inbox):
        found = await _existing_on_servers(inbox)
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
        async with await _opened_archive(inbox) as archive:
            return await use(archive)

    try:
        return anyio.run(used)
    except (OSError, sqlite3.Error) as error:
        print_error(f"{inbox}: {error}")
        raise Unusable from None
