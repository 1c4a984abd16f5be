"""``rbim callback status`` and ``replay``: look into an inbox, and have its events handled again."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from rbim.cli.confirm import Yes, confirmed
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.output import show_json
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rbim.callbacks.events.types import Event
    from rbim.callbacks.inbox.sqlite import SqliteInbox

__all__ = ["moment_of", "replay", "status"]

T = TypeVar("T")

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]


def replay(  # noqa: PLR0913  # flags, each with a default
    *,
    inbox: Path,
    since: str | None = None,
    kind: str | None = None,
    dead: Flag = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Schedule events of an inbox to be handled again, and print their number.

    Without --since, --kind or --dead it asks first, since all events are handled again.
    `rbim callback serve --print` handles them at once if it is running, else when it starts.

    Parameters
    ----------
    inbox
        The file in which `rbim callback serve` stores events.
    since
        Only events received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
    kind
        Only events of one kind: a msgType such as TEAM_KICK, or a class such as TeamKick or Notification.
    dead
        Only dead letters: events that failed in their last attempt.
    as_json
        Print one JSON object.
    """
    unasked = f"rbim callback replay --inbox {inbox} --yes"
    try:
        moment = None if since is None else _since(since)
        chosen = None if kind is None else _kind(kind)
        if since is None and kind is None and not (dead or yes):
            counts = _opened(inbox, lambda opened: opened.counts())
            action = f"have all {_events(counts.done + counts.dead)} of {inbox} handled again"
            if counts.done + counts.dead and not confirmed(action, unasked, unchanged="nothing was replayed"):
                return Exit.USAGE
        count = _opened(inbox, lambda opened: opened.replay(moment, chosen, dead_only=dead))
    except _Unusable:
        return Exit.USAGE
    except InvalidRequest as error:
        return report_error(error, "rbim callback replay")
    if as_json:
        show_json({"events": count})
    else:
        sys.stdout.write(f"{_events(count)} will be handled again\n")
    return Exit.DONE


def status(inbox: Path, *, as_json: Json = False) -> int:
    """Show how many events of an inbox wait, were handled, are dead letters or in quarantine.

    It changes nothing, and may run beside the receiver.

    Parameters
    ----------
    inbox
        The file in which `rbim callback serve` stores events.
    as_json
        Print one JSON object. `lag` is the age of the oldest waiting event in seconds, 0 if none waits.
    """

    async def read(opened: SqliteInbox) -> dict[str, float]:
        counts = await opened.counts()
        return {
            "waiting": counts.waiting,
            "lag": round(await opened.lag(), 3),
            "done": counts.done,
            "dead": counts.dead,
            "quarantined": counts.quarantined,
        }

    try:
        found = _opened(inbox, read)
    except _Unusable:
        return Exit.USAGE
    except InvalidRequest as error:
        return report_error(error, "rbim callback status")
    if as_json:
        show_json(found)
        return Exit.DONE
    oldest = f" (the oldest for {timedelta(seconds=int(found['lag']))})" if found["waiting"] else ""
    lines = {"waiting": f"{found['waiting']}{oldest}", "handled": found["done"]}
    lines |= {"dead letters": found["dead"], "in quarantine": found["quarantined"]}
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines.items()))
    return Exit.DONE


class _Unusable(Exception):
    """The inbox cannot be used; the cause is printed already."""


def _opened(inbox: Path, use: Callable[[SqliteInbox], Awaitable[T]]) -> T:
    """Open an inbox and return what ``use`` returns. Raises _Unusable."""
    import sqlite3

    import anyio

    from rbim.callbacks.inbox.sqlite import SqliteInbox

    async def used() -> T:
        async with SqliteInbox(inbox) as opened:
            return await use(opened)

    if not inbox.is_file():
        print_error(f"{inbox}: no such file; give the inbox of rbim callback serve")
        raise _Unusable
    try:
        return anyio.run(used)
    except (OSError, sqlite3.Error) as error:
        print_error(f"{inbox}: {error}")
        raise _Unusable from None


def _events(count: int) -> str:
    return f"{count} {'event' if count == 1 else 'events'}"


_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _since(text: str) -> datetime:
    ago = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    if ago is None:
        return moment_of(text, "--since", "7d, 24h, 30m or ")
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def moment_of(text: str, flag: str, others: str = "") -> datetime:
    """Return the time of a flag's text. Raises InvalidRequest unless it has a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            f"{flag}: invalid time {text!r}: use {others}a time with its zone, such as 2026-01-31T09:00:00+08:00", field=flag
        )
    return moment


def _kind(text: str) -> type[Event] | str:
    """Return a class of events by its name, or a ``msgType``: a known one in any case, an unknown one in upper case."""
    from rbim.callbacks.events.enums import MsgType, Notice
    from rbim.callbacks.events.types import Event

    classes, written = _classes(Event), text.replace("-", "_")
    if text.lower() in classes and not text.isupper():
        return classes[text.lower()]
    if written.upper() in {*MsgType, *Notice} or written.isupper():
        return written.upper()
    names = ", ".join(sorted(kind.__name__ for kind in classes.values()))
    raise InvalidRequest(f"--kind: unknown kind {text!r}: use a msgType such as TEAM_KICK or one of {names}", field="--kind")


def _classes(kind: type[Event]) -> dict[str, type[Event]]:
    found = {kind.__name__.lower(): kind}
    for each in kind.__subclasses__():
        found |= _classes(each)
    return found
