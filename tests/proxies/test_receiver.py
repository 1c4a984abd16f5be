"""nginx and HAProxy between the platform and a receiver: ``rbim callback serve`` handles each acknowledged copy once."""

import pytest

from helpers.proxies import PROXIES, needs_proxies
from rbim.callbacks import Counts
from rbim.transports.httpx import HttpxTransport

from .copies import copied, repeated
from .scenarios import LIMITING, certificate_of

pytestmark = [*needs_proxies, pytest.mark.usefixtures("no_proxy_of_this_machine")]
LONG = pytest.mark.slow


def is_honest(run):
    """Assert that each acknowledged copy was handled once, and has one line in the proxy's log."""
    assert set(run.handled.values()) == {1}
    assert run.acknowledged <= set(run.handled)
    assert {run.sent_on[name] for name in run.acknowledged} == {1}


@pytest.mark.parametrize("times", [2, pytest.param(40, marks=LONG)])
@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_copy_is_lost_while_the_proxy_reloads(kind, times, tmp_path):
    run = await copied(kind, tmp_path, lambda proxy: proxy.reload(), times=times)
    is_honest(run)
    assert run.reasons == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_of_copies_over_kept_connections_every_acknowledged_one_is_handled(kind, tmp_path):
    """Some may be lost: the platform keeps its connections."""
    run = await copied(
        kind, tmp_path, lambda proxy: proxy.reload(), times=20, transport=lambda: HttpxTransport(trust_env=False)
    )
    is_honest(run)


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_restart_of_the_proxy_loses_only_copies_that_were_not_acknowledged(kind, tmp_path):
    def restarts(proxy):
        proxy.stop()
        proxy.start()

    run = await copied(kind, tmp_path, restarts, times=1)
    assert set(run.handled.values()) == {1}
    assert run.acknowledged <= set(run.handled)
    assert set(run.handled) - run.acknowledged <= set(run.reasons)  # stored, and the answer was lost


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tls_that_ends_at_the_proxy_changes_nothing_while_it_reloads(kind, tmp_path):
    certificate, trusted = certificate_of(tmp_path)
    run = await copied(
        kind,
        tmp_path,
        lambda proxy: proxy.reload(),
        times=1,
        certificate=certificate,
        transport=lambda: HttpxTransport(trust_env=False, verify=str(trusted)),
    )
    is_honest(run)
    assert run.acknowledged


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_a_rate_limit_refuses_is_not_handled_and_all_else_is(kind, tmp_path):
    """In normal mode a copy is sent once: a limit in front of a receiver loses copies, and the platform is told so."""
    run = await copied(kind, tmp_path, lambda _: None, times=1, **LIMITING[kind, 429])
    is_honest(run)
    assert set(run.handled) == run.acknowledged
    assert run.lost
    assert {run.sent_on[name] for name in run.lost} == {0}


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_copy_that_the_proxy_repeats_to_a_second_receiver_is_handled_once(kind, tmp_path):
    """Its answer was lost. docs/reloads.md advises this setting in front of receivers, and only there."""
    run = await repeated(kind, tmp_path)
    assert (run.reasons, run.acknowledged) == ({}, run.sent)
    twice = {name for name, receivers in run.received.items() if len(receivers) == 2}
    assert len(twice) == len(run.sent) // 4
    assert {name for name, times in run.sent_on.items() if times > 1} == twice
    if kind == "nginx":  # HAProxy tries the same server again first
        assert {len({*run.received[name]}) for name in twice} == {2}
    assert run.handled == dict.fromkeys(run.sent, 1)
    assert run.inbox == Counts(waiting=0, done=len(run.sent), dead=0, quarantined=0)
