"""The points of a chart over a time of any length."""

from itertools import pairwise

from rbim.cli.page.points import PointHistory
from rbim.page.events import Feed


def test_a_chart_spans_the_whole_time_in_bounded_memory():
    stream = Feed().stream("points", 11, dict)
    history = PointHistory(stream, 10)
    for number in range(1000):
        history.add({"n": number})
        kept = [each["n"] for each in stream.held()]
        assert len(kept) <= 10
        assert kept == sorted(kept)
    apart = {later - earlier for earlier, later in pairwise(kept)}
    assert kept[0] == 0
    assert kept[-1] > 800
    assert max(apart) <= 2 * min(apart)


def test_a_short_chart_has_every_point():
    stream = Feed().stream("points", 11, dict)
    history = PointHistory(stream, 10)
    for number in range(10):
        history.add({"n": number})
    assert [each["n"] for each in stream.held()] == list(range(10))
