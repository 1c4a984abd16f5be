"""Order of sending: first the requests to be sent again, then the chunks by number: one of each group, and again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rbim.bulk.journal.parts import divide
from rbim.bulk.work import AccountState, Chunk, RequestState

if TYPE_CHECKING:
    from rbim.storage.sqlite import Database

__all__ = ["Planner"]

COLUMNS = "chunk.id, chunk.state, target_group.name, sender_group.user_name, content.accounts"
TABLES = """JOIN content ON content.id = chunk.content JOIN sender_group ON sender_group.id = chunk.sender_group
    JOIN target_group ON target_group.id = sender_group.target_group"""
WAITING = f"""SELECT {COLUMNS}, chunk.half_of FROM chunk {TABLES}
    WHERE chunk.id > ? AND chunk.id <= ? AND chunk.state <= 0
    AND NOT EXISTS (SELECT 1 FROM request WHERE request.todo = 1 AND request.chunk = chunk.id)
    AND NOT EXISTS (SELECT 1 FROM request WHERE request.outcome = 5 AND request.chunk = chunk.id)
    ORDER BY chunk.id LIMIT ?"""  # noqa: S608  # constants
LEFT_OVER = f"""SELECT {COLUMNS}, request.id, request.attempt, request.outcome, request.resent
    FROM request JOIN chunk ON chunk.id = request.chunk {TABLES}
    WHERE request.todo = 1 AND request.chunk > ? ORDER BY request.chunk LIMIT ?"""  # noqa: S608  # constants
INTENT = "INSERT INTO request (id, chunk, members, attempt, repeats, resent, outcome) VALUES (?, ?, ?, ?, ?, ?, 5)"


class Planner:
    """Plans chunks and records the intents of their requests. Its methods are parts of commands."""

    def __init__(self, database: Database) -> None:
        self._database = database
        ((self._last,),) = database.execute("SELECT coalesce(max(id), 0) FROM chunk")  # halves come later: not planned here
        ((self._number,),) = database.execute("SELECT coalesce(max(id), 0) FROM request")
        self._after = 0  # the chunk that was planned last
        self._left_over_after: int | None = 0  # the same of the requests to be sent again; None: they are all planned

    def plan(self, limit: int, accounts: int | None) -> list[Chunk]:
        """Return the next chunks, at most ``limit``, with recorded intents; an empty list if nothing is left to plan.

        They have at most ``accounts`` accounts in all (None: without a limit); the rest of a chunk goes into a new one.
        """
        chunks = self._limited(self._left_over(limit), accounts)
        self.record_intents(chunks)
        if accounts is not None:
            accounts -= sum(len(chunk.accounts) for chunk in chunks)
        waiting = self._limited(self._waiting(limit - len(chunks)), accounts)
        self.record_intents(waiting)
        return chunks + waiting

    def _waiting(self, limit: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        if limit:
            for *values, half_of in self._database.execute(WAITING, (self._after, self._last, limit)).fetchall():
                chunk = _chunk(values)
                chunk.repeats = half_of
                chunks.append(chunk)
            self._after = chunks[-1].id if chunks else self._last
        return chunks

    def _limited(self, chunks: list[Chunk], accounts: int | None) -> list[Chunk]:
        """Return the first chunks with at most so many accounts; the others wait."""
        if accounts is None:
            return chunks
        limited: list[Chunk] = []
        for chunk in chunks:
            if accounts < len(chunk.accounts) and accounts:
                divide(self._database, chunk, accounts)
                chunk.accounts = chunk.accounts[:accounts]
            if accounts:
                accounts -= len(chunk.accounts)
                limited.append(chunk)
            elif chunk.attempt > 1:
                self._database.execute("UPDATE request SET todo = 1 WHERE id = ?", (chunk.repeats,))
        return limited

    def record_intents(self, chunks: list[Chunk]) -> None:
        """Record that the chunks can be sent from now on, and give each the number of its request."""
        values: list[tuple[Any, ...]] = []
        for chunk in chunks:
            self._number += 1
            chunk.number = self._number
            values.append((chunk.number, chunk.id, len(chunk.accounts), chunk.attempt, chunk.repeats, chunk.resent))
        self._database.executemany(INTENT, values)

    def _left_over(self, limit: int) -> list[Chunk]:
        if self._left_over_after is None:
            return []
        found = self._database.execute(LEFT_OVER, (self._left_over_after, limit)).fetchall()
        chunks: list[Chunk] = []
        for *values, number, attempt, outcome, resent in found:
            chunk = _chunk(values)
            chunk.resent = chunk.resent or bool(resent) or outcome == RequestState.UNKNOWN
            chunk.repeats, chunk.attempt = number, attempt + 1
            chunks.append(chunk)
        self._database.executemany("UPDATE request SET todo = 0 WHERE id = ?", [(chunk.repeats,) for chunk in chunks])
        self._left_over_after = chunks[-1].id if chunks else None
        return chunks


def _chunk(values: list[Any]) -> Chunk:  # the columns of COLUMNS
    number, state, group, user_name, accounts = values
    return Chunk(
        id=number,
        group=group,
        user_name=user_name or None,
        accounts=tuple(json.loads(accounts)),
        resent=state == AccountState.AGAIN,
    )
