"""Files that only their owner can read, whatever the umask, links and other users' names say.

A file is trusted if it belongs to the user of this process or to root, or if only the owner of its directory could have put
it there. In a directory that others can write, such as /tmp, another user can take a name first: such a file, and a symbolic
link of another user, is refused. (Linux has a similar rule for regular files, ``fs.protected_regular``.) Where files have no
owner in this sense (Windows), only the directory protects them.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["create_private", "private_stream", "replace_private", "require_trusted"]

OWNER_ONLY = 0o600
SHARED = stat.S_IWGRP | stat.S_IWOTH  # the modes of a directory in which other users can make files
_CREATING = Lock()
"""One thread at a time creates a file: closing the descriptor would release the locks of a thread that uses it already."""


def require_trusted(path: Path, *owners: int) -> None:
    """Raise PermissionError if another user could have planted a file, or a symbolic link by which it is named.

    A missing file is trusted, and so are those of the users ``owners``. Nothing is opened: closing any descriptor of a file
    would release SQLite's locks on it.
    """
    for found in (os.lstat, os.stat):
        with suppress(FileNotFoundError):
            _require_owner(found(path), path if found is os.lstat else path.resolve(), *owners)


def _require_owner(found: os.stat_result, path: Path, *owners: int) -> None:
    if not hasattr(os, "geteuid") or found.st_uid in {os.geteuid(), 0, *owners}:
        return
    directory = path.parent.stat()
    if directory.st_mode & SHARED and found.st_uid != directory.st_uid:
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "a file"
        raise PermissionError(
            errno.EPERM, f"it is {kind} of another user (uid {found.st_uid}): use a directory of your own", str(path)
        )


def create_private(path: Path) -> bool:
    """Create an empty file with mode 0600, whatever the umask is; return False if it exists and can be trusted.

    Raises FileNotFoundError for a symbolic link to a missing file, PermissionError for another user's file or link, and
    other kinds of OSError.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    with _CREATING:
        try:
            descriptor = os.open(path, flags, OWNER_ONLY)
        except FileExistsError:
            pass
        else:
            try:
                _set_mode(descriptor)
            finally:
                os.close(descriptor)
            return True
    require_trusted(path)
    if path.is_symlink() and not path.exists():
        message = f"it is a symbolic link to {path.readlink()}, which does not exist"
        raise FileNotFoundError(errno.ENOENT, message, str(path))
    return False


def _set_mode(descriptor: int) -> None:
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, OWNER_ONLY)


@contextmanager
def replace_private(path: Path) -> Generator[IO[bytes]]:
    """Give a stream whose bytes become the content of the file at the end of the block, with mode 0600.

    An existing file, or a link, is replaced as a whole or not at all. The temporary file in the same directory has a random
    name, so that no other user can take it first. Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=".rbim-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            _set_mode(descriptor)
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def private_stream(path: Path) -> Generator[IO[bytes]]:
    """Give a stream to a file as :func:`replace_private` does, or to the pipe or device that has the name.

    Raises PermissionError for another user's pipe, and other kinds of OSError.
    """
    if not path.exists() or path.is_file():
        with replace_private(path) as stream:
            yield stream
        return
    require_trusted(path)  # before it is opened: opening a pipe waits for its reader
    with os.fdopen(os.open(path, os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)), "wb") as stream:
        _require_owner(os.fstat(stream.fileno()), path)
        yield stream
