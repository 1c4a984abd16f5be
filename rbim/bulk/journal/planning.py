"""What is sent next: first what is to be sent again, then the groups in turn, one chunk of each.

A group's lanes, if several accounts act in it, follow one another. A lane's cursor in the file says how far requests of it
have been sent; what is planned beyond it is known here only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbim.bulk.states import AccountState, RequestState
from rbim.bulk.work import Chunk

if TYPE_CHECKING:
    from rbim.storage.sqlite import Database

__all__ = ["Planner"]

LANES = """SELECT lane.party, lane.id, lane.cursor, lane.last, party.name, lane.user_name
    FROM lane JOIN party ON party.id = lane.party
    WHERE lane.cursor < lane.last AND (lane.party, lane.id) > (?, ?)
    ORDER BY lane.party, lane.id LIMIT ?"""
SUMMED = "SELECT count(*), min(seq), max(seq), min(state), group_concat(account, '\x1f') FROM"  # cheaper than 50 rows
WAITING = "SELECT seq, account, state FROM account WHERE lane = ? AND state <= 0"
NEXT = f"{SUMMED} ({WAITING} AND seq > ? ORDER BY seq LIMIT ?)"
WITHIN = f"{SUMMED} ({WAITING} AND seq BETWEEN ? AND ? ORDER BY seq)"
BORDER = f"{WAITING} AND seq BETWEEN ? AND ? ORDER BY seq LIMIT 1 OFFSET ?"
END = 2**63 - 1  # beyond all lanes of a group that had its turn
LEFT_OVER = """SELECT request.id, request.lane, request.first, request.last, request.attempt, request.outcome,
    request.resent, party.name, lane.user_name
    FROM request JOIN lane ON lane.id = request.lane JOIN party ON party.id = lane.party
    WHERE request.todo = 1 AND request.id > ? AND request.id <= ? ORDER BY request.id LIMIT ?"""


class Planner:
    """Plans chunks of at most ``size`` accounts. Its methods are for the thread that has the database."""

    def __init__(self, database: Database, size: int) -> None:
        self._database = database
        self._size = size
        self._at = (0, 0)  # the group and the lane that were looked at last
        self._cursors: dict[int, int] = {}  # of lanes with chunks that are planned and not sent
        self._ends: dict[int, int] = {}  # lanes with nothing beyond what is planned: where that ends
        self._empty: list[int] = []
        ((latest,),) = database.execute("SELECT coalesce(max(id), 0) FROM request")
        self._again_until: int = latest
        self._again_after = 0

    def plan(self, most: int) -> list[Chunk]:
        """Return the next chunks, at most so many. None: there is nothing left to plan."""
        chunks = self._again(most)
        ends = 0  # of the list of lanes, since a chunk was found
        while len(chunks) < most and ends < 2:  # noqa: PLR2004  # a whole turn lies between two of them
            lanes = self._database.execute(LANES, (*self._at, most - len(chunks))).fetchall()
            if not lanes:
                self._at, ends = (0, 0), ends + 1
            for party, number, sent, last, group, user_name in lanes:
                if self._at == (party, END):
                    continue
                self._at = (party, number)
                planned = max(sent, self._cursors.get(number, 0))
                chunk = self._next_of(number, sent, planned, last) if planned < last else None
                if chunk is not None:
                    chunks.append(_named(chunk, group, user_name))
                    self._at, ends = (party, END), 0
        return chunks

    def sent(self, chunk: Chunk) -> None:
        """Have the file's cursor at the chunk's end, where it is the first sending; part of the command that records it."""
        if chunk.repeats is None:
            self._database.execute("UPDATE lane SET cursor = max(cursor, ?) WHERE id = ?", (chunk.last, chunk.lane))
            if self._ends.get(chunk.lane, 0) == chunk.last:
                self._empty.append(chunk.lane)
                del self._ends[chunk.lane]
            elif self._cursors.get(chunk.lane) == chunk.last:
                del self._cursors[chunk.lane]
        while self._empty:
            lane = self._empty.pop()
            self._database.execute("UPDATE lane SET cursor = last WHERE id = ?", (lane,))
            self._cursors.pop(lane, None)

    def _next_of(self, lane: int, sent: int, planned: int, last: int) -> Chunk | None:
        found = self._database.execute(NEXT, (lane, planned, self._size)).fetchone()
        if not found[0]:  # duplicates, or what an earlier run has done
            self._cursors[lane] = last
            if planned > sent:
                self._ends[lane] = planned  # done with when that is sent
            else:
                self._empty.append(lane)
            return None
        if found[0] == self._size:
            last = found[2]
        self._cursors[lane] = last
        return _chunk(lane, found, (found[1], last))

    def halves(self, chunk: Chunk) -> list[Chunk]:
        """Return both halves of a chunk, which nobody has sent."""
        reach = (chunk.lane, chunk.first, chunk.last)
        ((border, _, _),) = self._database.execute(BORDER, (*reach, (len(chunk.accounts) - 1) // 2))
        halves = [self._within(chunk.lane, part) for part in ((chunk.first, border), (border + 1, chunk.last))]
        for half in halves:
            half.group, half.user_name, half.resent = chunk.group, chunk.user_name, chunk.resent
        return halves

    def _within(self, lane: int, reach: tuple[int, int]) -> Chunk:
        return _chunk(lane, self._database.execute(WITHIN, (lane, *reach)).fetchone(), reach)

    def _again(self, most: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        while len(chunks) < most and self._again_after < self._again_until:
            found = self._database.execute(LEFT_OVER, (self._again_after, self._again_until, most - len(chunks))).fetchall()
            if not found:
                self._again_after = self._again_until
            for number, lane, first, last, attempt, outcome, resent, group, user_name in found:
                self._again_after = number
                chunk = _named(self._within(lane, (first, last)), group, user_name)
                chunk.resent = chunk.resent or bool(resent) or outcome == RequestState.UNKNOWN
                if outcome == RequestState.PLANNED:
                    chunk.planned, chunk.attempt = number, attempt
                else:
                    chunk.repeats, chunk.attempt = number, attempt + 1
                chunks.append(chunk)
        return chunks


def _chunk(lane: int, found: tuple[Any, ...], reach: tuple[int, int]) -> Chunk:  # a row of sums
    return Chunk(
        lane=lane,
        group="",
        user_name=None,
        first=reach[0],
        last=reach[1],
        accounts=tuple(found[4].split("\x1f")),
        resent=found[3] == AccountState.AGAIN,
    )


def _named(chunk: Chunk, group: str, user_name: str) -> Chunk:
    chunk.group, chunk.user_name = group, user_name or None
    return chunk
