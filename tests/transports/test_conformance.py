"""Every transport of rbim passes the whole conformance suite, on each event loop that it runs on; broken ones fail it."""

import builtins
import os
from functools import partial
from unittest import SkipTest

import anyio
import pytest

from helpers.broken_transports import BROKEN
from helpers.handmade_transport import MADE, Handmade
from helpers.transports import ASYNCIO, LOOPS, TRANSPORTS, UVLOOP, each_transport, subject_of
from rbim.http import Response
from rbim.testing.conformance.case import environment
from rbim.testing.conformance.server import Authority
from rbim.testing.conformance.suite import CASES, SLOW_CASES, Case, Conformance, NonConforming, failures
from rbim.transports.asyncio.h11_parser import H11Parser

AT_ONCE = 16
CASE = {case.name: case for case in CASES}
name, features, loops = TRANSPORTS["asyncio"]
SUITED = {**TRANSPORTS, "asyncio with h11": (name, features, loops[::-1])}  # as it is where httptools is not installed


@pytest.fixture
def subject(module, monkeypatch):
    if module.endswith(" with h11"):
        monkeypatch.setattr("rbim.transports.asyncio.answer._new_parser", H11Parser)
    return subject_of(module.partition(" ")[0])


def told(failing):
    """Return failures as what a failing test is to show."""
    return [str(failure) for failure in failing.values()]


async def failing(subject, cases=CASES):
    """Return the failures of cases side by side; a case counts that fails by itself, too, without that load."""
    found = await failures(subject, cases, at_once=AT_ONCE)
    return told(await failures(subject, [CASE[name] for name in found]))


@each_transport("module", transports=SUITED)
async def test_conformance_side_by_side(subject):
    """Which cases fail, and why."""
    assert await failing(subject) == []


@pytest.mark.ci
@pytest.mark.skipif(UVLOOP not in LOOPS, reason="uvloop is not for this system")
@pytest.mark.parametrize("anyio_backend", [UVLOOP])
async def test_a_tls_handshake_that_a_time_out_ends_is_not_taken_for_a_connection():
    """On uvloop, `start_tls` returns a transport also for a closed connection: by chance, so eight times."""
    cases = [case for case in CASES if "tunnel that hangs" in case.name]
    for name in ("httpx", "asyncio"):
        for _ in range(8):
            assert await failures(subject_of(name), cases, at_once=AT_ONCE) == {}


@pytest.mark.ci
@pytest.mark.no_cover
@pytest.mark.parametrize("module", ["asyncio"])
@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_conformance_of_a_crowd(subject):
    for case in SLOW_CASES:
        await case(subject)


# The suite itself: it passes what keeps the contract, and fails what breaks it in any one point.


@pytest.fixture
async def closing_what_is_left():
    yield
    while MADE:
        MADE.pop().close()
    await anyio.sleep(0.001)


def needing(*features):
    return [case for case in CASES if not case.needs & set(features)]


@pytest.mark.ci
@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_a_transport_by_hand_passes():
    assert await failing(Handmade, needing("proxy")) == []


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
@pytest.mark.usefixtures("closing_what_is_left")
async def test_each_broken_transport_fails():
    unseen, unfound = [], []

    async def tries(broken, case, missed):
        for _ in range(3):  # on a machine under load, what is late may be too late to be seen
            if await failures(broken, [case]):
                return
        missed.append((broken, case))

    with environment({}):
        async with anyio.create_task_group() as tasks:
            for broken, name in BROKEN.items():
                if not CASE[name].alone:
                    tasks.start_soon(tries, broken, CASE[name], unseen)
        alone = [(broken, CASE[name]) for broken, name in BROKEN.items() if CASE[name].alone]
        for broken, case in alone + unseen:
            await tries(broken, case, unfound)
    assert unfound == []


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
        "framing: a length: got status 204; required: 200",
        "empty: a length of 0: got status 204; required: 200",
    ]
    assert [*failing] == ["framing: a length", "empty: a length of 0"]


async def test_cases_run_side_by_side_but_for_those_that_have_to_run_alone(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    both, running, proxies = anyio.Event(), [], []

    async def meets(_, name):
        running.append(name)
        if len(running) > 1:
            both.set()
        await both.wait()
        await anyio.sleep(0.001 * len(name))
        proxies.append(os.environ.get("HTTPS_PROXY"))
        running.remove(name)
        raise NonConforming(name)

    async def alone(_):
        assert running == []
        await anyio.sleep(0.001)

    cases = [
        Case("first", partial(meets, name="longer")),
        Case("in between", alone, alone=True),
        Case("last", partial(meets, name="short")),
    ]
    assert told(await failures(Answering, cases, at_once=2)) == ["first: longer", "last: short"]
    assert (proxies, os.environ["HTTPS_PROXY"]) == ([None, None], "http://127.0.0.1:9")


@pytest.mark.parametrize("anyio_backend", [ASYNCIO])
async def test_a_case_that_needs_what_a_transport_has_not_is_skipped():
    (case,) = (case for case in CASES if case.name == "connection: the one used last is the first to be used again")
    with pytest.raises(SkipTest, match="the transport lacks the features lifo"):
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
