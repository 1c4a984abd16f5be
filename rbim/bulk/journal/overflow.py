"""Accounts that wait for their request to fill, on the disk: a temporary file of sorted runs, merged when the input ends."""

from __future__ import annotations

from contextlib import ExitStack
from heapq import merge
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NamedTuple

from rbim.bulk.journal.content import Content

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import IO

__all__ = ["Overflow", "Part"]

PIECE = 16_384  # bytes of a run that are read at once


class Part(NamedTuple):
    """Accounts of a sender group, and the numbers of their rows."""

    sender_group: int
    accounts: Sequence[str]
    rows: Sequence[int]


class Overflow:
    """Holds parts until the input ends. ``folder`` is for its file (None: the system's). Close it after use."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._ends = [0]  # of the runs, in bytes
        self._open = ExitStack()

    def __bool__(self) -> bool:
        return self._file is not None

    def add(self, parts: Iterable[Part]) -> None:
        """Add parts, at most one of each sender group; those that are added later have later rows."""
        if self._file is None:
            self._file = self._open.enter_context(TemporaryFile(dir=self._folder))  # noqa: SIM115  # closed by `close`
        self._file.seek(self._ends[-1])
        ordered = sorted(parts, key=itemgetter(0))
        self._file.writelines(_line(*part).encode() for part in ordered)
        self._ends.append(self._file.tell())

    def merged(self, size: int) -> Iterator[Part]:
        """Yield parts of ``size`` accounts, and for each sender group a smaller one of the rest."""
        runs = (self._read(begin, end) for begin, end in zip(self._ends, self._ends[1:], strict=False))
        for sender_group, parts in groupby(merge(*runs, key=itemgetter(0)), itemgetter(0)):
            accounts: list[str] = []
            rows: list[int] = []
            for part in parts:
                accounts += part.accounts
                rows += part.rows
                while len(accounts) >= size:
                    yield Part(sender_group, accounts[:size], rows[:size])
                    del accounts[:size], rows[:size]
            if accounts:
                yield Part(sender_group, accounts, rows)

    def _read(self, begin: int, end: int) -> Iterator[Part]:
        assert self._file is not None  # noqa: S101  # it has a run
        rest = b""
        while begin < end:
            self._file.seek(begin)
            piece = self._file.read(min(PIECE, end - begin))
            begin += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(_part, lines)

    def close(self) -> None:
        """Free the disk."""
        self._open.close()


def _line(sender_group: int, accounts: Sequence[str], rows: Sequence[int]) -> str:
    """Return a part as fields between tabs: no account has control characters."""
    size, first, step, irregular, names = Content.of(accounts, rows)
    return f"{sender_group}\t{size}\t{first}\t{step}\t{irregular or ''}\t{names}\n"


def _part(line: bytes) -> Part:
    sender_group, size, first, step, irregular, names = line.decode().split("\t")
    content = Content(int(size), int(first), int(step), irregular or None, names)
    return Part(int(sender_group), content.names(), content.numbers())
