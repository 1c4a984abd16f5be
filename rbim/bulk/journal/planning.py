"""Order of sending: first the requests to be sent again, then the groups in turn, one chunk of each.

The sender groups (table ``lane``) of one group, one for each acting account, follow one another. The cursor of a sender
group in the file is the end of its sent requests; chunks planned beyond it are known only here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbim.bulk.states import AccountState, RequestState
from rbim.bulk.work import Chunk

if TYPE_CHECKING:
    from rbim.storage.sqlite import Database

__all__ = ["Planner"]

SENDER_GROUPS = """SELECT lane.party, lane.id, lane.cursor, lane.last, party.name, lane.user_name
    FROM lane JOIN party ON party.id = lane.party
    WHERE lane.cursor < lane.last AND (lane.party, lane.id) > (?, ?)
    ORDER BY lane.party, lane.id LIMIT ?"""
SUMMARY = "SELECT count(*), min(seq), max(seq), min(state), group_concat(account, '\x1f') FROM"  # faster than 50 rows
WAITING = "SELECT seq, account, state FROM account WHERE lane = ? AND state <= 0"
NEXT = f"{SUMMARY} ({WAITING} AND seq > ? ORDER BY seq LIMIT ?)"
WITHIN = f"{SUMMARY} ({WAITING} AND seq BETWEEN ? AND ? ORDER BY seq)"
MIDDLE = f"{WAITING} AND seq BETWEEN ? AND ? ORDER BY seq LIMIT 1 OFFSET ?"
AFTER_GROUP = 2**63 - 1  # beyond all sender groups of a group that had its turn
LEFT_OVER = """SELECT request.id, request.lane, request.first, request.last, request.attempt, request.outcome,
    request.resent, party.name, lane.user_name
    FROM request JOIN lane ON lane.id = request.lane JOIN party ON party.id = lane.party
    WHERE request.todo = 1 AND request.id > ? AND request.id <= ? ORDER BY request.id LIMIT ?"""


class Planner:
    """Plans chunks of at most ``size`` accounts. Call its methods in the thread of the database."""

    def __init__(self, database: Database, size: int) -> None:
        self._database = database
        self._size = size
        self._position = (0, 0)  # the group and the sender group that were visited last
        self._cursors: dict[int, int] = {}  # of sender groups with planned chunks that are not sent
        self._finishing: dict[int, int] = {}  # sender groups that are planned completely: the end of the plan
        self._finished: list[int] = []
        ((latest,),) = database.execute("SELECT coalesce(max(id), 0) FROM request")
        self._left_over_until: int = latest
        self._left_over_after = 0

    def plan(self, limit: int) -> list[Chunk]:
        """Return the next chunks, at most ``limit``; an empty list if nothing is left to plan."""
        chunks = self._left_over(limit)
        wraps = 0  # times the list started again since a chunk was found
        while len(chunks) < limit and wraps < 2:  # noqa: PLR2004  # between two of them lies a whole turn
            sender_groups = self._database.execute(SENDER_GROUPS, (*self._position, limit - len(chunks))).fetchall()
            if not sender_groups:
                self._position, wraps = (0, 0), wraps + 1
            for group_number, number, sent, last, group, user_name in sender_groups:
                if self._position == (group_number, AFTER_GROUP):
                    continue
                self._position = (group_number, number)
                planned = max(sent, self._cursors.get(number, 0))
                chunk = self._next_chunk(number, sent, planned, last) if planned < last else None
                if chunk is not None:
                    chunks.append(_with_names(chunk, group, user_name))
                    self._position, wraps = (group_number, AFTER_GROUP), 0
        return chunks

    def sent(self, chunk: Chunk) -> None:
        """Move the file's cursor to the end of a chunk that is sent for the first time, in the command that records it."""
        if chunk.repeats is None:
            self._database.execute("UPDATE lane SET cursor = max(cursor, ?) WHERE id = ?", (chunk.last, chunk.sender_group))
            if self._finishing.get(chunk.sender_group, 0) == chunk.last:
                self._finished.append(chunk.sender_group)
                del self._finishing[chunk.sender_group]
            elif self._cursors.get(chunk.sender_group) == chunk.last:
                del self._cursors[chunk.sender_group]
        while self._finished:
            sender_group = self._finished.pop()
            self._database.execute("UPDATE lane SET cursor = last WHERE id = ?", (sender_group,))
            self._cursors.pop(sender_group, None)

    def _next_chunk(self, sender_group: int, sent: int, planned: int, last: int) -> Chunk | None:
        found = self._database.execute(NEXT, (sender_group, planned, self._size)).fetchone()
        if not found[0]:  # only duplicates, or done by an earlier run
            self._cursors[sender_group] = last
            if planned > sent:
                self._finishing[sender_group] = planned  # finished when that chunk is sent
            else:
                self._finished.append(sender_group)
            return None
        if found[0] == self._size:
            last = found[2]
        self._cursors[sender_group] = last
        return _chunk(sender_group, found, (found[1], last))

    def halves(self, chunk: Chunk) -> list[Chunk]:
        """Return both halves of a chunk that was refused."""
        span = (chunk.sender_group, chunk.first, chunk.last)
        ((middle, _, _),) = self._database.execute(MIDDLE, (*span, (len(chunk.accounts) - 1) // 2))
        halves = [self._chunk_within(chunk.sender_group, part) for part in ((chunk.first, middle), (middle + 1, chunk.last))]
        for half in halves:
            half.group, half.user_name, half.resent = chunk.group, chunk.user_name, chunk.resent
        return halves

    def _chunk_within(self, sender_group: int, span: tuple[int, int]) -> Chunk:
        return _chunk(sender_group, self._database.execute(WITHIN, (sender_group, *span)).fetchone(), span)

    def _left_over(self, limit: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        while len(chunks) < limit and self._left_over_after < self._left_over_until:
            found = self._database.execute(
                LEFT_OVER, (self._left_over_after, self._left_over_until, limit - len(chunks))
            ).fetchall()
            if not found:
                self._left_over_after = self._left_over_until
            for number, sender_group, first, last, attempt, outcome, resent, group, user_name in found:
                self._left_over_after = number
                chunk = _with_names(self._chunk_within(sender_group, (first, last)), group, user_name)
                chunk.resent = chunk.resent or bool(resent) or outcome == RequestState.UNKNOWN
                if outcome == RequestState.PLANNED:
                    chunk.planned, chunk.attempt = number, attempt
                else:
                    chunk.repeats, chunk.attempt = number, attempt + 1
                chunks.append(chunk)
        return chunks


def _chunk(sender_group: int, found: tuple[Any, ...], span: tuple[int, int]) -> Chunk:  # a row of SUMMARY
    return Chunk(
        sender_group=sender_group,
        group="",
        user_name=None,
        first=span[0],
        last=span[1],
        accounts=tuple(found[4].split("\x1f")),
        resent=found[3] == AccountState.AGAIN,
    )


def _with_names(chunk: Chunk, group: str, user_name: str) -> Chunk:
    chunk.group, chunk.user_name = group, user_name or None
    return chunk
