"""Rates of single groups: where throttled answers concentrate in few groups, only these are slowed down."""

# A group is *watched* from its first throttled answer on. It gets a rate of its own (a lane) when four answers in a row, or
# six of the last eight, were throttled while others pass: then the platform limits that group, and not the whole. Others
# pass if ten answers went to groups that are not throttled at all, or if three quarters of all answers to others were good
# ones. Its throttled answers then concern its lane only, and the whole returns to its rate. A lane ends when it was not
# throttled for two minutes. There are eight lanes at most: if more groups are throttled, that concerns the whole. After a
# pause that the platform asks for, a watched group sends once in a second until a request passes, if others pass meanwhile.

from __future__ import annotations

from collections import deque
from math import inf

from rbim.bulk.pace.rate import AdaptiveRate

__all__ = ["GroupRates"]

MOST_LANES = 8
LAST = 8  # answers of a group
THROTTLED = 6  # of them, from which a group is suspected; fewer may be chance,
IN_ROW = 4  # but not so many in a row
OTHERS = 10  # answers that others must have had
OTHERS_THROTTLED = 0.25  # share of them that may be throttled
WATCH = 10.0  # seconds after the last throttled answer, and the pause it asks for, in which groups are watched
TURN = 1.0  # seconds between two requests of a watched group after a pause, until one of them passes
LANE_LASTS = 120.0  # seconds after the last throttled answer


class _Lane:
    def __init__(self, rate: AdaptiveRate, now: float) -> None:
        self.rate = rate
        self.halted_until = -inf
        self.throttled_at = now


class _Watched:
    def __init__(self, now: float) -> None:
        self.since = now
        self.answers = self.passed = 0
        self.last = deque[bool](maxlen=LAST)
        self.in_row = 0  # throttled answers since the last one that passed
        self.turns_begin = inf  # the end of the pause that the platform asked for, if no request passed since
        self.next_turn = -inf


class GroupRates:
    """The rates of single groups. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._watched: dict[str, _Watched] = {}
        self._watch_until = -inf
        self.made = False
        """Whether the last throttled answer gave its group a rate of its own."""
        self._unwatched = 0  # answers of groups that are not watched, since the first one is
        self._answers = self._throttled = 0  # of watched groups, since then

    def earliest(self, group: str | None, now: float) -> float:
        """Return the time from which the group may send; -inf if it has no rate of its own."""
        if not self._lanes or (lane := self._lanes.get(group or "")) is None:
            return self._next_turn(group or "", now) if self._watched else -inf
        if now > lane.throttled_at + LANE_LASTS:
            del self._lanes[group or ""]
            return -inf
        at = lane.rate.earliest(now)
        if at > now and at > lane.halted_until:
            lane.rate.held = True
        return max(at, lane.halted_until)

    def _next_turn(self, group: str, now: float) -> float:
        """Return the time of the watched group's next turn, if others pass meanwhile; else -inf."""
        watched = self._watched.get(group)
        if watched is None or now < watched.turns_begin or self._unwatched < OTHERS:
            return -inf
        return watched.next_turn

    def reserved(self, group: str | None, now: float) -> None:
        """Count a request that is handed out."""
        if self._lanes and (lane := self._lanes.get(group or "")) is not None:
            lane.rate.pending += 1
        elif self._watched and (watched := self._watched.get(group or "")) is not None:
            watched.next_turn = now + TURN

    def left(self, group: str | None, now: float) -> None:
        """Count a request that leaves now."""
        if self._lanes and (lane := self._lanes.get(group or "")) is not None:
            lane.rate.withdrawn()
            lane.rate.left(now)

    def withdrawn(self, group: str | None) -> None:
        """Note a request that did not leave."""
        if self._lanes and (lane := self._lanes.get(group or "")) is not None:
            lane.rate.withdrawn()

    def passed(self, group: str | None, now: float, sent_at: float) -> None:
        """Note a request that was not throttled."""
        if self._lanes and (lane := self._lanes.get(group or "")) is not None:
            lane.rate.passed(now, sent_at)
        elif self._watched:
            if now > self._watch_until:
                self._watched.clear()
            elif (watched := self._watched.get(group or "")) is None:
                self._unwatched += 1
            else:
                self._answers += 1
                watched.answers += 1
                watched.passed += 1
                watched.in_row = 0
                watched.turns_begin = inf
                watched.last.append(False)

    def throttled(self, group: str | None, now: float, sent_at: float, halt: float) -> bool:
        """Note a throttled answer. Return whether it concerns this group only."""
        if group is None:
            return False
        self.made = False
        lane = self._lanes.get(group)
        if lane is None:
            if not self._concentrates(group, now, halt):
                return False
            watched = self._watched.pop(group)
            self._answers -= watched.answers
            self._throttled -= watched.answers - watched.passed
            seconds = max(1.0, now - watched.since)
            low, high = max(watched.passed, watched.answers / 2) / seconds, watched.answers / seconds
            lane = self._lanes[group] = _Lane(AdaptiveRate.between(low, high, now), now)
            lane.halted_until = now + halt
            self.made = True
        lane.throttled_at = now
        if lane.rate.throttled(now, sent_at, halt):
            lane.halted_until = max(lane.halted_until, now + halt)
        return True

    def _concentrates(self, group: str, now: float, halt: float) -> bool:
        """Return whether the group is throttled often and others are not at all."""
        if now > self._watch_until:
            self._watched.clear()
        if not self._watched:
            self._unwatched = self._answers = self._throttled = 0
        self._watch_until = max(self._watch_until, now + halt + WATCH)
        watched = self._watched.setdefault(group, _Watched(now))
        self._answers += 1
        self._throttled += 1
        watched.answers += 1
        watched.last.append(True)
        watched.in_row += 1
        watched.turns_begin = now + halt if halt else inf
        often = watched.in_row >= IN_ROW or sum(watched.last) >= THROTTLED
        if not often or len(self._lanes) >= MOST_LANES:
            return False
        others = self._unwatched + self._answers - watched.answers
        throttled = self._throttled - (watched.answers - watched.passed)
        return self._unwatched >= OTHERS or (others >= OTHERS and throttled <= OTHERS_THROTTLED * others)
