"""The delivery log: each attempt to deliver a copy, with its result."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping  # noqa: TC003  # attrs resolves it
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from attrs import define, field, frozen

from rbim._support import json
from rbim._support.json_values import ToDict
from rbim.emulator.request_log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OK", "DeliveryAttempt", "DeliveryLog"]

OK = 200
"""The one status that counts as received (Delivery rules, 4)."""


@frozen(kw_only=True)
class DeliveryAttempt(ToDict):
    """One attempt. ``at`` is the second of the emulator's clock when it began, ``took`` its duration in seconds.

    ``key`` is the conversation. ``number`` counts messages and ``attempt`` the attempts to deliver this one, both from 1;
    ``duplicate`` counts the duplicates of this attempt by a fault (0: the attempt itself). ``status`` is the HTTP status of
    the answer, None if there was none; ``reason`` is why the attempt failed, empty if it did not. ``trouble`` names the
    faults that were injected. ``headers`` and ``body`` are those that were sent.
    """

    at: float
    took: float
    key: str
    number: int
    message_id: str
    attempt: int
    duplicate: int
    status: int | None
    reason: str
    trouble: tuple[str, ...]
    headers: Mapping[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the receiver accepted it: HTTP 200, in time."""
        return self.status == OK

    @property
    def document(self) -> dict[str, Any]:
        """The body as JSON; empty if it is not a JSON object."""
        try:
            document = json.loads(self.body)
        except json.NotJson:
            return {}
        return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


_ORDER = attrgetter("at", "number", "attempt", "duplicate")


@define
class DeliveryLog(Log[DeliveryAttempt]):
    """The attempts so far. Iterates over all of them, in the order in which they began.

    Attempts that began at the same time, as on an emulated clock, are in the order of their messages. ``watch`` is called
    for each attempt when it has its result; it must not wait.
    """

    watch: Callable[[DeliveryAttempt], None] | None = field(default=None, eq=False)

    def note(self, delivery: DeliveryAttempt) -> None:
        """Record one attempt."""
        insort(self.records, delivery, key=_ORDER)
        if self.watch is not None:
            self.watch(delivery)
        self._trim()
