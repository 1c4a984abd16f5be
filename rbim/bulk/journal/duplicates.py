"""Search for repeated accounts among any number of rows, in little memory.

The hashes of all accounts are sorted in runs, on the disk if they are many, and merged. Hashes that occur twice are
candidates; whether the accounts are equal is decided by comparing them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from contextlib import ExitStack
from itertools import islice, pairwise
from operator import eq
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import IO

__all__ = ["Candidates", "Hashes"]

RUN = 250_000  # hashes that are sorted at once
FEW = 200_000  # hashes that are kept as a set of Python's
PIECE = 4096  # hashes that are read at once
LOWEST, SPAN = -(2**63), 2**64
ITEM = 8  # bytes of a hash


class Candidates:
    """A set of hashes, of eight bytes each if they are many."""

    def __init__(self, ordered: array[int]) -> None:
        self._ordered = ordered
        self._few = frozenset(ordered) if len(ordered) <= FEW else None

    def __len__(self) -> int:
        return len(self._ordered)

    def isdisjoint(self, values: Iterable[int]) -> bool:
        """Return whether none of the values is in the set."""
        return self._few.isdisjoint(values) if self._few is not None else not any(value in self for value in values)

    def __contains__(self, value: int) -> bool:
        place = bisect_left(self._ordered, value)
        return place < len(self._ordered) and self._ordered[place] == value


class Hashes:
    """Collects hashes (of 64 bits, with a sign) and finds those that occur more than once. Close it after use."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._latest: list[int] = []
        self._runs: list[IO[bytes]] = []
        self._count = 0
        self._open = ExitStack()

    def add(self, hashes: Iterable[int]) -> None:
        """Add hashes."""
        self._latest.extend(hashes)
        if len(self._latest) >= RUN:
            self._end_run()

    def close(self) -> None:
        """Free the disk."""
        self._open.close()

    def repeated(self) -> Candidates:
        """Return the hashes that occur more than once."""
        if not self._runs:
            return Candidates(_repeated(array("q", self._latest)))
        self._end_run()
        for run in self._runs:
            run.seek(0)
        parts = -(-self._count // RUN)
        pending = [array("q") for _ in self._runs]
        found = array("q")
        for part in range(1, parts + 1):
            end = LOWEST + SPAN * part // parts  # hashes are even: each range of values holds about one run
            values = array("q")
            for number, run in enumerate(self._runs):
                values.extend(_below(end, run, pending, number))
            found.extend(_repeated(values))
        return Candidates(found)

    def _end_run(self) -> None:
        if not self._latest:
            return
        run = self._open.enter_context(TemporaryFile(dir=self._folder))  # noqa: SIM115  # closed by `close`
        ordered, self._latest = self._latest, []
        ordered.sort()
        if any(map(eq, ordered, islice(ordered, 1, None))):  # two of each are enough
            ordered = [value for place, value in enumerate(ordered) if place < 2 or value != ordered[place - 2]]  # noqa: PLR2004
        array("q", ordered).tofile(run)
        self._runs.append(run)
        self._count += len(ordered)


def _below(end: int, run: IO[bytes], pending: list[array[int]], number: int) -> array[int]:
    """Take the values below ``end`` from a run, whose next values are in ``pending``."""
    values = pending[number]
    while not values or values[-1] < end:
        piece = run.read(PIECE * ITEM)
        if not piece:
            break
        values.frombytes(piece)
    cut = bisect_left(values, end)
    pending[number] = values[cut:]
    return values[:cut]


def _repeated(values: array[int]) -> array[int]:
    """Return the values that occur more than once, in order."""
    if len(set(values)) == len(values):
        return array("q")
    ordered = sorted(values)
    twice = {one for one, other in pairwise(ordered) if one == other}
    return array("q", sorted(twice))
