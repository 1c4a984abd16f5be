"""Whether an open file is still the one that its path names."""

from __future__ import annotations

import os
from errno import ENOENT
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["InPlace"]


class InPlace:
    """Notices that an open SQLite file, or its log, was deleted, moved or replaced.

    Otherwise the process would go on writing into a file without a name, which ends with it. ``what`` names the file in
    errors, and ``during`` the time. With ``grows`` a file that has become shorter was cut.
    """

    def __init__(self, path: Path, what: str, *, during: str = "while it was open", grows: bool = False) -> None:
        self._path = path
        self._what = what
        self._during = during
        self._grows = grows
        self._name = str(path)
        self._log: str | None = None
        self._file: os.stat_result | None = None
        self._log_file: tuple[int, int] | None = None

    def forget(self) -> None:
        """Forget the file: it was closed, and what is opened next may be another one."""
        self._file = self._log_file = None

    def require(self) -> None:
        """Raise FileNotFoundError if the file or its log is not the one of the first call."""
        try:
            found = os.stat(self._name)  # noqa: PTH116  # Path.stat takes twice as long
        except FileNotFoundError:
            found = None
        before = self._file
        if before is None:
            self._file = found
        if found is None or (before is not None and self._is_other(found, before)):
            changed = "deleted, replaced or cut" if self._grows else "deleted, moved or replaced"
            raise FileNotFoundError(ENOENT, f"{self._what} was {changed} {self._during}", self._name)
        if self._grows:
            self._file = found
        log = self._log_of()
        if self._log_file is None:
            self._log_file = log
        elif log != self._log_file:
            cause = f"the log (-wal) of {self._what} was deleted or replaced {self._during}"
            raise FileNotFoundError(ENOENT, cause, self._name)

    def _is_other(self, found: os.stat_result, before: os.stat_result) -> bool:
        if (found.st_dev, found.st_ino) != (before.st_dev, before.st_ino):
            return True
        return self._grows and found.st_size < before.st_size

    def _log_of(self) -> tuple[int, int] | None:
        """Return device and inode of the log, or None before the first transaction."""
        if self._log is None:
            real = self._path.resolve()
            self._log = str(real.with_name(f"{real.name}-wal"))
        try:
            found = os.stat(self._log)  # noqa: PTH116
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino
