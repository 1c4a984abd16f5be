"""How many connections a receiver may have at once."""

from __future__ import annotations

import sys

from rbim.errors import InvalidRequest

__all__ = ["MAX_CONNECTIONS", "max_connections"]

MAX_CONNECTIONS = 10_000
"""The default for the maximum number of connections, if the process may have that many open files."""

RESERVED_FILES = 128  # for the inbox, the standard streams and the like


def max_connections(wanted: int | None = None) -> int:
    """Return the maximum number of connections: ``wanted`` (default: MAX_CONNECTIONS, or as many as open files allow).

    Raises the process's soft limit of open files if that is needed and allowed. Raises InvalidRequest if ``wanted`` is more
    than the hard limit allows.
    """
    most = wanted or MAX_CONNECTIONS
    if sys.platform == "win32":
        return most
    from resource import RLIMIT_NOFILE, getrlimit, setrlimit

    files, hard = getrlimit(RLIMIT_NOFILE)
    needed = most + RESERVED_FILES
    if 0 <= files < needed:
        files = needed if hard < 0 else min(needed, hard)
        setrlimit(RLIMIT_NOFILE, (files, hard))
    allowed = most if files < 0 else max(1, files // 2, files - RESERVED_FILES)
    if wanted is not None and wanted > allowed:
        raise InvalidRequest(
            f"--connections: {wanted} connections need {needed} open files, and the limit is {files}: raise it (ulimit -Hn),"
            f" or use at most {allowed}",
            field="--connections",
        )
    return min(most, allowed)
