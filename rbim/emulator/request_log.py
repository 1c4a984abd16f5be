"""The log of requests to the emulator: each one decoded, in order, with its result."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import define, field, frozen

from rbim._support import json
from rbim._support.json_values import json_values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rbim.operations.base import Operation

__all__ = ["RecordedRequest", "RequestLog"]

O = TypeVar("O", bound="Operation[Any]")  # noqa: E741  # an operation


@frozen(kw_only=True)
class RecordedRequest:
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


@define
class RequestLog:
    """The requests so far. Iterates over all of them; :meth:`of` returns the operations of one class.

    With a ``limit`` it keeps about that many of the latest requests, for a server that runs for a long time.
    """

    records: list[RecordedRequest] = field(factory=list[RecordedRequest])
    limit: int | None = None
    count: int = field(default=0, init=False)
    """The number of all requests so far, also of those that are not kept."""
    clears: int = field(default=0, init=False, eq=False, repr=False)
    """How often the log was cleared."""
    _seen: Counter[Operation[Any]] = field(factory=Counter["Operation[Any]"], init=False)

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def of(self, kind: type[O]) -> list[O]:
        """Return the operations of this class, in the order of their arrival.

        They are plain values in a list, so that a failed assertion in pytest shows which fields differ.
        """
        return [record.operation for record in self.records if isinstance(record.operation, kind)]

    def clear(self) -> None:
        """Forget all requests, and restart the counts."""
        self.records.clear()
        self._seen.clear()
        self.count = 0
        self.clears += 1

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
        if self.limit is not None and len(self.records) > self.limit:
            del self.records[: self.limit // 10 + 1]
            self._seen = Counter(record.operation for record in self.records if record.operation is not None)

    def trace(self) -> bytes:
        """Return the whole log as JSON lines: byte for byte the same for the same requests, seed and clock."""
        lines: list[bytes] = []
        for record in self.records:
            plain: dict[str, Any] = json_values(record)
            values = plain.pop("operation")
            if record.operation is not None:
                plain |= {"operation": record.operation.spec.name, "values": values}
            lines.append(json.dumps(plain) + b"\n")
        return b"".join(lines)
