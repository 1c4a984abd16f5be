"""``rbim callback status`` and ``replay``: look into an inbox, and have its events handled again."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rbim.cli.callback.filters import kind_of, moment_ago
from rbim.cli.callback.inboxes import Unusable, with_archive
from rbim.cli.confirm import Yes, confirmed
from rbim.cli.errors import report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.file_names import FileName  # noqa: TC001  # cyclopts reads it
from rbim.cli.json_output import show_json
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.callbacks.inbox.protocols import Archive

__all__ = ["replay", "status"]

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]

MOST_KINDS = 5


def replay(  # noqa: PLR0913  # flags, each with a default
    *,
    inbox: FileName,
    since: str | None = None,
    kind: str | None = None,
    dead: Flag = False,
    dry_run: Flag = False,
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
    dry_run
        Print how many events would be handled again, by msgType, and change nothing.
    as_json
        Print one JSON object.
    """
    unasked = f"rbim callback replay --inbox {inbox} --yes"
    try:
        moment = None if since is None else moment_ago(since, "--since")
        chosen = None if kind is None else kind_of(kind)
        if dry_run:
            kinds = with_archive(inbox, lambda one: one.replayable(moment, chosen, dead_only=dead))
            return _print_replayable(kinds, as_json=as_json)
        if since is None and kind is None and not (dead or yes):
            every = sum(with_archive(inbox, lambda one: one.replayable()).values())
            action = f"have all {_events(every)} of {inbox} handled again"
            if every and not confirmed(action, unasked, unchanged="nothing was replayed"):
                return Exit.USAGE
        count = with_archive(inbox, lambda one: one.replay(moment, chosen, dead_only=dead))
    except Unusable as unusable:
        return unusable.code
    except InvalidRequest as error:
        return report_error(error, "rbim callback replay")
    if as_json:
        show_json({"events": count})
    else:
        sys.stdout.write(f"{_events(count)} will be handled again\n")
    return Exit.DONE


def _print_replayable(kinds: dict[str, int], *, as_json: bool) -> Exit:
    """Print what a replay would do."""
    if as_json:
        show_json({"events": sum(kinds.values()), "kinds": kinds})
        return Exit.DONE
    sys.stdout.write(f"{_events(sum(kinds.values()))} would be handled again\n")
    shown = {printable(kind) or "-": count for kind, count in kinds.items()}
    width = max(map(len, shown), default=0)
    sys.stdout.write("".join(f"{kind:<{width}}  {count}\n" for kind, count in shown.items()))
    return Exit.DONE


def status(inbox: FileName, *, as_json: Json = False) -> int:
    """Show how many events of an inbox wait, were handled, are dead letters (of which msgType) or in quarantine.

    It changes nothing, and may run beside the receiver.

    Parameters
    ----------
    inbox
        The file in which `rbim callback serve` stores events.
    as_json
        Print one JSON object. `lag` is the age of the oldest waiting event in seconds, 0 if none waits; `dead_kinds` has the
        number of dead letters by msgType.
    """

    async def read(archive: Archive) -> tuple[dict[str, float], dict[str, int]]:
        counts = await archive.counts()
        found = {
            "waiting": counts.waiting,
            "lag": round(await archive.lag(), 3),
            "done": counts.done,
            "dead": counts.dead,
            "quarantined": counts.quarantined,
        }
        return found, await archive.replayable(dead_only=True) if counts.dead else {}

    try:
        found, kinds = with_archive(inbox, read)
    except Unusable as unusable:
        return unusable.code
    except InvalidRequest as error:
        return report_error(error, "rbim callback status")
    if as_json:
        show_json(found | {"dead_kinds": kinds})
        return Exit.DONE
    oldest = f" (the oldest for {timedelta(seconds=int(found['lag']))})" if found["waiting"] else ""
    of = ", ".join(f"{printable(kind) or '-'} {count}" for kind, count in [*kinds.items()][:MOST_KINDS])
    of = f" ({of}{', ...' if len(kinds) > MOST_KINDS else ''})" if of else ""
    lines = {"waiting": f"{found['waiting']}{oldest}", "handled": found["done"]}
    lines |= {"dead letters": f"{found['dead']}{of}", "in quarantine": found["quarantined"]}
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines.items()))
    return Exit.DONE


def _events(count: int) -> str:
    return f"{count} {'event' if count == 1 else 'events'}"
