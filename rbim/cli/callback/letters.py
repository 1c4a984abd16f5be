"""``rbim callback letters``: list, show, requeue and delete what an inbox keeps for people.

Dead letters are events whose last attempt failed; the quarantine has authentic deliveries that cannot be handled.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attrs import frozen
from cyclopts import App, Parameter
from cyclopts.validators import Number

from rbim._support.json_values import json_values
from rbim._support.text import counted, headline, printable
from rbim.callbacks.events import document_of
from rbim.cli.callback.inboxes import InboxFile, is_on_server, shown_inbox, with_archive
from rbim.cli.callback.options import Count, kind_of, moment_ago, shown_kinds  # cyclopts reads it
from rbim.cli.confirm import Yes, confirmed
from rbim.cli.errors import print_error, print_note
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Flag, Json, whole  # cyclopts reads it
from rbim.cli.global_flags import quoted_words
from rbim.cli.json_output import escaped, show_json
from rbim.cli.output import print_rows
from rbim.errors import CallbackRejected, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from rbim.callbacks.inbox.protocols import StoredEvent
    from rbim.callbacks.inbox.stored import Archive

__all__ = ["discard", "letters", "list_letters", "requeue", "show"]

PAGE = 500
NAMED = 10  # numbers that a message names
NONE = "-"
QUARANTINED = "quarantined"
LOST = "their content is lost, and one that the platform sends again is a new event"

HELP = """\
List, show, requeue or delete dead letters, or with --quarantine, events in quarantine.

Dead letters are events whose last attempt failed. Events in quarantine are authentic deliveries that cannot be handled: the
body cannot be read, it is of another application, or it has the `msgId` of an earlier event and other content. Both stay in
the inbox until someone decides: correct the cause and requeue them, or delete them. The commands may run beside the
receiver.
"""

letters = App(name="letters", help=HELP, help_format="markdown")


After = Annotated[int, Parameter(converter=whole, validator=Number(gte=0), show_default=False)]
Every = Annotated[bool, Parameter(name="--all", negative=(), show_default=False)]


@Parameter(name="*")
@frozen(kw_only=True)
class _Choice:
    """A choice of dead letters, or of events in quarantine.

    Parameters
    ----------
    quarantine
        Events in quarantine in place of dead letters.
    since
        Only those received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
    kind
        Only those of one kind: a msgType such as TEAM_KICK, or a class such as TeamKick or Notification.
    conversation
        Only those of one conversation, as the list shows it.
    """

    quarantine: Flag = False
    since: str | None = None
    kind: str | None = None
    conversation: str | None = None

    def count(self, number: int) -> str:
        """Return a number of them in words."""
        return f"{counted(number, 'event')} in quarantine" if self.quarantine else counted(number, "dead letter")

    async def page(self, archive: Archive, after: int, limit: int = PAGE) -> list[StoredEvent]:
        """Return the next of them. Raises InvalidRequest for a wrong flag."""
        read = archive.quarantined if self.quarantine else archive.dead_letters
        since = None if self.since is None else moment_ago(self.since, "--since")
        kind = None if self.kind is None else kind_of(self.kind)
        return await read(limit, after, since=since, kind=kind, conversation=self.conversation)


DEAD = _Choice()


@letters.command(name="list", sort_key=0)
def list_letters(  # flags, each with a default
    inbox: InboxFile,
    /,
    *,
    choice: _Choice = DEAD,
    limit: Count = 100,
    after: After = 0,
    as_json: Json = False,
) -> int:
    """List dead letters, the oldest first: one line for each, with the first line of its error.

    Parameters
    ----------
    limit
        At most this many.
    after
        Only those with higher numbers: for the next page, the last number of this one.
    as_json
        Print one JSON object per line, with everything but the body. The body is in `show`.
    """
    found = with_archive(inbox, lambda archive: choice.page(archive, after, limit + 1))
    shown = found[:limit]
    if as_json:
        for letter in shown:
            show_json(_without_body(letter), more=True)
    elif shown:
        rows: list[dict[str, str]] = []
        for each in shown:
            row = {"number": str(each.number), "received": _local(each.received)}
            row |= {} if choice.quarantine else {"attempts": str(each.attempts)}
            row |= {"type": each.msg_type or NONE, "conversation": _conversation(each), "error": headline(each.error)}
            rows.append(row)
        print_rows(rows, numbers=("number", "attempts"), whole=("received",), cut="error")
    else:
        sys.stdout.write(f"no {choice.count(0).removeprefix('0 ')}\n")
    sys.stdout.flush()
    if len(found) > limit:
        print_note(f"there are more: add --after {shown[-1].number} for the next ones")
    if choice.quarantine and not is_on_server(inbox):
        from rbim.callbacks.receiver.spool import refused_in

        spool = Path(f"{inbox}-spool")
        if refused := refused_in(spool):
            print_note(f"{spool} keeps {len(refused)} more, which the inbox refuses: {printable(refused[0])}")
    return Exit.DONE


@letters.command(sort_key=1)
def show(inbox: InboxFile, number: Count, /, *, as_json: Json = False, body: Flag = False) -> int:
    """Show a dead letter, or an event in quarantine: where it is from, its error, and its body.

    Parameters
    ----------
    number
        Its number, as in the list.
    as_json
        Print one JSON object: `document` is the body, or null if it is no JSON object, `body_base64` its bytes.
    body
        Write only the body, byte by byte as it came: for a file or another program.
    """
    if body and as_json:
        raise InvalidRequest("--body: give either --body or --json, not both", field="--body")
    (letter,) = with_archive(inbox, lambda archive: _numbered(inbox, archive, [number]))
    document: Any = None
    with suppress(CallbackRejected):
        document = document_of(letter.body)
    if body:
        sys.stdout.flush()
        sys.stdout.buffer.write(letter.body)
        sys.stdout.buffer.flush()
    elif as_json:
        encoded = base64.b64encode(letter.body).decode("ascii")
        show_json({**_without_body(letter), "document": document, "body_base64": encoded})
    else:
        _print_letter(letter, document)
    return Exit.DONE


@letters.command(sort_key=2)
def requeue(  # flags, each with a default
    inbox: InboxFile,
    /,
    *numbers: Count,
    choice: _Choice = DEAD,
    every: Every = False,
    as_json: Json = False,
) -> int:
    """Have dead letters, or events in quarantine, handled again, and print how many.

    Each has its old place in its conversation, and as many attempts as a new event. `rbim callback serve` handles it at
    once if it is running and has handlers, else when it starts.

    Exit code 1: some cannot be handled, and are left in quarantine. 2: a number is wrong, and nothing was changed.

    Parameters
    ----------
    numbers
        Their numbers, as in the list.
    every
        All dead letters, or those that --quarantine, --since, --kind and --conversation choose.
    as_json
        Print one JSON object: the number of `events`, and the numbers of those that are `left`.
    """
    _require_numbers_or_all(numbers, every=every)
    if choice != DEAD and not every:
        raise InvalidRequest("--quarantine, --since, --kind and --conversation choose among --all, not among numbers")

    async def use(archive: Archive) -> tuple[int, dict[int, str]]:
        count, left = 0, dict[int, str]()
        found = await choice.page(archive, 0) if every else await _numbered(inbox, archive, numbers)
        while found:
            done = await archive.requeue([letter.number for letter in found])
            count += done
            if done < len(found):
                after = [await archive.event(letter.number) for letter in found if letter.state == QUARANTINED]
                left |= {each.number: each.error for each in after if each is not None and each.state == QUARANTINED}
            found = await choice.page(archive, found[-1].number) if every else []
        return count, left

    count, left = with_archive(inbox, use)
    if as_json:
        show_json({"events": count, "left": list(left)})
    else:
        sys.stdout.write(f"{choice.count(count) if every else counted(count, 'event')} will be handled again\n")
    if not left:
        return Exit.DONE
    sys.stdout.flush()
    first = min(left)
    print_error(f"{_listed(left)}: cannot be handled, left in quarantine", f"{first}: {headline(left[first])}")
    return Exit.REFUSED


@letters.command(sort_key=3)
def discard(  # noqa: PLR0913  # flags, each with a default
    inbox: InboxFile,
    /,
    *numbers: Count,
    quarantine: Flag = False,
    every: Every = False,
    before: str | None = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Delete dead letters, or events in quarantine, after a confirmation.

    Nothing of them stays, not even their keys: if the platform sends one again, it is handled as a new event. All of them
    are deleted in small steps, so that deliveries are accepted meanwhile.

    Exit code 2: a number is wrong or it was not confirmed, and nothing was changed.

    Parameters
    ----------
    numbers
        Their numbers, as in the list.
    quarantine
        With --all: the events in quarantine in place of the dead letters.
    every
        All of them, or with --before the old ones.
    before
        With --all: only those received before then: 7d, 24h, 30m ago, or 2026-01-31T09:00:00+08:00.
    as_json
        Print one JSON object.
    """
    _require_numbers_or_all(numbers, every=every)
    moment = None if before is None else moment_ago(before, "--before")
    if (moment is not None or quarantine) and not every:
        raise InvalidRequest("--quarantine and --before choose among --all, not among numbers")
    choice = _Choice(quarantine=quarantine)

    async def those(archive: Archive) -> tuple[int, str]:
        """Return how many would be deleted, with the words for it."""
        if not every:
            found = await _numbered(inbox, archive, numbers)
            kinds = dict(Counter(letter.msg_type or "unreadable" for letter in found).most_common())
            return len(found), f"{counted(len(found), 'event')} of {shown_inbox(inbox)} ({shown_kinds(kinds)})"
        count = await _count_before(choice, archive, moment)
        old = "" if moment is None else f" that came before {_local(moment)}"
        return count, f"{choice.count(count)} of {shown_inbox(inbox)}{old}"

    async def delete(archive: Archive) -> int:
        if every:
            return await archive.purge(dead=not quarantine, quarantined=quarantine, before=moment)
        return await archive.discard(numbers)

    expected, which = with_archive(inbox, those)
    if expected and not yes:
        words = ["--all"] if every else [*map(str, numbers[:NAMED]), *(["..."] if len(numbers) > NAMED else [])]
        words += ["--before", moment.isoformat()] if moment is not None else []
        words += ["--quarantine"] if quarantine else []
        unasked = quoted_words("rbim", "callback", "letters", "discard", shown_inbox(inbox), *words, "--yes")
        if not confirmed(f"permanently delete {which}: {LOST}", unasked, unchanged="nothing was deleted"):
            return Exit.USAGE
    count = with_archive(inbox, delete) if expected else 0
    if as_json:
        show_json({"events": count})
    else:
        sys.stdout.write(f"{choice.count(count) if every else counted(count, 'event')} deleted\n")
    return Exit.DONE


def _require_numbers_or_all(numbers: Sequence[int], *, every: bool) -> None:
    if bool(numbers) is every:
        raise InvalidRequest("give the numbers of events, or --all" if not numbers else "give numbers or --all, not both")


async def _numbered(inbox: str, archive: Archive, numbers: Sequence[int]) -> list[StoredEvent]:
    """Return the events with these numbers. Raises InvalidRequest, which names those that are not there."""
    found = {number: await archive.event(number) for number in numbers}
    if missing := [number for number, letter in found.items() if letter is None]:
        place = shown_inbox(inbox)
        raise InvalidRequest(f"{place}: no dead letter, and no event in quarantine, has the number {_listed(missing)}")
    return [letter for letter in found.values() if letter is not None]


async def _count_before(choice: _Choice, archive: Archive, moment: datetime | None) -> int:
    """Return how many events of a choice came before a time (None: all)."""
    if moment is None:
        counts = await archive.counts()
        return counts.quarantined if choice.quarantine else counts.dead
    count, at = 0, 0
    while page := await choice.page(archive, at):
        count += sum(letter.received < moment for letter in page)
        at = page[-1].number
    return count


def _listed(numbers: Iterable[int]) -> str:
    given = [str(number) for number in numbers]
    return ", ".join(given[:NAMED]) + (f" and {len(given) - NAMED} more" if len(given) > NAMED else "")


def _without_body(letter: StoredEvent) -> dict[str, Any]:
    return {name: each for name, each in json_values(letter).items() if name != "body"}


def _conversation(letter: StoredEvent) -> str:
    """Return the conversation without its application; ``-`` if it is that of one delivery alone."""
    return NONE if letter.conversation == letter.key else letter.conversation.removeprefix(f"{letter.app_id}/")


def _local(moment: datetime) -> str:
    """Return a time in the zone of this machine, to the second; one at an end of the calendar in its own zone."""
    with suppress(OverflowError):
        moment = moment.astimezone()
    return moment.isoformat(" ", "seconds")


def _print_letter(letter: StoredEvent, document: object) -> None:
    fields = {
        "number": str(letter.number),
        "type": letter.msg_type or NONE,
        "conversation": _conversation(letter),
        "application": letter.app_id,
        "key": letter.key,
        "received": _local(letter.received),
        **({} if letter.state == QUARANTINED else {"attempts": str(letter.attempts)}),
    }
    width = max(map(len, fields)) + 2
    sys.stdout.write("".join(f"{name:<{width}}{escaped(text)}\n" for name, text in fields.items()))
    title, body = "body", json.dumps(document, ensure_ascii=False, indent=2)
    if document is None:
        title = f"body, {len(letter.body)} bytes that are not a JSON object"
        body = letter.body.decode("utf-8", "backslashreplace")
    for name, text in {"error": letter.error, title: body}.items():
        lines = text.rstrip("\n").split("\n")
        sys.stdout.write(f"\n{name}:\n" + "".join(f"{escaped(line)}\n" for line in lines))
