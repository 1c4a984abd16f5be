"""Trust in the files of projects, given by the user for one content of one file, as with direnv.

A trusted file has an entry in the user's data folder (``~/.local/share/rbim/trusted`` on Linux): a file whose name is the
SHA-256 of the path and the content, and which contains the path. A file that changes or moves is not trusted any more.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_trusted", "remember", "revoke", "user_folder"]

LONGEST = 64 * 1024  # bytes of an entry: no path is longer


def user_folder(variable: str, default: str, kind: str) -> Path | None:
    """Return rbim's folder among those of the user, or None if the user has no home.

    On Linux: the one that an XDG variable names, or its default; elsewhere that of platformdirs, if it is installed
    (``kind``: "config" or "data").
    """
    if sys.platform != "linux":  # there it would be the same, but slow
        with suppress(ModuleNotFoundError):
            import platformdirs

            return Path(getattr(platformdirs, f"user_{kind}_path")("rbim", appauthor=False))
    base = os.environ.get(variable, "")
    folder = Path(base if Path(base).is_absolute() else os.path.expanduser(default)) / "rbim"  # noqa: PTH111
    return folder if folder.is_absolute() else None


def is_trusted(path: Path, content: bytes) -> bool:
    """Return whether the user trusts this content of a file."""
    folder = _folder()
    if folder is None or _is_inside(folder, path):
        return False
    return _path_in(folder / _name(path, content)) == _encoded(path)


def remember(path: Path, content: bytes) -> None:
    """Trust this content of a file from now on. Raises InvalidRequest if that cannot be written."""
    folder = _folder()
    if folder is None:
        raise InvalidRequest("there is no folder for the list of trusted files: set HOME or XDG_DATA_HOME", field="config")
    if _is_inside(folder, path):
        raise InvalidRequest(
            f"the list of trusted files, {folder}, is inside of the project, whose authors could write it: set "
            "XDG_DATA_HOME to another folder",
            field="config",
        )
    entry = folder / _name(path, content)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        entry.unlink(missing_ok=True)
        with os.fdopen(os.open(entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(_encoded(path))
    except OSError as error:
        raise InvalidRequest(f"{entry}: {error.strerror or error}: cannot trust a file", field="config") from error


def revoke(path: Path) -> bool:
    """Trust no content of a file any more; return whether there was one. Raises InvalidRequest if that cannot be written."""
    found = [entry for entry in _entries() if _path_in(entry) == _encoded(path)]
    for entry in found:
        try:
            entry.unlink(missing_ok=True)
        except OSError as error:
            raise InvalidRequest(f"{entry}: {error.strerror or error}: the file stays trusted", field="config") from error
    return bool(found)


def _folder() -> Path | None:
    folder = user_folder("XDG_DATA_HOME", "~/.local/share", "data")
    return None if folder is None else folder / "trusted"


def _is_inside(folder: Path, file: Path) -> bool:
    """Return whether the folder with the list, as XDG_DATA_HOME names it, belongs to the project of a file."""
    return bool(os.environ.get("XDG_DATA_HOME")) and folder.is_relative_to(file.parent)


def _entries() -> Iterator[Path]:
    folder = _folder()
    if folder is not None:
        with suppress(OSError):
            yield from folder.iterdir()


def _name(path: Path, content: bytes) -> str:
    return sha256(_encoded(path) + content).hexdigest()


def _encoded(path: Path) -> bytes:
    return os.fsencode(path) + b"\n"


def _path_in(entry: Path) -> bytes | None:
    """Return the content of an entry that belongs to this user; None for any other file."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(entry, flags), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode) or (os.name == "posix" and found.st_uid != os.getuid()):
                return None
            return stream.read(LONGEST)
    except OSError:
        return None
