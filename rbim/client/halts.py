"""Halts: what a throttled answer with ``Retry-After`` stops.

A throttled call always pauses by itself; the question is which other calls wait with it. One throttled answer among many
good ones says little (some platforms throttle a share of all requests, whatever their rate), and a halt of everything
costs all callers the pause. So a halt needs evidence, and concerns as little as explains it:

- the requests of the same operation for the same group: when three of its last eight requests were throttled;
- the whole operation: when four of its last ten were, for three groups or more (or without a group as above).

A rate with ``each_group`` that counts a request names the group's scope (all its operations), one with ``operations``
the operation's. A client that has sent next to nothing believes the first answer. Halts of different scopes add up to a
halt of everything if everything is throttled. A wait of more than ``LONGEST_HALT`` is cut, so that a wrong value does not
stop a client for ever.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import NamedTuple

__all__ = ["LONGEST_HALT", "Halts"]

LONGEST_HALT = 300.0
"""Seconds of the longest halt."""

FEW_CALLS = 8
"""Calls of a client up to which one throttled answer is enough evidence."""

WATCH = 10.0
"""Seconds after the last throttled answer of a scope in which its requests are counted."""


PRUNE = 1024


class _Rule(NamedTuple):
    throttled: int
    requests: int
    groups: int


NARROW = _Rule(throttled=3, requests=8, groups=1)
WIDE = _Rule(throttled=4, requests=10, groups=3)


class _Watched:
    """A scope in which an answer was throttled: ``sent`` requests since then, and its halt."""

    __slots__ = ("halted_until", "marks", "sent", "until")

    def __init__(self) -> None:
        self.halted_until = -inf
        self.until = -inf
        self.sent = 0
        self.marks: deque[tuple[int, object]] = deque(maxlen=max(NARROW.throttled, WIDE.throttled))

    def fulfils(self, rule: _Rule) -> bool:
        """Return whether the last throttled answers are evidence enough."""
        last = list(self.marks)[-rule.throttled :]
        near = len(last) == rule.throttled and self.sent - last[0][0] < rule.requests
        return near and len({group for _, group in last}) >= rule.groups


class Halts:
    """The halts of one client. Times are seconds of its monotonic clock; scopes are any hashable keys."""

    def __init__(self) -> None:
        self._watched: dict[object, _Watched] = {}
        self._watch_until = -inf
        self._prune_at = PRUNE
        self.last_end = -inf
        """The end of the last halt."""

    def watching(self, now: float) -> bool:
        """Return whether requests must be counted: something was throttled lately, or is halted."""
        if self._watched and now >= self._watch_until:
            self._watched.clear()
        return bool(self._watched)

    def until(self, scope: object) -> float:
        """Return the time until which nothing of a scope may leave; -inf if it is not halted."""
        watched = self._watched.get(scope)
        return -inf if watched is None else watched.halted_until

    def sent(self, scope: object) -> None:
        """Count a request of a scope that leaves now."""
        watched = self._watched.get(scope)
        if watched is not None:
            watched.sent += 1

    def throttled(self, narrow: object, wide: object, *, seconds: float, now: float, calls: int) -> None:
        """Note a throttled answer that asks for a pause of ``seconds``; ``calls`` have begun on this client.

        Halts the scope ``narrow`` or ``wide``, if there is evidence for it. They are equal for a request without group.
        """
        until = now + min(seconds, LONGEST_HALT)
        rules = ((narrow, NARROW),) if narrow == wide else ((narrow, NARROW), (wide, WIDE))
        for scope, rule in rules:
            watched = self._of(scope, now)
            watched.until = max(watched.until, until + WATCH)
            self._watch_until = max(self._watch_until, watched.until)
            watched.marks.append((watched.sent, narrow))
            if watched.fulfils(rule) or (rule is NARROW and calls <= FEW_CALLS):
                watched.halted_until = max(watched.halted_until, until)
                self.last_end = max(self.last_end, until)

    def _of(self, scope: object, now: float) -> _Watched:
        watched = self._watched.get(scope)
        if watched is None:
            if len(self._watched) >= self._prune_at:  # the growing threshold amortizes the cost
                self._watched = {key: each for key, each in self._watched.items() if each.until > now}
                self._prune_at = max(PRUNE, 2 * len(self._watched))
            watched = self._watched[scope] = _Watched()
        return watched
