"""A platform that throttles: the client goes on at the rate that passes, and never turns an overload into an outage.

The loads are on emulated time, over a platform with a token bucket, which nothing of rbim's own limits has written.
"""

import random
from itertools import product

import pytest
from hypothesis import given, strategies as st

from helpers.loads import Call, Platform, in_time, run
from helpers.tables import each_row
from helpers.throttling import CREATE, load
from rbim import JoinGroup, Limits, QueryGroupDetail, Rate, Response, Retry
from rbim.client.congestion import CALM, LONGEST_PAUSE, Congestion, Flow
from rbim.client.limits import Demands

ONCE = Retry(attempts=1)


def worst(limit, burst, retry_after, times) -> float:
    """Return the share of what is possible that passes from second 5 on, at so many times the limit."""
    _, done = load(limit, burst, retry_after, lambda _: times * limit)
    return done.rate(5, 20) / (min(1.0, times) * limit)


def recovery(limit, burst, retry_after) -> float:
    """Return the share of calls that are answered from 5 s after an overload of three times the limit for 3 s."""
    calls, _ = load(limit, burst, retry_after, lambda at: (3 if at < 3 else 0.8) * limit)
    late = [call for call in calls if call.at >= 8]
    return in_time(late) / len(late)


SOME = [(20, 1, "5"), (50, 1, None), (50, 5, "2"), (50, 50, "date"), (20, 5, "1")]


@pytest.mark.parametrize(
    "cases",
    [
        SOME,
        pytest.param([*product((20, 50), (1, 5, 1.0), (None, "5", "date"))], marks=[pytest.mark.ci, pytest.mark.no_cover]),
    ],
)
def test_an_overload_leaves_what_the_platform_takes_and_ends_with_it(cases):
    """A bucket of 1.0 is that of a whole second."""
    wrong = {}
    for number, (limit, burst, asked) in enumerate(cases):
        tokens = limit if isinstance(burst, float) else burst
        times = [(0.8, 1.1, 2, 5)[number % 4]]
        found = [worst(limit, tokens, asked, each) for each in times]
        answered = recovery(limit, tokens, asked)
        least = 0.92 if (burst, asked) == (1, "5") else 0.95  # who is throttled at a single token waits for half of its time
        if min(found) < 0.8 or answered < least:
            wrong[limit, burst, asked] = found, answered
    assert wrong == {}


def test_one_group_that_is_throttled_costs_the_others_nothing():
    def operation(draw):
        return JoinGroup(group_id="hot" if draw.random() < 0.3 else f"g{draw.randrange(20)}")

    calls, done = load(1e9, 1e9, "2", lambda _: 60, operation=operation, hot='"hot"')
    others = [call for call in calls if call.operation.group_id != "hot"]
    assert in_time(others) >= 0.99 * len(others)
    assert max(call.ended - call.at for call in others if call.at > 8) <= 0.5
    assert sum('"hot"' in group for at, group in done.passed if at >= 5) >= 0.7 * 2 * 15


def test_another_operation_loses_nothing():
    def operation(draw):
        return CREATE if draw.random() < 0.5 else QueryGroupDetail(group_id="x")

    calls, done = load(1e9, 1e9, "1", lambda _: 60, operation=operation, hot="CreateGroup", hot_limit=0.001)
    details = [call for call in calls if call.operation is not CREATE]
    assert in_time(details) == len(details)
    assert max(call.ended - call.at for call in details) <= 0.2
    assert sum(at > 3 for at, _ in done.throttled) <= 60


def _busy() -> Response:
    return Response(429, {"retry-after": "1"}, b'{"statusCode":"112310","statusMsg":"x"}')


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_throttled_answer_in_a_hundred_costs_little(backend):
    calls = [Call(number / 100, CREATE, 5.0) for number in range(1000)]
    done = Platform(lambda: 0.01, instead=lambda: _busy() if len(done.sends) % 100 == 0 else None)
    run(calls, done, Limits(), retry=ONCE, backend=backend)
    assert in_time(calls) >= 980
    assert sum(call.ended - call.at for call in calls) / len(calls) <= 0.012


def test_calls_are_refused_at_once_when_the_pause_is_longer_than_their_deadlines():
    calls = [Call(number / 10, QueryGroupDetail(group_id="x"), 30.0) for number in range(100)]
    done = Platform(lambda: 0.05, instead=lambda: Response(429, {"retry-after": "100"}, b'{"statusCode":"112310"}'))
    run(calls, done, Limits(), retry=ONCE)
    assert len(done.sends) <= 60
    assert all(call.ended - call.at <= 0.06 for call in calls if call.at > 8)


# The flow itself


def window(flow: Flow, now: float, passed: int, throttled: int = 0, *, held=True, seconds=1.1) -> float:
    """Let a flow see such answers, evenly spread over a window, and return the time at its end."""
    answers = [None] * passed + [0.0] * throttled
    random.Random(7).shuffle(answers)
    for number, asked in enumerate(answers, 1):
        at = now + seconds * number / len(answers)
        if held:
            flow._held += 1
        if flow.answered(None, at, asked):
            flow.end_window(at)
    return now + seconds


def slowed(passed=100, throttled=20) -> tuple[Flow, float]:
    flow = Flow(0.0)
    now = window(flow, 0.0, passed, throttled)
    return flow, now


def test_a_rate_that_is_not_used_does_not_grow():
    flow, now = slowed()
    rate = flow.rate
    for _ in range(5):
        now = window(flow, now, 30, held=False)
    assert flow.rate == rate


@each_row("asked, pause", [(None, 1.0), (30.0, 30.0), (1e9, LONGEST_PAUSE)])
def test_a_flow_of_which_nothing_passes_pauses_as_long_as_it_is_asked_to_and_starts_slowly(asked, pause):
    flow, now = slowed()
    flow._begin_window(None)
    for number in range(40):
        at = now + number / 20
        if flow.answered(None, at, asked or 0.0):
            flow.end_window(at)
            if flow.valid_from > at:
                break
    assert flow.valid_from == pytest.approx(at + pause)
    assert flow.ready_at(at) == pytest.approx(at + pause, abs=0.2)
    assert flow.rate <= 11


@given(st.lists(st.tuples(st.floats(0, 4), st.sampled_from([None, None, 0.0, 5.0]), st.integers(0, 3)), max_size=80))
def test_whatever_is_answered_a_flow_has_a_rate_and_times(answers):
    congestion, now = Congestion(), 0.0
    for gap, asked, group in answers:
        now += gap
        congestion.answered(("op", group) if group else "op", "op", sent_at=now, now=now, asked=asked)
        for flow in congestion.flows.values():
            assert flow.rate >= 0.5
            assert flow.interval > 0
            assert flow.ready_at(now) <= now + LONGEST_PAUSE
            flow.take(now)


def test_a_flow_ends_when_it_is_calm_and_what_is_over_is_forgotten():
    congestion = Congestion()
    for number in range(2000):
        wide = ("op", number)
        congestion.answered(wide, wide, sent_at=0.0, now=number * 0.001, asked=1.0)
    assert len(congestion.flows) == 2000
    now = 2.0 + 2 * CALM
    congestion.answered("other", "other", sent_at=now, now=now, asked=None)
    assert congestion.flows == {}
    assert congestion.rate is None


def test_a_rate_for_operations_says_that_they_are_throttled_together_and_one_for_groups_that_these_are():
    detail, join = QueryGroupDetail(group_id="g1"), JoinGroup(group_id="g1")
    apart, together, groups = (
        Demands(rates, {})
        for rates in ((), (Rate(1000, operations=(QueryGroupDetail, JoinGroup)),), (Rate(1000, each_group=True),))
    )
    for demands, wide, narrow in ((apart, False, False), (together, True, False), (groups, False, True)):
        kinds = [demands.kind_of(each, 0.0) for each in (detail, join)]
        assert (kinds[0].wide == kinds[1].wide) is wide
        assert (kinds[0].narrow_of("g1") == kinds[1].narrow_of("g1")) is narrow


def test_throttling_that_no_slowing_changes_is_chance_unless_it_stops_in_between():
    def rates(shares):
        flow, now, found = Flow(0.0), 0.0, []
        for share in shares:
            now = window(flow, now, 100 - share, share)
            found.append(flow.rate)
        return found

    first, second, *later = rates([10] * 6)
    assert second == pytest.approx(first)
    assert second < later[0]
    assert later == sorted(later)
    assert rates([10, 0] * 3)[::2] == [pytest.approx(first, rel=0.05)] * 3


def test_few_answers_halve_the_rate_and_do_not_pause():
    flow, now = slowed()
    flow._begin_window(None)
    rate = flow.rate
    now = window(flow, now, 1, 2, seconds=4.6)
    assert (flow.rate, flow.valid_from) == (pytest.approx(rate / 2), pytest.approx(now))


@each_row("throttled, hot", [({3, 9}, False), ({3, 9, 20}, True)])
def test_a_group_that_most_throttled_answers_are_for_becomes_a_flow_and_leaves_the_other_as_it_was(throttled, hot):
    congestion = Congestion()
    for number in range(3):
        assert not congestion.answered(f"g{number}", "all", sent_at=0.0, now=number * 0.1, asked=None)
    assert congestion.answered("hot", "all", sent_at=0.3, now=0.3, asked=0.0)
    changed = []
    for number in range(30):
        group, asked = ("hot", 0.0) if number in throttled else (f"g{number % 7}", None)
        at = 0.3 + number * 0.04
        changed.append(congestion.answered(group, "all", sent_at=at, now=at, asked=asked))
    assert sum(changed) == hot
    assert ("hot" in congestion.flows) is hot
    if hot:
        assert not congestion.flows["all"].is_slowed
        assert congestion.flows["all"].hot() == []


def test_a_flow_that_holds_requests_back_is_not_over():
    flow, now = slowed()
    now += CALM + 1
    flow.due = now - 0.5
    assert not flow.is_over(now)
    flow.due = now - 2
    assert flow.is_over(now)


def test_what_passes_of_a_group_with_a_flow_lets_that_of_its_operation_grow():
    """Its requests leave by the rates of both: else that of the operation would stay low while only they are sent."""
    congestion, now = Congestion(), 0.0
    hot, wide = Flow(0.0, "hot"), Flow(0.0)
    congestion.flows |= {"hot": hot, "wide": wide}
    for _ in range(4):
        wide.answered("other", now, 0.0)
    wide.end_window(now)
    before = wide.rate
    for _ in range(200):
        now += 0.05
        wide.take(now)
        congestion.answered("hot", "wide", sent_at=now, now=now, asked=None)
    assert (before, wide.rate) == (18.0, 72.0)


def test_a_burst_to_one_group_does_not_slow_the_others_that_were_answered_lately():
    congestion = Congestion()
    congestion.answered("hot", "wide", sent_at=0.0, now=0.0, asked=0.0)
    for number in range(20):
        at = (number + 1) / 20
        congestion.answered(f"g{number % 6}", "wide", sent_at=at, now=at, asked=None)
    for _ in range(6):
        congestion.answered("hot", "wide", sent_at=1.05, now=1.05, asked=0.0)
    assert "hot" in congestion.flows
    assert not congestion.flows["wide"].is_slowed
