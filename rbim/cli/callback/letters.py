"""``rbim callback dead`` and ``quarantine``: show, requeue and delete what an inbox keeps for people."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.callbacks.events.parsing import document_of
from rbim.cli.callback.archive import Unusable, with_archive
from rbim.cli.callback.filters import kind_of, moment_ago
from rbim.cli.confirm import confirmed
from rbim.cli.errors import print_error, print_note
from rbim.cli.exit_codes import Exit
from rbim.cli.json_output import show_json
from rbim.cli.output import console
from rbim.cli.printable import json_line, printable
from rbim.errors import CallbackRejected, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from rbim.callbacks.events.types import Event
    from rbim.callbacks.inbox.protocols import Archive, DeadLetter

__all__ = [
    "DEAD",
    "QUARANTINE",
    "Chosen",
    "Kept",
    "discard",
    "headline",
    "letter_body",
    "letter_document",
    "local",
    "print_list",
    "print_one",
    "purge",
    "requeue",
    "requeue_all",
    "requeue_each",
    "short_conversation",
]

PAGE = 500
NAMED = 10  # numbers or kinds that a message names
NONE = "-"
GAP = 2  # characters between two columns
CUT = ("type", "conversation", "error")  # columns that are cut where there is no room for them
LEAST = 4  # characters of such a column
LEAST_ERROR = 20  # characters of an error without which the number of attempts is left out


@frozen(kw_only=True)
class Kept:
    """One of the two things that an inbox keeps for people: its command and its words."""

    command: str
    one: str
    several: str
    quarantined: bool

    def count(self, number: int) -> str:
        """Return a number of them in words."""
        return f"{number} {self.one if number == 1 else self.several}"

    async def page(self, archive: Archive, chosen: Chosen, limit: int, after: int) -> list[DeadLetter]:
        """Return the next of them."""
        read = archive.quarantined if self.quarantined else archive.dead_letters
        return await read(limit, after, since=chosen.since, kind=chosen.kind, conversation=chosen.conversation)

    @property
    def only(self) -> dict[str, bool]:
        """The options of an archive's methods that leave out the other ones."""
        return {"dead": not self.quarantined, "quarantined": self.quarantined}


DEAD = Kept(command="dead", one="dead letter", several="dead letters", quarantined=False)
QUARANTINE = Kept(command="quarantine", one="event in quarantine", several="events in quarantine", quarantined=True)


@frozen(kw_only=True)
class Chosen:
    """A choice of events; None: any."""

    since: datetime | None = None
    kind: type[Event] | str | None = None
    conversation: str | None = None

    @classmethod
    def of(cls, since: str | None, kind: str | None, conversation: str | None) -> Chosen:
        """Return the choice of three flags. Raises InvalidRequest."""
        return cls(
            since=None if since is None else moment_ago(since, "--since"),
            kind=None if kind is None else kind_of(kind),
            conversation=conversation,
        )


def print_list(  # noqa: PLR0913  # the flags of the command
    kept: Kept, inbox: str, chosen: Chosen, *, limit: int, after: int, as_json: bool
) -> Exit:
    """Print a table, or a line of JSON for each."""

    async def read(archive: Archive) -> tuple[list[Mapping[str, Any]], bool]:
        found: list[Mapping[str, Any]] = []
        at = after
        while page := await kept.page(archive, chosen, min(PAGE, limit - len(found) + 1), at):
            found += map(letter_document, page)
            at = page[-1].number
            if len(found) > limit:
                break
        return found[:limit], len(found) > limit

    found, more = with_archive(inbox, read)
    if as_json:
        for document in found:
            show_json(document, more=True)
    elif found:
        _print_table(found, attempts=not kept.quarantined)
    else:
        sys.stdout.write(f"no {kept.several}\n")
    if more:
        sys.stdout.flush()
        print_note(f"there are more: add --after {found[-1]['number']} for the next ones")
    return Exit.DONE


def letter_document(letter: DeadLetter) -> Mapping[str, Any]:
    """Return everything but the body."""
    return {
        "number": letter.number,
        "received": letter.received.isoformat(),
        "msg_type": letter.msg_type,
        "conversation": letter.conversation,
        "app_id": letter.app_id,
        "key": letter.key,
        "attempts": letter.attempts,
        "quarantined": letter.quarantined,
        "error": letter.error,
    }


def _print_table(found: Sequence[Mapping[str, Any]], *, attempts: bool) -> None:
    """Print one line for each, cut so that it fits into the terminal; the number of attempts only if there is room."""
    from datetime import datetime

    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    out = console()
    rows = [
        {
            "number": str(each["number"]),
            "received": local(datetime.fromisoformat(each["received"])),
            "attempts": str(each["attempts"]),
            "type": each["msg_type"] or NONE,
            "conversation": short_conversation(each),
            "error": headline(each["error"]) or NONE,
        }
        for each in found
    ]
    texts = [{name: Text(printable(text)) for name, text in row.items()} for row in rows]
    longest = {name: max(len(name), *(row[name].cell_len for row in texts)) for name in rows[0]}
    widths = _widths(longest if attempts else {**longest, "attempts": 0}, out.width)
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name, width in widths.items():
        right = name in {"number", "attempts"}
        made.add_column(name, justify="right" if right else "left", no_wrap=True, min_width=width, max_width=width)
    for row in texts:
        for name, width in widths.items():
            row[name].truncate(width, overflow="ellipsis")
        made.add_row(*(row[name] for name in widths))
    out.print(made)


def _widths(longest: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the width of each column that is shown; numbers and time are never cut."""
    widths = {name: width for name, width in longest.items() if width}
    room = most - GAP * (len(widths) - 1) - sum(width for name, width in widths.items() if name not in CUT)
    for place, name in enumerate(CUT):
        widths[name] = min(widths[name], max(LEAST, room // (len(CUT) - place)))
        room -= widths[name]
    if "attempts" in widths and widths["error"] < min(longest["error"], LEAST_ERROR):
        return _widths({**longest, "attempts": 0}, most)
    return widths


def short_conversation(document: Mapping[str, Any]) -> str:
    """Return the conversation without its application; nothing if it is that of one delivery alone."""
    conversation, key = document["conversation"], document["key"]
    return NONE if conversation == key else conversation.removeprefix(f"{document['app_id']}/")


def local(moment: datetime) -> str:
    """Return a time in the zone of this machine, to the second; one at an end of the calendar in its own zone."""
    with suppress(OverflowError):
        moment = moment.astimezone()
    return moment.isoformat(" ", "seconds")


def headline(error: str) -> str:
    """Return the first line of an error; of a traceback, the line of its last exception."""
    lines = [line for line in error.splitlines() if line.strip()]
    heads = [at for at, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    group = [at for at in heads if "Exception Group" in lines[at]]
    if heads:
        for line in lines[(group or heads[-1:])[0] + 1 :]:
            text = line.removeprefix("  | ") if group else line
            if text and not text[0].isspace():
                return text
    return lines[0] if lines else ""


def print_one(kept: Kept, inbox: str, number: int, *, as_json: bool, body: bool) -> Exit:
    """Print everything about one event, or only its body as it came."""
    if body and as_json:
        raise InvalidRequest("--body: give either --body or --json, not both", field="--body")

    async def read(archive: Archive) -> DeadLetter:
        (letter,) = await _letters(kept, inbox, archive, (number,))
        return letter

    letter = with_archive(inbox, read)
    if body:
        sys.stdout.flush()
        sys.stdout.buffer.write(letter.body)
        sys.stdout.buffer.flush()
        return Exit.DONE
    document = letter_body(letter.body)
    if as_json:
        encoded = base64.b64encode(letter.body).decode("ascii")
        show_json({**letter_document(letter), "document": document, "body_base64": encoded})
        return Exit.DONE
    fields = {
        "number": str(letter.number),
        "type": letter.msg_type or NONE,
        "conversation": short_conversation(letter_document(letter)),
        "application": letter.app_id,
        "key": letter.key,
        "received": local(letter.received),
        **({} if letter.quarantined else {"attempts": str(letter.attempts)}),
    }
    width = max(map(len, fields)) + 2
    sys.stdout.write("".join(f"{name:<{width}}{_escaped(text)}\n" for name, text in fields.items()))
    _print_part("error", letter.error)
    if document is None:
        _print_part(
            f"body, {len(letter.body)} bytes that are not a JSON object", letter.body.decode("utf-8", "backslashreplace")
        )
    else:
        _print_part("body", json.dumps(document, ensure_ascii=False, indent=2))
    return Exit.DONE


def letter_body(body: bytes) -> Any:  # a JSON object, or None
    """Return the JSON object in a body, or None if it holds none."""
    try:
        return document_of(body)
    except CallbackRejected:
        return None


def _print_part(name: str, text: str) -> None:
    lines = text.rstrip("\n").split("\n")
    sys.stdout.write(f"\n{name}:\n" + "".join(f"{_escaped(line)}\n" for line in lines))


def _escaped(line: str) -> str:
    """Return a line in which each unprintable character is escaped."""
    return line if line.isprintable() else "".join(c if c.isprintable() else json_line(c)[1:-1] for c in line)


def requeue(  # noqa: PLR0913  # the flags of the command
    kept: Kept, inbox: str, numbers: Sequence[int], chosen: Chosen, *, every: bool, as_json: bool
) -> Exit:
    """Let events be handled again, and print their number."""
    if bool(numbers) is every:
        raise InvalidRequest("give the numbers of events, or --all" if not numbers else "give numbers or --all, not both")
    if chosen != Chosen() and not every:
        raise InvalidRequest("--since, --kind and --conversation choose among --all, not among numbers")

    async def use(archive: Archive) -> tuple[int, dict[int, str]]:
        if every:
            return await requeue_all(kept, archive, chosen)
        return await requeue_each(kept, archive, await _letters(kept, inbox, archive, numbers))

    count, left = with_archive(inbox, use)
    if as_json:
        show_json({"events": count, "left": list(left)})
    else:
        sys.stdout.write(f"{kept.count(count)} will be handled again\n")
    if left:
        sys.stdout.flush()
        first = min(left)
        print_error(f"{_numbers(left)}: cannot be handled, left in quarantine", f"{first}: {headline(left[first])}")
        return Exit.REFUSED
    return Exit.DONE


async def requeue_each(kept: Kept, archive: Archive, letters: Sequence[DeadLetter]) -> tuple[int, dict[int, str]]:
    """Let events be handled again; return how many, and the errors of those that are left in quarantine, by number."""
    done = await archive.requeue([letter.number for letter in letters], **kept.only)
    if done == len(letters) or not kept.quarantined:
        return done, {}
    return done, {each.number: each.error for each in letters if await _in_quarantine(archive, each.number)}


async def requeue_all(
    kept: Kept, archive: Archive, chosen: Chosen, accepts: Callable[[DeadLetter], bool] = lambda _: True
) -> tuple[int, dict[int, str]]:
    """Let all events of a choice be handled again of which ``accepts`` is true; return as :func:`requeue_each`."""
    count, left, at = 0, dict[int, str](), 0
    while page := await kept.page(archive, chosen, PAGE, at):
        wanted, at = [each for each in page if accepts(each)], page[-1].number
        if wanted:
            done, more = await requeue_each(kept, archive, wanted)
            count, left = count + done, left | more
    return count, left


async def _in_quarantine(archive: Archive, number: int) -> bool:
    letter = await archive.event(number)
    return letter is not None and letter.quarantined


def discard(kept: Kept, inbox: str, numbers: Sequence[int], *, yes: bool, as_json: bool) -> Exit:
    """Delete events after a confirmation."""
    if not numbers:
        raise InvalidRequest("give the numbers of the events to delete")
    letters = with_archive(inbox, lambda archive: _letters(kept, inbox, archive, numbers))
    given = " ".join(str(letter.number) for letter in letters[:NAMED]) + (" ..." if len(letters) > NAMED else "")
    action = f"permanently delete {kept.count(len(letters))} of {inbox} ({_kinds(letters)}): {LOST}"
    unasked = f"rbim callback {kept.command} discard {inbox} {given} --yes"
    if not yes and not confirmed(action, unasked, unchanged="nothing was deleted"):
        return Exit.USAGE
    numbers = [letter.number for letter in letters]
    count = with_archive(inbox, lambda archive: archive.discard(numbers, **kept.only))
    return _deleted(kept, count, as_json=as_json)


LOST = "their content is lost, and one that the platform sends again is a new event"


def purge(kept: Kept, inbox: str, before: datetime | None, *, yes: bool, as_json: bool) -> Exit:
    """Delete all events, or the old ones, after a confirmation."""

    async def count_them(archive: Archive) -> int:
        if before is None:
            counts = await archive.counts()
            return counts.quarantined if kept.quarantined else counts.dead
        count, at = 0, 0
        while page := await kept.page(archive, Chosen(), PAGE, at):
            count += sum(letter.received < before for letter in page)
            at = page[-1].number
        return count

    if not yes:
        expected = with_archive(inbox, count_them)
        old = "" if before is None else f" that came before {local(before)}"
        action = f"permanently delete {kept.count(expected)} of {inbox}{old}: {LOST}"
        limit = "" if before is None else f" --before {before.isoformat()}"
        unasked = f"rbim callback {kept.command} purge {inbox}{limit} --yes"
        if expected and not confirmed(action, unasked, unchanged="nothing was deleted"):
            return Exit.USAGE
        if not expected:
            return _deleted(kept, 0, as_json=as_json)
    return _deleted(kept, with_archive(inbox, lambda archive: archive.purge(**kept.only, before=before)), as_json=as_json)


def _deleted(kept: Kept, count: int, *, as_json: bool) -> Exit:
    if as_json:
        show_json({"events": count})
    else:
        sys.stdout.write(f"{kept.count(count)} deleted\n")
    return Exit.DONE


async def _letters(kept: Kept, inbox: str, archive: Archive, numbers: Iterable[int]) -> list[DeadLetter]:
    """Return the events with these numbers. Raises Unusable, and names them, if one is not there."""
    found: list[DeadLetter] = []
    elsewhere: list[int] = []
    missing: list[int] = []
    for number in dict.fromkeys(numbers):
        letter = await archive.event(number)
        if letter is None:
            missing.append(number)
        elif letter.quarantined != kept.quarantined:
            elsewhere.append(number)
        else:
            found.append(letter)
    if missing:
        print_error(f"{inbox}: no {kept.one} has the number {_numbers(missing)}")
    if elsewhere:
        one = len(elsewhere) == 1
        there = f"in quarantine, and no {kept.one if one else kept.several}"
        if kept.quarantined:
            there = f"{'a dead letter' if one else 'dead letters'}, and not in quarantine"
        other = DEAD if kept.quarantined else QUARANTINE
        print_error(
            f"{inbox}: {_numbers(elsewhere)} {'is' if one else 'are'} {there}",
            f"See: rbim callback {other.command} show {inbox} {elsewhere[0]}",
        )
    if missing or elsewhere:
        raise Unusable
    return found


def _numbers(numbers: Iterable[int]) -> str:
    given = [str(number) for number in numbers]
    return ", ".join(given[:NAMED]) + (f" and {len(given) - NAMED} more" if len(given) > NAMED else "")


def _kinds(letters: Iterable[DeadLetter]) -> str:
    counts = Counter(letter.msg_type or "unreadable" for letter in letters).most_common()
    return ", ".join(f"{kind} {count}" for kind, count in counts[:NAMED]) + (", ..." if len(counts) > NAMED else "")
