"""What came out: the file, the job's report and the handlers' lines, against the state and the logs of the platform."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from rbim.cli.demo.machines.platform import OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.cli.demo.rows import DemoRows

__all__ = ["Callbacks", "Death", "Figures", "Invitations"]

OK = 200


@define(kw_only=True, eq=False)
class Death:
    """A process that was killed at ``at``, started again at ``back``; the next thing happened at ``until``.

    Times are those of ``time.monotonic``. ``who`` is its part, ``process`` its number, ``more`` what is known besides.
    """

    who: str
    process: int
    at: float
    back: float = 0.0
    until: float = 0.0
    more: str = ""


@frozen(kw_only=True)
class Invitations:
    """The job: its rows, the accounts in its report, the platform's state and the requests that it saw.

    ``resent``: requests that the job sent again because their outcome was unknown, of ``chunk`` accounts at most.
    """

    rows: DemoRows
    report: dict[str, Any]
    state: dict[str, Any]
    requests: list[dict[str, Any]]
    resent: int = 0
    chunk: int = 1

    @property
    def members(self) -> dict[str, set[str]]:
        """The members of each group by its id, as the platform has them."""
        return {group["group_id"]: set(group["members"]) - {OWNER} for group in self.state["groups"]}

    @property
    def expected(self) -> dict[str, set[str]]:
        """The accounts of each group that have logged in before: those that can be invited."""
        strangers = self.rows.never_logged_in
        return {group.group_id: set(group.accounts) - strangers for group in self.rows.groups.values()}

    @property
    def lost(self) -> int:
        """The number of accounts that are not in their group, though they can be invited."""
        return sum(len(accounts - self.members[group]) for group, accounts in self.expected.items())

    @property
    def again(self) -> int:
        """The number of requests that the platform saw before."""
        return sum(each["attempt"] > 1 for each in self.requests)

    @property
    def doubtful(self) -> int:
        """The number of accounts that cannot be invited, and may be in requests that the job sent again.

        The report may call these unknown: the answer to the first request, which did not arrive, may have been another one.
        The platform need not have seen that request: its worker may have died before it left.
        """
        return min(len(self.rows.never_logged_in), self.resent * self.chunk)

    def mismatches(self) -> Iterator[str]:
        """Yield a line for each figure that is not as expected."""
        if self.members != self.expected:
            extra = sum(len(accounts - self.expected.get(group, set())) for group, accounts in self.members.items())
            yield f"{self.lost:,} accounts are not in their group, and {extra:,} are in a group that are not expected there"
        can = sum(map(len, self.expected.values()))
        unknown = min(self.report["unknown"], self.doubtful)
        refused = self.rows.total - self.rows.duplicates - can - unknown
        right = {"invited": can, "refused": refused, "failed": 0, "unknown": unknown}
        for name, number in right.items():
            if self.report[name] != number:
                yield f"the job's report has {self.report[name]:,} accounts that are {name}, expected {number:,}"


@frozen(kw_only=True)
class Callbacks:
    """The attempts of the platform to deliver, the lines of the handlers, and the counts of the inbox."""

    deliveries: list[dict[str, Any]]
    handled: list[dict[str, Any]]
    counts: dict[str, int]

    @property
    def sent(self) -> dict[str, str]:
        """The messages by id, each with its conversation, in the order of sending."""
        ordered = sorted(self.deliveries, key=lambda each: each["number"])
        return {each["message_id"]: each["key"] for each in ordered}

    @property
    def accepted(self) -> dict[str, float]:
        """When each message was first answered with 200."""
        found: dict[str, float] = {}
        for each in self.deliveries:
            if each["status"] == OK:
                found.setdefault(each["message_id"], each["at"] + each["took"])
        return found

    @property
    def first_handled(self) -> dict[str, float]:
        """When each event was first handled."""
        found: dict[str, float] = {}
        for each in self.handled:
            found.setdefault(each["id"], each["at"])
        return found

    @property
    def lost(self) -> int:
        """The number of messages that were not handled."""
        return len(self.sent.keys() - self.first_handled.keys())

    @property
    def twice(self) -> int:
        """The number of events that were handled more than once."""
        return len(self.handled) - len(self.first_handled)

    @property
    def resent(self) -> int:
        """The number of attempts that were not the first one of their message."""
        return sum(each["attempt"] > 1 for each in self.deliveries)

    @property
    def out_of_order(self) -> int:
        """The number of events that were first handled before an earlier one of their conversation."""
        last, numbers = dict[str, int](), {message: number for number, message in enumerate(self.sent)}
        wrong = 0
        for message in self.first_handled:
            if message in numbers:
                key = self.sent[message]
                wrong += numbers[message] < last.get(key, -1)
                last[key] = max(last.get(key, -1), numbers[message])
        return wrong

    def mismatches(self) -> Iterator[str]:
        """Yield a line for each figure that is not as expected."""
        if self.lost:
            yield f"{self.lost:,} callbacks were not handled"
        unanswered = len(self.sent) - len(self.accepted)
        if unanswered:
            yield f"{unanswered:,} callbacks were never answered with 200"
        unknown = len(self.first_handled.keys() - self.sent.keys())
        if unknown:
            yield f"{unknown:,} events were handled that the platform did not send"
        if self.out_of_order:
            yield f"{self.out_of_order:,} events were handled before an earlier one of their conversation"
        expected = {"waiting": 0, "done": len(self.sent), "dead": 0, "quarantined": 0}
        for name, number in expected.items():
            if self.counts.get(name) != number:
                yield f"the inbox has {self.counts.get(name, 0):,} events that are {name}, expected {number:,}"


@define(eq=False, kw_only=True)
class Figures:
    """All figures of the demo, which ran for ``seconds``."""

    invitations: Invitations
    callbacks: Callbacks
    deaths: list[Death]
    began: float
    seconds: float
    broken: list[str] = field(factory=list[str])

    def mismatches(self) -> list[str]:
        """Return a line for each figure that is not as expected; none if all agree."""
        return [*self.broken, *self.invitations.mismatches(), *self.callbacks.mismatches()]

    def pause(self, death: Death) -> float:
        """Return the pause that a death caused, in seconds.

        For a handler worker and a server: the longest time that an event waited for its handler. For a receiver: the longest
        time in which no callback was accepted. For the others: the longest time in which the platform saw no request.
        """
        if death.who in {"handler worker", "server"}:
            handled = self.callbacks.first_handled
            waits = [
                handled[message] - moment
                for message, moment in self.callbacks.accepted.items()
                if message in handled and handled[message] > death.at and moment < death.until
            ]
            return max(waits, default=0.0)
        if death.who == "receiver":
            return _longest_gap(sorted(self.callbacks.accepted.values()), death)
        return _longest_gap([each["at"] for each in self.invitations.requests], death)

    def effect(self, death: Death) -> str:
        """Return in words how others did the work of a process that was killed."""
        if death.who == "handler worker":
            return f"{_number(self._taken_over(death), 'conversation')} taken over"
        if death.who == "receiver":
            meanwhile = sum(death.at < moment <= death.back for moment in self.callbacks.accepted.values())
            return f"{_number(meanwhile, 'callback')} to the other one"
        if death.who == "server":
            return death.more
        meanwhile = sum(death.at < each["at"] <= death.back for each in self.invitations.requests)
        return f"{_number(meanwhile, 'request')} meanwhile"

    def _taken_over(self, death: Death) -> int:
        """Return the number of conversations of a worker of which others handled events after its death."""
        sent, before, after = self.callbacks.sent, set[str](), set[str]()
        for each in self.callbacks.handled:
            key = sent.get(each["id"], "")
            if each["at"] <= death.at and each["process"] == death.process:
                before.add(key)
            elif death.at < each["at"] <= death.until and each["process"] != death.process:
                after.add(key)
        return len(before & after)


def _longest_gap(moments: list[float], death: Death) -> float:
    """Return the longest time between two moments, from a death to the last moment of its part, or to the one after."""
    first, end = bisect_right(moments, death.at), bisect_right(moments, death.until)
    seen = moments[first : max(end, first + 1)]
    return max((later - earlier for earlier, later in pairwise([death.at, *seen])), default=0.0)


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
