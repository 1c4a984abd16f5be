"""The transports of rbim, what each of them can, and the event loops that it runs on."""

import importlib
import sys

import pytest

from rbim.testing.conformance.case import Conformance

ASYNCIO, UVLOOP, TRIO = "asyncio", ("asyncio", {"use_uvloop": True}), "trio"
LOOPS = [ASYNCIO, TRIO] if sys.platform == "win32" else [ASYNCIO, UVLOOP, TRIO]
# Module and class of each transport, its features, and the event loops that it runs on: the first every day, the others in
# CI. httpx and httpx2 share their code, and begin with one each.
HALF = "discarded: half an unrequested answer over TLS, "
KEPT = dict.fromkeys(
    (
        f"{HALF}in one segment with another one",
        f"{HALF}0 ms behind another one",
        f"{HALF}0.3 ms behind another one",
        f"{HALF}10 ms behind another one",
        "discarded: an empty line while idle",
        "discarded: an interim answer nobody asked for while idle",
    ),
    "the requests used the connections [0, 0, 0",
)
"""What aiohttp does not notice on an idle connection, and what happens instead: the connection is used again."""
UNIX = {"unix": sys.platform != "win32"}
TRANSPORTS = {
    "auto": ("AutoTransport", {"proxy": True, **UNIX}, [TRIO, ASYNCIO, UVLOOP]),
    "httpx": ("HttpxTransport", {"proxy": True, **UNIX}, [ASYNCIO, TRIO, UVLOOP]),
    "httpx2": ("Httpx2Transport", {"proxy": True, **UNIX}, [TRIO, ASYNCIO, UVLOOP]),
    "aiohttp": ("AiohttpTransport", {"proxy": True, "lifo": False, "deviates": KEPT}, [ASYNCIO]),
    "asyncio": ("AsyncioTransport", {"proxy": True, **UNIX}, [ASYNCIO, UVLOOP]),
}


def class_of(name):
    return getattr(importlib.import_module(f"rbim.transports.{name}"), TRANSPORTS[name][0])


def subject_of(name):
    return Conformance(class_of(name), **TRANSPORTS[name][1])


def each_transport(argument="name", *, among=(ASYNCIO, UVLOOP, TRIO), transports=None):
    """Parametrize a name and ``anyio_backend``: each transport on its first loop; on others, and uvloop, only in CI."""
    return pytest.mark.parametrize(
        (argument, "anyio_backend"),
        [
            pytest.param(
                name,
                loop,
                id=f"{name} on {'uvloop' if loop is UVLOOP else loop}",
                marks=[] if loop is loops[0] and loop is not UVLOOP else [pytest.mark.ci],
            )
            for name, (_, _, loops) in (transports or TRANSPORTS).items()
            for loop in loops
            if loop in LOOPS and loop in among
        ],
    )
