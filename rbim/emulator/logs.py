"""The logs of the emulator: requests, each one decoded, and attempts to deliver copies, in order and with their results."""

from __future__ import annotations

import secrets
from bisect import insort
from collections import Counter
from collections.abc import Mapping  # noqa: TC003  # attrs resolves it
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from attrs import define, field, frozen

from rbim._support import json
from rbim._support.json_values import ToDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.operations.base import Operation

__all__ = ["OK", "DeliveryAttempt", "DeliveryLog", "Log", "RecordedRequest", "RequestLog"]

O = TypeVar("O", bound="Operation[Any]")  # noqa: E741  # an operation
R = TypeVar("R", bound=ToDict)

OK = 200
"""The one status that counts as received (Delivery rules, 4)."""


@define
class Log(Generic[R]):
    """Records in order. With a ``limit`` about that many of the latest are kept, for a server that runs for a long time."""

    records: list[R] = field(factory=list[R])
    limit: int | None = None

    def __iter__(self) -> Iterator[R]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def clear(self) -> None:
        """Forget all records."""
        self.records.clear()

    def trace(self) -> bytes:
        """Return the whole log as JSON lines: byte for byte the same for the same events, seed and clock."""
        return b"".join(json.dumps(record.to_dict()) + b"\n" for record in self.records)

    def _trim(self) -> bool:
        """Forget the oldest records if there are more than the limit, and return whether there were."""
        if self.limit is None or len(self.records) <= self.limit:
            return False
        del self.records[: self.limit // 10 + 1]
        return True


@frozen(kw_only=True)
class RecordedRequest(ToDict):
    """One request. ``at`` counts seconds of the emulator's clock.

    ``number`` counts requests from 1. ``operation`` is None if the request could not be read; ``attempt`` counts the equal
    operations so far (from 1). ``code`` is the code of the answer, None if a fault prevented one; ``reason`` is why it is
    not that of a success; ``effect`` is whether the operation took effect; ``trouble`` names the faults that were injected.
    """

    number: int
    at: float
    path: str
    operation: Operation[Any] | None
    attempt: int
    code: str | None
    effect: bool
    trouble: tuple[str, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values: of the operation its name, and its fields as ``values``."""
        found = super().to_dict()
        values = found.pop("operation")
        return found if self.operation is None else found | {"operation": self.operation.spec.name, "values": values}


@define
class RequestLog(Log[RecordedRequest]):
    """The requests so far. Iterates over all of them; :meth:`of` returns the operations of one class."""

    count: int = field(default=0, init=False)
    """The number of all requests so far, also of those that are not kept."""
    epoch: str = field(factory=lambda: secrets.token_hex(4), init=False, eq=False, repr=False)
    """Another text for each log, and after it was cleared: the numbers of requests begin anew."""
    _seen: Counter[Operation[Any]] = field(factory=Counter["Operation[Any]"], init=False)

    def of(self, kind: type[O]) -> list[O]:
        """Return the operations of this class, in the order of their arrival.

        They are plain values in a list, so that a failed assertion in pytest shows which fields differ.
        """
        return [record.operation for record in self.records if isinstance(record.operation, kind)]

    def clear(self) -> None:
        """Forget all requests, and restart the counts."""
        super().clear()
        self._seen.clear()
        self.count = 0
        self.epoch = secrets.token_hex(4)

    def note(  # noqa: PLR0913  # the facts of a request
        self,
        op: Operation[Any] | None,
        *,
        at: float,
        path: str,
        code: str | None,
        effect: bool,
        reason: str = "",
        trouble: tuple[str, ...] = (),
    ) -> None:
        """Record one request; for its facts see :class:`RecordedRequest`."""
        attempt = 1
        if op is not None:
            attempt = self._seen[op] = self._seen[op] + 1
        self.count += 1
        self.records.append(
            RecordedRequest(
                number=self.count,
                at=at,
                path=path,
                operation=op,
                attempt=attempt,
                code=code,
                effect=effect,
                trouble=trouble,
                reason=reason,
            )
        )
        if self._trim():
            self._seen = Counter(record.operation for record in self.records if record.operation is not None)


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
