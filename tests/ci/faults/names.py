"""Names that a resolver answers late, not for now, or never: it stands in the place of ``socket.getaddrinfo``.

All transports resolve through it, in another thread. uvloop calls the C library instead, whose servers only a file of the
system names: a test cannot change them.
"""

import socket
import time
from contextlib import contextmanager
from itertools import count
from unittest import mock

from rbim.testing.conformance.server import WAIT_TIMEOUT

LATE = 0.2
_numbers = count()
_known = {}


def new_name(resolves, stage):
    """Return a name that no cache knows; ``resolves``: "late", "not now" or "never"."""
    name = f"n{next(_numbers)}.faults.invalid"
    _known[name] = resolves, stage
    return name


@contextmanager
def resolver():
    """Resolve names of :func:`new_name` as they say, inside the block, and others as the system does."""
    usual = socket.getaddrinfo

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):  # noqa: A002  # the names of the real one
        resolves, stage = _known.get(host.decode() if isinstance(host, bytes) else host, ("", None))
        if stage is None or flags & socket.AI_NUMERICHOST:  # trio asks so in its own thread first
            return usual(host, port, family, type, proto, flags)
        stage.reached.set()
        if resolves == "never":
            stage.over.wait(WAIT_TIMEOUT)
        elif resolves == "late":
            time.sleep(LATE)
            return usual("127.0.0.1", port, family, type, proto, flags)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with mock.patch.object(socket, "getaddrinfo", getaddrinfo):
        yield
