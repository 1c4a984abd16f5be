"""nginx and HAProxy between the platform and a receiver: ``rbim callback serve`` handles each acknowledged copy once."""

import pytest

from helpers_ci.proxies import PROXIES, needs_proxies
from rbim.callbacks import Counts

from .copies import copied, repeated

pytestmark = [*needs_proxies, pytest.mark.no_cover, pytest.mark.usefixtures("no_proxy_of_this_machine")]


def is_honest(run):
    """Assert that each acknowledged copy was handled once, and has one line in the proxy's log."""
    assert set(run.handled.values()) == {1}
    assert run.acknowledged <= set(run.handled)
    assert {run.sent_on[name] for name in run.acknowledged} == {1}


@pytest.mark.parametrize("kind", PROXIES)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_no_copy_is_lost_while_the_proxy_reloads(kind, tmp_path):
    run = await copied(kind, tmp_path, lambda proxy: proxy.reload(), times=2)
    is_honest(run)
    assert run.reasons == {}


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
async def test_a_copy_that_the_proxy_repeats_to_a_second_receiver_is_handled_once(kind, tmp_path):
    """Its answer was lost. docs/machines.md advises this setting in front of receivers, and only there."""
    run = await repeated(kind, tmp_path)
    assert (run.reasons, run.acknowledged) == ({}, run.sent)
    twice = {name for name, receivers in run.received.items() if len(receivers) == 2}
    assert len(twice) == len(run.sent) // 4
    assert {name for name, times in run.sent_on.items() if times > 1} == twice
    if kind == "nginx":  # HAProxy tries the same server again first
        assert {len({*run.received[name]}) for name in twice} == {2}
    assert run.handled == dict.fromkeys(run.sent, 1)
    assert run.inbox == Counts(waiting=0, done=len(run.sent), dead=0, quarantined=0)
