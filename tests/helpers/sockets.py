"""What sockets of this machine can."""

import random
import socket
from contextlib import suppress


def speaks_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def free_port():
    """A port that was free a moment ago, below those that the system gives to connections, which may take it at once."""
    for port in random.SystemRandom().sample(range(15_000, 32_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("none of 100 ports is free")
