"""Every transport of rbim passes the whole conformance suite, on each event loop that it runs on; broken ones fail it."""

import builtins
import importlib
import sys
from unittest import SkipTest

import anyio
import pytest
from broken_transports import BROKEN
from handmade_transport import MADE, Handmade

from rbim.message import Response
from rbim.transports.conformance import CASES, SLOW_CASES, Conformance, NonConforming, failures
from rbim.transports.conformance_tls import Authority

ASYNCIO, UVLOOP, TRIO = "asyncio", ("asyncio", {"use_uvloop": True}), "trio"
LOOPS = [ASYNCIO, TRIO] if sys.platform == "win32" else [ASYNCIO, UVLOOP, TRIO]

# Module and class of each transport, its features, and the event loops that it is tried on.
TRANSPORTS = {
    "httpx": ("HttpxTransport", {"proxy": True}, [ASYNCIO, TRIO]),
    "httpx2": ("Httpx2Transport", {"proxy": True}, [ASYNCIO, TRIO]),
    "aiohttp": ("AiohttpTransport", {"proxy": True, "lifo": False}, [ASYNCIO]),
    "pyreqwest": ("PyreqwestTransport", {"proxy": True, "bundle": True, "phases": False, "cancels": False}, [ASYNCIO]),
    "asyncio": ("AsyncioTransport", {"proxy": True, "unix": True}, [ASYNCIO, UVLOOP]),
}
SUBJECTS = [
    pytest.param(module, loop, id=f"{module} on {'uvloop' if loop is UVLOOP else loop}")
    for module, (_, _, loops) in TRANSPORTS.items()
    for loop in loops
    if loop in LOOPS
]


def subject(module):
    name, features, _ = TRANSPORTS[module]
    return Conformance(getattr(importlib.import_module(f"rbim.transports.{module}"), name), **features)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("module", "anyio_backend"), SUBJECTS)
async def test_conformance(module, case):
    missing = [need for need in case.needs if not subject(module).has(need)]
    if missing:
        pytest.skip(f"{module} has no {', '.join(missing)}")
    await case(subject(module))


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_CASES, ids=str)
@pytest.mark.parametrize(("module", "anyio_backend"), SUBJECTS)
async def test_conformance_of_a_crowd(module, case):
    await case(subject(module))


# The suite itself: it passes what keeps the contract, and fails what breaks it in any one point.


def needing(*features):
    return [case for case in CASES if not case.needs & set(features)]


@pytest.mark.parametrize("case", needing("proxy"), ids=str)
@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_a_transport_by_hand_passes(case):
    await case(Handmade)


@pytest.mark.parametrize(
    ("broken", "name"),
    [pytest.param(broken, name, id=f"{broken.__name__} fails {name}") for broken, names in BROKEN.items() for name in names],
)
@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_a_broken_transport_fails(broken, name):
    (case,) = (case for case in CASES if case.name == name)
    try:
        with pytest.raises(NonConforming, match="^" + case.name.partition(":")[0]):
            await case(broken)
    finally:
        while MADE:
            MADE.pop().close()
        await anyio.sleep(0.001)


def test_cases_have_names_of_their_own():
    names = [case.name for case in (*CASES, *SLOW_CASES)]
    assert len(set(names)) == len(names)
    assert [str(case) for case in CASES] == names[: len(CASES)]


class Answering:
    """A transport that answers everything alike."""

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def send(self, _request, /, *, timeout):
        assert timeout > 0
        return Response(204)


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_failures_says_which_cases_fail_and_why():
    names = {"empty: a length of 0", "framing: a length", "proxy: 407 in place of a tunnel is not sent"}
    few = [case for case in CASES if case.name in names]
    assert await failures(Handmade, few) == {}
    failing = await failures(Answering, few)
    assert [str(failure) for failure in failing.values()] == [
        "framing: a length: status 204 in place of 200",
        "empty: a length of 0: status 204 in place of 200",
    ]
    assert [*failing] == ["framing: a length", "empty: a length of 0"]


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_a_case_that_needs_what_a_transport_has_not_is_skipped():
    (case,) = (case for case in CASES if case.name == "connection: the one used last is the first to be used again")
    with pytest.raises(SkipTest, match="the transport has no lifo"):
        await case(Conformance(Handmade, lifo=False))


def test_a_missing_trustme_is_named(monkeypatch):
    real = builtins.__import__

    def without_trustme(name, *arguments, **options):
        if name == "trustme":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_trustme)
    with pytest.raises(ImportError, match="python -m pip install trustme"):
        Authority()
