"""Parts of a chunk that go on alone: halves of a refused request, the rest beyond a limit, accounts that wait again."""

from __future__ import annotations

import json
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rbim.bulk.journal.content import Content
from rbim.bulk.work import AccountState, Chunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rbim.storage.sqlite import Database

__all__ = ["Selection", "divide", "halve", "wait_again"]

CONTENT = """SELECT content.id, content.sender_group, content.size, first, step, rows, accounts
    FROM content JOIN chunk ON chunk.content = content.id WHERE chunk.id = ?"""
REPLACE = "UPDATE content SET size = ?, first = ?, step = ?, rows = ?, accounts = ? WHERE id = ?"
INSERT = "INSERT INTO content (sender_group, size, first, step, rows, accounts) VALUES (?, ?, ?, ?, ?, ?)"
INSERT_CHUNK = "INSERT INTO chunk (sender_group, content, size, state, reason) VALUES (?, ?, ?, ?, ?)"
HALF = "UPDATE chunk SET half_of = ? WHERE id IN (?, ?)"


def _chosen(table: str) -> str:
    """Return the condition that a retry selects the accounts of a row of a table."""
    reasons = """SELECT id FROM reason WHERE text IN (SELECT value FROM json_each(:reasons))
        OR code IN (SELECT value FROM json_each(:reasons))"""
    return f"({table}.state IN (SELECT value FROM json_each(:states)) AND (:any_reason OR {table}.reason IN ({reasons})))"  # noqa: S608  # constants


IN_GROUPS = """(:any_group OR sender_group IN (SELECT sender_group.id FROM sender_group JOIN target_group
    ON target_group.id = target_group WHERE target_group.name IN (SELECT value FROM json_each(:groups))))"""
AGAIN = f"CASE state WHEN {AccountState.UNKNOWN:d} THEN {AccountState.AGAIN:d} ELSE {AccountState.WAITING:d} END"
WITH_EXCEPTIONS = "SELECT chunk FROM exception"
TO_JOIN = f"""size < :size AND sender_group IN (SELECT sender_group FROM chunk
    WHERE size BETWEEN 1 AND :size - 1 OR id IN ({WITH_EXCEPTIONS}) GROUP BY sender_group HAVING count(*) > 1)"""  # noqa: S608  # constants
WHOLE = f"""{_chosen("chunk")} AND {IN_GROUPS} AND id NOT IN ({WITH_EXCEPTIONS}) AND NOT ({TO_JOIN})"""
COUNT_WHOLE = f"SELECT total(size) FROM chunk WHERE {WHOLE}"  # noqa: S608  # constants
UPDATE_WHOLE = f"UPDATE chunk SET state = {AGAIN} WHERE {WHOLE}"  # noqa: S608  # constants
MIXED = f"""SELECT id, sender_group, size, state, reason, {_chosen("chunk")} FROM chunk
    WHERE state > 0 AND size > 0 AND {IN_GROUPS} AND (id IN ({WITH_EXCEPTIONS}) OR {TO_JOIN})
    AND ({_chosen("chunk")} OR id IN (SELECT chunk FROM exception WHERE {_chosen("exception")}))
    ORDER BY sender_group, id"""  # noqa: S608  # constants
EXCEPTIONS = f"""SELECT place, state, reason, {_chosen("exception")} FROM exception
    WHERE chunk = :chunk ORDER BY place"""  # noqa: S608  # constants


def halve(database: Database, whole: Chunk) -> list[Chunk]:
    """Divide a chunk that was refused, and return its halves: one keeps its number, the other is new."""
    middle = (len(whole.accounts) + 1) // 2
    second = divide(database, whole, middle)
    database.execute(HALF, (whole.number, whole.id, second))
    return [
        Chunk(
            id=number,
            group=whole.group,
            user_name=whole.user_name,
            accounts=part,
            repeats=whole.number,
            resent=whole.resent,
        )
        for number, part in ((whole.id, whole.accounts[:middle]), (second, whole.accounts[middle:]))
    ]


def divide(database: Database, whole: Chunk, place: int) -> int:
    """Move the accounts of a waiting chunk from a place on into a new chunk, and return its number."""
    ((content, sender_group, *columns),) = database.execute(CONTENT, (whole.id,))
    accounts, rows = Content(*columns).names(), Content(*columns).numbers()
    database.execute(REPLACE, (*Content.of(accounts[:place], rows[:place]), content))
    state = AccountState.AGAIN if whole.resent else AccountState.WAITING
    database.execute("UPDATE chunk SET size = ?, state = ? WHERE id = ?", (place, state, whole.id))
    other = _insert(database, sender_group, accounts[place:], rows[place:])
    values = (sender_group, other, len(accounts) - place, state, None)
    return cast("int", database.execute(INSERT_CHUNK, values).lastrowid)


def _insert(database: Database, sender_group: int, accounts: Sequence[str], rows: Sequence[int]) -> int:
    return cast("int", database.execute(INSERT, (sender_group, *Content.of(accounts, rows))).lastrowid)


class Selection(NamedTuple):
    """The accounts to send again: in one of the states, and with one of the reasons and groups unless these are empty.

    A reason is the whole text or the code of the reason of an account.
    """

    states: tuple[AccountState, ...]
    reasons: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


class _Account(NamedTuple):
    """An account that waits again."""

    sender_group: int
    state: int
    reason: int | None
    account: str
    row: int


def wait_again(database: Database, selection: Selection) -> int:
    """Let the selected accounts wait again; return their number. Part of a command.

    A chunk whose accounts are all selected waits as it is. Of other chunks the selected accounts go into new ones.
    """
    states, reasons, groups = selection
    ((size,),) = database.execute("SELECT chunk FROM job")
    chosen: dict[str, Any] = {
        "states": json.dumps([int(state) for state in states]),
        "reasons": json.dumps(list(reasons)),
        "groups": json.dumps(list(groups)),
        "any_reason": not reasons,
        "any_group": not groups,
        "size": size,
    }
    ((number,),) = database.execute(COUNT_WHOLE, chosen).fetchall()
    database.execute(UPDATE_WHOLE, chosen)
    mixed = database.execute(MIXED, chosen).fetchall()
    for sender_group, chunks in groupby(mixed, key=lambda row: row[1]):
        waiting: dict[int, list[_Account]] = {AccountState.WAITING: [], AccountState.AGAIN: []}
        for each in chain.from_iterable(_take(database, chosen, *chunk) for chunk in chunks):
            number += 1
            waiting[each.state].append(each)
            if len(waiting[each.state]) == size:
                _insert_chunk(database, sender_group, waiting[each.state])
                waiting[each.state] = []
        for rest in filter(None, waiting.values()):
            _insert_chunk(database, sender_group, rest)
    return int(number)


def _insert_chunk(database: Database, sender_group: int, accounts: list[_Account]) -> None:
    """Insert a chunk of accounts that wait in one state."""
    ordered = sorted(accounts, key=lambda each: each.row)
    content = _insert(database, sender_group, [each.account for each in ordered], [each.row for each in ordered])
    reasons = {each.reason for each in ordered}
    reason = reasons.pop() if len(reasons) == 1 else None
    database.execute(INSERT_CHUNK, (sender_group, content, len(ordered), ordered[0].state, reason))


def _take(  # noqa: PLR0913, PLR0917  # the columns of MIXED
    database: Database,
    chosen: dict[str, Any],
    chunk: int,
    sender_group: int,
    size: int,
    state: int,
    reason: int | None,
    whole: int,
) -> Iterator[_Account]:
    """Take the selected accounts out of a chunk that has exceptions."""
    ((content, _, *columns),) = database.execute(CONTENT, (chunk,))
    accounts, rows = Content(*columns).names(), Content(*columns).numbers()
    exceptions = {place: values for place, *values in database.execute(EXCEPTIONS, chosen | {"chunk": chunk})}
    left: list[int] = []
    for place in range(size):
        its_state, its_reason, is_chosen = exceptions.get(place, (state, reason, whole))
        if not is_chosen:
            left.append(place)
            continue
        unknown = its_state == AccountState.UNKNOWN
        again = AccountState.AGAIN if unknown else AccountState.WAITING
        yield _Account(sender_group, again, its_reason if unknown else None, accounts[place], rows[place])
    database.execute("DELETE FROM exception WHERE chunk = ?", (chunk,))
    if not left:
        database.execute("DELETE FROM content WHERE id = ?", (content,))
        database.execute("UPDATE chunk SET size = 0, content = 0 WHERE id = ?", (chunk,))
        return
    database.execute(REPLACE, (*Content.of([accounts[place] for place in left], [rows[place] for place in left]), content))
    database.execute("UPDATE chunk SET size = ? WHERE id = ?", (len(left), chunk))
    moved = [(chunk, new, *exceptions[place][:2]) for new, place in enumerate(left) if place in exceptions]
    database.executemany("INSERT INTO exception (chunk, place, state, reason) VALUES (?, ?, ?, ?)", moved)
