"""nginx and HAProxy between the client and the platform: what the client says of each call agrees with their logs.

Each call has a name, which stands in the proxy's log and in the platform's.
"""

import pytest

from helpers.transports import TRANSPORTS
from helpers_ci.proof import read_proof
from helpers_ci.proxies import PROXIES, needs_proxies
from rbim import Attempt, Outcome

from .calls import Call, Calls
from .scenarios import idle, limited, reloads, repeats, restarts

pytestmark = [*needs_proxies, pytest.mark.no_cover, pytest.mark.usefixtures("no_proxy_of_this_machine")]

TESTED = [module for module in TRANSPORTS if module != "auto"]
EACH = [pytest.param(kind, module, TRANSPORTS[module][2][0], id=f"{kind}-{module}") for kind in PROXIES for module in TESTED]
ONE = [each for each in EACH if each.values[1] == "asyncio"]
SHORT = [each for each in EACH if each in ONE or each.values[0] == "nginx"]
of_some = pytest.mark.parametrize(("kind", "module", "anyio_backend"), SHORT)
of_one = pytest.mark.parametrize(("kind", "module", "anyio_backend"), ONE)


def is_honest(run, *, logged=True):
    """Assert that nothing is lost, doubled unseen or told wrong; and that the proxy's log has what the platform has seen."""
    assert (run.tally.lost, run.tally.unseen, run.tally.wrong) == (0, 0, ())
    assert all(run.sent_on[name] <= run.seen[name] for name in run.sent_on)
    if logged:
        assert run.sent_on == run.seen


def sent_on(run, outcome):
    """How often the calls of this outcome came to the platform, at most and at least."""
    times = {run.seen[call.name] for call in run.calls.made.values() if call.outcome is outcome}
    return (min(times), max(times)) if times else None


@of_some
async def test_no_outcome_is_false_while_it_reloads(kind, module, tmp_path):
    run = await reloads(kind, tmp_path, module)
    is_honest(run)
    assert (run.tally.refused, run.tally.not_sent) == (0, 0)
    assert run.tally.unknown + run.tally.again <= 2 * 10  # reloads and workers: at most the connections that were closed


@of_one
async def test_tls_at_the_proxy_changes_nothing_of_it(kind, module, tmp_path):
    run = await reloads(kind, tmp_path, module, tls=True)
    is_honest(run)
    assert (run.tally.refused, run.tally.not_sent) == (0, 0)


@of_some
async def test_no_outcome_is_false_while_it_restarts(kind, module, tmp_path):
    run = await restarts(kind, tmp_path, module)
    is_honest(run, logged=False)  # it is stopped with its requests, and writes nothing of them
    assert run.tally.again  # what was refused is sent again


@of_some
async def test_pauses_as_long_as_its_keep_alive_time_make_no_outcome_false(kind, module, tmp_path):
    is_honest(await idle(kind, tmp_path, module))


@of_one
async def test_what_its_rate_limit_refuses_with_429_is_throttled_and_never_sent_on(kind, module, tmp_path):
    run = await limited(kind, tmp_path, module, status=429)
    is_honest(run)
    assert run.tally.unknown == 0
    assert sent_on(run, Outcome.REFUSED) == (0, 0)
    assert sent_on(run, None) == (1, 1)


@of_one
async def test_with_its_defaults_it_repeats_nothing_and_rbim_what_does_no_harm(kind, module, tmp_path):
    run = await repeats(kind, tmp_path, module, again=False)
    # HAProxy closes the client's connection instead, without a line in its log, if the request was not the first over it
    is_honest(run, logged=kind != "haproxy")
    assert run.tally.again
    assert run.tally.unknown
    assert {call.kind for call in run.calls.made.values() if call.outcome is Outcome.UNKNOWN} == {"never"}


@of_one
async def test_set_to_repeat_everything_it_doubles_requests_that_rbim_cannot_see(kind, module, tmp_path):
    """As docs/machines.md says: the one thing that no client can be told."""
    run = await repeats(kind, tmp_path, module, again=True)
    assert (run.tally.lost, run.tally.wrong) == (0, ())
    assert (run.tally.answered, run.tally.again) == (run.tally.calls, 0)
    assert run.tally.unseen
    doubled = {call.kind for call in run.calls.made.values() if run.seen[call.name] > 1}
    assert "never" in doubled


ANSWERED = Attempt(number=1, elapsed=0.1, status=200)
UNKNOWN = Attempt(number=1, elapsed=0.1, outcome=Outcome.UNKNOWN)
NOT_SENT = Attempt(number=1, elapsed=0.1, outcome=Outcome.NOT_SENT)


def test_the_tally_sees_what_is_lost_doubled_or_told_wrong():
    for attempts, outcome, times, told in [
        ([NOT_SENT, ANSWERED], None, 1, (0, 0, 0)),
        ([ANSWERED], None, 0, (1, 0, 0)),
        ([NOT_SENT, ANSWERED], None, 2, (0, 1, 0)),
        ([UNKNOWN], Outcome.UNKNOWN, 1, (0, 0, 0)),
        ([NOT_SENT], Outcome.NOT_SENT, 1, (0, 1, 1)),
        ([UNKNOWN, ANSWERED], None, 2, (0, 0, 1)),
    ]:
        calls = Calls({"n": Call(name="n", kind="never", attempts=tuple(attempts), outcome=outcome)})
        tally = calls.tally({"n": times} if times else {})
        assert (tally.lost, tally.unseen, len(tally.wrong)) == told, attempts


def test_the_record_has_no_call_that_is_lost_or_doubled_unseen_but_by_a_proxy_that_repeats_everything():
    runs = read_proof("proxies")["runs"]
    assert {run["what"] for run in runs if run["lost"] or run.get("twice")} == set()
    assert {run["what"] for run in runs if run.get("unseen")} == {"the same; the proxy repeats every request"}
    assert {run["proxy"] for run in runs} == set(PROXIES)
