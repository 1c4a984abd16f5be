"""Marks of the requests that have left: what a killed process leaves beside its journal.

Intents are committed to the journal before their requests can leave, many at once, because a commit waits for the disk. To
know after a kill which of them had left, each is marked in a small file (``JOURNAL-sent``) at the moment at which it leaves.
A mark is written, not synced: the system keeps it when the process dies, but not when the machine does. The file therefore
names the boot of the machine. After another boot its marks prove nothing, and every intent may have left.

An answer that leaves no account in doubt is noted in the mark as well, because its outcome is committed some time later.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress
from errno import ENOSPC
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from rbim._support.private_files import create_private
from rbim.errors import InvalidRequest

__all__ = ["Mark", "Marks", "RunKey", "marks_path", "read_marks"]

# the request's number, when it left (epoch seconds), and the seconds until its answer, or -1; none is in two blocks
MARK = struct.Struct("<qdd8x")
HEADER = struct.Struct("<8s40sqd")  # file type, boot, and the run (number and beginning)
FILE_TYPE = b"rbimsent"
BOOT = Path("/proc/sys/kernel/random/boot_id")


class RunKey(NamedTuple):
    """The run that a file of marks belongs to: its number and its beginning (epoch seconds)."""

    number: int
    began: float


def marks_path(journal: Path) -> Path:
    """Return the path of the marks of a journal."""
    real = journal.resolve()
    return real.with_name(f"{real.name}-sent")


def _boot() -> bytes:
    """Return the id of the machine's boot; empty where it is unknown."""
    with suppress(OSError):
        return BOOT.read_bytes().strip()[:40]
    return b""


class Mark(NamedTuple):
    """When a request left (epoch seconds), and the seconds until the answer that all its accounts are done, or None."""

    at: float
    done_after: float | None = None


class Marks:
    """The marks of one run. A place in the file is used again when the outcome of its request is in the journal."""

    def __init__(self, journal: Path, run: RunKey) -> None:
        self._path = marks_path(journal)
        self._file = _opened(self._path)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(HEADER.pack(FILE_TYPE, _boot(), *run))
        self._free: list[int] = []
        self._next = HEADER.size

    def set(self, number: int, at: float) -> int:
        """Mark a request that leaves now, and return the mark's place, for the other methods. Raises OSError."""
        if self._free:
            place = self._free.pop()
        else:
            place = self._next
            self._next += MARK.size
        self._write(place, number, at, -1.0)
        return place

    def set_done(self, place: int, number: int, mark: Mark) -> None:
        """Note that all accounts of a marked request are done. Raises OSError."""
        self._write(place, number, *mark)

    def _write(self, place: int, *values: float | None) -> None:
        if sys.platform == "win32":
            self._file.seek(place)
            written = self._file.write(MARK.pack(*values))
        else:
            written = os.pwrite(self._file.fileno(), MARK.pack(*values), place)  # half the time
        if written != MARK.size:
            raise OSError(ENOSPC, os.strerror(ENOSPC), str(self._path))

    def release(self, place: int) -> None:
        """Let another request use the place."""
        self._free.append(place)

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it if the journal needs no marks any more."""
        self._file.close()
        if remove:
            self._path.unlink(missing_ok=True)


def _opened(path: Path) -> FileIO:
    """Open the file of marks, and create it if it is missing. Raises InvalidRequest if another file has its name."""
    try:
        create_private(path)
        flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        file = FileIO(os.open(path, flags), "r+")
    except OSError as error:
        cause = error.strerror or str(error)
        raise InvalidRequest(f"{path}: marks of a run cannot be written there: {cause}", field="journal") from error
    found = file.read(len(FILE_TYPE))
    if found in {b"", FILE_TYPE} or not any(found):  # a loss of power may have left zeros
        return file
    file.close()
    raise InvalidRequest(
        f"{path}: the marks of a run need this name, and another file has it: move it away", field="journal"
    )


def read_marks(journal: Path, run: RunKey) -> dict[int, Mark] | None:
    """Return the marks of the requests of a run, by their numbers.

    Returns None if that is unknown: the file is missing, or of another run, or the machine was started again.
    """
    try:
        content = marks_path(journal).read_bytes()
        file_type, boot, *of = HEADER.unpack_from(content)
    except (OSError, struct.error):
        return None
    known = boot.rstrip(b"\0")
    if file_type != FILE_TYPE or tuple(of) != run or not known or known != _boot():
        return None
    marks = content[HEADER.size :]
    whole = len(marks) - len(marks) % MARK.size
    return {number: Mark(at, None if after < 0 else after) for number, at, after in MARK.iter_unpack(marks[:whole])}
