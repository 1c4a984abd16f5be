"""Congestion: the rate at which requests pass while the platform throttles some of them.

A throttled call waits by itself as long as it was asked to; what else concerns the same limit goes on at the rate that
passes. Everything here computes with times that are arguments, seconds of a monotonic clock; nothing waits.
"""

# Theory of operation
#
# A *flow* is the requests of one operation, or of one operation for one group. It exists from its first throttled answer on,
# and until none came for `CALM` seconds and its rate held nothing back. Without flows all this costs nothing.
#
# Answers are counted in windows of about a second. At the end of a window the flow is
#
# WATCHED   its rate is infinite: too few were throttled to tell a limit from chance
# SLOWED    to `KEPT` of what passed, if more than `TOLERATED` were throttled; in mid-window, if it is most of them
# PAUSED    if nothing passed: as long as the platform asks (a second by default); then it starts slowly
# GROWING   if few were throttled while the rate holds requests back: doubled up to what passed before, and from there by
#           steps that are halved whenever they led to throttling, and doubled with each window after `FASTER` that did not
#
# Where slowing down changes nothing, `VAIN` times in a row, the platform throttles by chance: twice that share is tolerated.
#
# Few groups that have most of the throttled answers become flows of their own. What is throttled of them does not count in
# that of their operation any more; what passes does, for it has let it leave.
#
# Always true: what a flow holds back leaves one by one at its rate, never as a herd; answers to requests that left before
# the rate was lowered say nothing of it; each window with little throttling in which the rate was used raises it.

from __future__ import annotations

from math import inf, sqrt

from rbim.client.limits import Bucket

__all__ = ["LONGEST_PAUSE", "Congestion", "Flow"]

WINDOW = 1.0
LONGEST_WINDOW = 3.0
"""Seconds of a window: at least, and at most where answers are few."""

TOLERATED = 0.03
SIGMAS = 1.0
"""The share of throttled answers that is no congestion, and by how many standard deviations a window may exceed it."""

KEPT = 0.9
START = 20.0
"""Requests per second that are kept at least when a flow is slowed for the first time."""

FLOOR = 0.5
"""Requests per second that are always sent, to notice when the platform accepts more."""

SLOW_START = 2.0
STEP = 0.03
FASTER = 4
LEAST_STEP = 0.2
"""Growth in a window: at most, at least; the windows without congestion after which it doubles with each; and at least, in
requests per second."""

VAIN = 2
MOST_CHANCE = 0.25
"""So often in a row slowing down must have changed nothing; and the share of throttled answers that may be chance."""

PAUSE = 1.0
LONGEST_PAUSE = 300.0
"""Seconds of a pause: without ``Retry-After``, and at most."""

CALM = 10.0
"""Seconds without a throttled answer after which a flow whose rate holds nothing back ends."""

SURE = 4
"""Throttled answers, at least half as many as those that passed, that end a window early."""

HOT = 3
MOST = 0.75
"""Groups are limited alone that have so many throttled answers each, this share of all of them, and are half of the groups
at most, in this window or the one before. Throttled answers of earlier windows count ``FADE`` times."""

FADE = 0.9
FADED = 0.5

FEW, SOME, MANY = 4, 6, 16
"""Answers that are too few to say what passes; and enough for a window, near the rate that passes, in which none or some
were throttled."""

WATCHED = 1e-9
"""Seconds between requests while a flow is only watched: none."""


class Flow(Bucket):
    """The requests of one limit: a bucket whose rate follows what passes. ``group``: of this one alone, if not None."""

    __slots__ = (
        "_asked",
        "_before",
        "_clean",
        "_good",
        "_groups",
        "_growth",
        "_held",
        "_passed",
        "_peak",
        "_share",
        "_since",
        "_throttled",
        "_tolerated",
        "_vain",
        "group",
        "throttled_at",
        "valid_from",
    )

    def __init__(self, now: float, group: object = None) -> None:
        self.group = group
        self.interval, self.slack = WATCHED, 0.0
        self.due = -inf
        self.granted = 0
        self.waiting = ([], [])
        self.throttled_at = self.valid_from = now
        self._peak = inf  # the rate that passed when it was slowed last
        self._good = 0.0  # a rate that was used since, and hardly throttled
        self._growth = SLOW_START
        self._clean = 1  # windows in a row that were not congested
        self._share = inf  # of throttled answers in the last congested window, if some were throttled in all since
        self._vain = 0
        self._tolerated = TOLERATED
        self._since: float | None = None  # the first answer of this window
        self._asked = 0.0
        self._passed = self._throttled = self._held = 0
        self._before = 0  # groups with an answer in the window before
        self._groups: dict[object, float] = {}  # throttled answers lately, of each group with any answer in this window

    @property
    def rate(self) -> float:
        """Requests per second; infinite while the flow is only watched."""
        return 1 / self.interval if self.is_slowed else inf

    @property
    def is_slowed(self) -> bool:
        """Whether it has a rate."""
        return self.interval > WATCHED

    def take(self, now: float) -> None:
        """Count a request that leaves now."""
        self._held += now <= self.due + self.interval
        super().take(now)

    def is_over(self, now: float) -> bool:
        """Return whether nothing was throttled for long, and the rate holds nothing back."""
        calm = now - self.throttled_at > CALM and not self.is_used
        return calm and (not self.is_slowed or now - self.due > WINDOW)

    def answered(self, group: object, now: float, asked: float | None) -> bool:
        """Count an answer; return whether a window ends. ``group``: the scope of its group, where several share the flow.

        ``asked``: it was throttled, for so many seconds (0: not said).
        """
        if self._since is None:
            self._since = now
        if asked is None:
            self._passed += 1
        else:
            self._throttled += 1
            self._asked = max(self._asked, asked)
        if group is not None:
            self._groups[group] = self._groups.get(group, 0.0) + (asked is not None)
        if self._clean and self._throttled >= SURE and 2 * self._throttled >= self._passed:
            return True
        elapsed = now - self._since
        if elapsed < WINDOW or elapsed >= LONGEST_WINDOW:
            return elapsed >= WINDOW
        fast = self._growth == SLOW_START or self.rate < KEPT * self._peak
        return self._passed + self._throttled >= (MANY if self._throttled else 1 if fast else SOME)

    def hot(self) -> list[object]:
        """Return the groups that most throttled answers are for, if they are few; they do not count here any more."""
        hot = [group for group, throttled in self._groups.items() if throttled >= HOT]
        throttled = sum(self._groups.values())
        its = sum(self._groups[group] for group in hot)
        if not hot or 2 * len(hot) > max(len(self._groups), self._before) or its < MOST * throttled:
            return []
        for group in hot:
            del self._groups[group]
        self._throttled = 0  # of the others there are few: the next window will tell
        return hot

    def end_window(self, now: float) -> None:
        """Change the rate by what the window has shown, and begin the next one."""
        if not self._is_clean and not self._is_chance():
            self._slow_down(now)
            self._clean = 0
            self._begin_window(None)
            return
        if self.is_slowed and self._is_clean and 2 * self._held > self._passed:
            self._grow()
        self._clean += 1
        if not self._throttled:
            self._share = inf
        self._begin_window(now)

    @property
    def _is_clean(self) -> bool:
        expected = self._tolerated * (self._passed + self._throttled)
        return self._throttled <= expected + SIGMAS * sqrt(expected)

    def _is_chance(self) -> bool:
        """Return whether slowing down has changed nothing, so often that the throttling must be chance."""
        share = self._throttled / (self._passed + self._throttled)
        self._vain = self._vain + 1 if self._share / 2 < share <= MOST_CHANCE else 0
        self._share = share
        self._tolerated = min(2 * share, MOST_CHANCE) if self._vain >= VAIN else TOLERATED
        return self._vain >= VAIN

    def _slow_down(self, now: float) -> None:
        seconds = max(now - (self._since or now), WINDOW / 4)
        self.valid_from = now
        if self.is_slowed and 0 < self._passed < FEW - self._throttled:
            self._set_rate(self.rate / 2)
        elif self._passed or self._peak == inf > self._good:
            passed = self._passed / seconds
            self._peak = max(passed, self._good if self.is_slowed else START)
            self._set_rate(KEPT * self._peak)
        else:
            self.valid_from = self.due = now + min(self._asked or PAUSE, LONGEST_PAUSE)
            self._set_rate(min(self.rate, self._peak) / 10)
        if self._good:
            self._growth = max(sqrt(self._growth), 1 + STEP)
        self._good = 0.0

    def _grow(self) -> None:
        self._good = self.rate
        if self._clean >= FASTER:
            self._growth = min(self._growth**2, SLOW_START)
        step = max(self.rate * self._growth, self.rate + LEAST_STEP)
        fast = SLOW_START * self.rate if self._peak < inf else step
        self._set_rate(max(step, min(fast, KEPT * self._peak)))

    def _set_rate(self, rate: float) -> None:
        self.interval = 1 / max(rate, FLOOR)
        self.slack = self.interval / 2

    def _begin_window(self, since: float | None) -> None:
        fade = FADE if self._throttled else 1.0
        self._before = len(self._groups)
        self._groups = {group: fade * throttled for group, throttled in self._groups.items() if throttled > FADED}
        self._since = since
        self._passed = self._throttled = self._held = 0
        self._asked = 0.0


class Congestion:
    """The flows of one client. Scopes are any keys: ``wide`` an operation, ``narrow`` an operation for one group."""

    def __init__(self) -> None:
        self.flows: dict[object, Flow] = {}
        self._sweep_at = -inf

    @property
    def rate(self) -> float | None:
        """Requests per second of the slowest operation that is slowed for all groups; None if none is."""
        return min((flow.rate for flow in self.flows.values() if flow.is_slowed and flow.group is None), default=None)

    @property
    def all_paused_until(self) -> float:
        """The end of the last pause that concerns all groups of an operation; -inf without one."""
        return max((flow.valid_from for flow in self.flows.values() if flow.group is None), default=-inf)

    def answered(self, narrow: object, wide: object, *, sent_at: float, now: float, asked: float | None) -> bool:
        """Count the answer to a request that left at ``sent_at``; ``asked`` as in :meth:`Flow.answered`.

        Returns whether flows have come, gone or paused: waiting calls need other buckets, or cannot leave in time any more.
        """
        over = self.sweep(now)
        flow = self.flows.get(narrow) or self.flows.get(wide)
        if flow is None:
            if asked is None:
                return over
            flow = self.flows[wide] = Flow(now)
            flow.answered(None, now, asked)
            return True
        if asked is not None:
            flow.throttled_at = now
        counted = [(flow, narrow if flow.group is None and narrow is not wide else None)]
        if flow.group is not None and asked is None and wide in self.flows:
            counted.append((self.flows[wide], None))  # it has let the request leave as well
        changed = over
        for each, group in counted:
            if sent_at >= each.valid_from and each.answered(group, now, asked):
                hot = each.hot()
                self.flows.update({scope: Flow(now, scope) for scope in hot})
                each.end_window(now)
                changed = changed or bool(hot) or each.valid_from > now
        return changed

    def sweep(self, now: float) -> bool:
        """Forget the flows that are over, once in a window; return whether there were any."""
        if now < self._sweep_at:
            return False
        self._sweep_at = now + WINDOW
        over = [scope for scope, flow in self.flows.items() if flow.is_over(now)]
        for scope in over:
            del self.flows[scope]
        return bool(over)
