"""The log of requests to the emulator: each one decoded, in order, with its result."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, TypeVar, cast

import attrs
from attrs import define, field, frozen

from rbim._support import json
from rbim.http import Response
from rbim.operations.base import Operation, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from rbim._support.asgi import Scope

__all__ = ["FEW", "KEPT", "LONGEST", "Content", "Exchange", "ExchangeLog", "RecordedRequest", "RequestFacts", "RequestLog"]

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


class RequestFacts(TypedDict):
    """The fields of a :class:`RecordedRequest` that :meth:`RequestLog.note` takes."""

    at: float
    path: str
    code: str | None
    effect: bool
    reason: NotRequired[str]
    trouble: NotRequired[tuple[str, ...]]


@define
class RequestLog:
    """The requests so far. Iterates over all of them; :meth:`of` returns the operations of one class.

    With a ``limit`` it keeps about that many of the latest requests, for a server that runs for a long time.
    """

    records: list[RecordedRequest] = field(factory=list[RecordedRequest])
    limit: int | None = None
    _count: int = 0
    _seen: Counter[Operation[Any]] = field(factory=Counter["Operation[Any]"])
    _clears: int = field(default=0, init=False, eq=False, repr=False)

    def __iter__(self) -> Iterator[RecordedRequest]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def count(self) -> int:
        """The number of all requests so far, also of those that are not kept."""
        return self._count

    @property
    def clears(self) -> int:
        """How often the log was cleared."""
        return self._clears

    def of(self, kind: type[O]) -> list[O]:
        """Return the operations of this class, in the order of their arrival.

        They are plain values in a list, so that a failed assertion in pytest shows which fields differ.
        """
        return [record.operation for record in self.records if isinstance(record.operation, kind)]

    def clear(self) -> None:
        """Forget all requests, and restart the counts."""
        self.records.clear()
        self._seen.clear()
        self._count = 0
        self._clears += 1

    def note(self, op: Operation[Any] | None, **facts: Unpack[RequestFacts]) -> None:
        """Record one request; for its facts see :class:`RecordedRequest`."""
        attempt = 1
        if op is not None:
            attempt = self._seen[op] = self._seen[op] + 1
        self._count += 1
        self.records.append(RecordedRequest(number=self._count, operation=op, attempt=attempt, **facts))
        if self.limit is not None and len(self.records) > self.limit:
            del self.records[: self.limit // 10 + 1]
            self._seen = Counter(record.operation for record in self.records if record.operation is not None)

    def trace(self) -> bytes:
        """Return the whole log as JSON lines: byte for byte the same for the same requests, seed and clock."""
        return b"".join(json.dumps(_plain(record)) + b"\n" for record in self.records)


def _plain(record: RecordedRequest) -> dict[str, Any]:
    plain = {a.name: getattr(record, a.name) for a in attrs.fields(RecordedRequest) if a.name != "operation"}
    op = record.operation
    if op is not None:
        values = {a.name: getattr(op, a.name) for a in fields_of(type(op))}
        plain["operation"] = op.spec.name
        plain["values"] = {name: _text(value) for name, value in values.items()}
    return plain


def _text(value: object) -> object:
    if isinstance(value, tuple):
        return [_text(each) for each in cast("tuple[object, ...]", value)]
    return value if isinstance(value, (str, int, type(None))) else str(value)


# The latest exchanges over HTTP, as they were: what was sent and what was answered, by reference and bounded.
#
# A server that shows requests keeps them (EmulatorApp); the emulator by itself does not. What is shown of one is computed
# when it is shown. The price is what stays in memory, and out of the processor's cache: so few are kept until someone looks.

FEW = 64
"""Exchanges that are kept before anyone has looked."""

KEPT = 512
"""Exchanges that are kept from then on."""

LONGEST = 16 * 1024
"""Bytes of a body that are kept. In all at most 16 MB, because a request and its answer have one each."""

Content = tuple[bytes, int]
"""A body, or the beginning of a long one, and the length of the whole."""

_RESPONSE, _TOOK = 6, 8


@frozen
class Exchange:
    """One request as it arrived, and its answer. ``took`` is in seconds of the emulator's clock, None before the answer.

    ``response``, without the end of a long body, and ``answer`` are None if the emulator failed to answer.
    """

    record: RecordedRequest
    method: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: Content
    response: Response | None
    answer: Content | None
    took: float | None


class ExchangeLog:
    """The last :data:`FEW` exchanges, or the last :data:`KEPT` after :meth:`expand`, by the numbers of their requests."""

    def __init__(self) -> None:
        self._slots: list[list[Any] | None] = [None] * FEW
        self._kept = FEW

    def expand(self) -> None:
        """Keep more exchanges from now on, because someone looks at them."""
        if self._kept == FEW:
            slots: list[list[Any] | None] = [None] * KEPT
            for each in self._slots:
                if each is not None:
                    slots[each[0].number % KEPT] = each
            self._slots, self._kept = slots, KEPT

    def begin(self, record: RecordedRequest, scope: Scope, body: bytes, response: Response | None) -> list[Any]:
        """Keep an exchange in the place of an old one; return what :meth:`end` takes."""
        size, answer_size = len(body), 0 if response is None else len(response.body)
        if size > LONGEST:
            body = body[:LONGEST]
        if response is not None and answer_size > LONGEST:
            response = Response(response.status, response.headers, response.body[:LONGEST])
        method, query, headers = scope["method"], scope["query_string"], scope["headers"]
        kept = [record, method, query, headers, body, size, response, answer_size, None]
        self._slots[record.number % self._kept] = kept
        return kept

    @staticmethod
    def end(kept: list[Any], took: float) -> None:
        """Note how long the answer took."""
        kept[_TOOK] = took

    def outcome(self, record: RecordedRequest) -> tuple[float | None, int | None] | None:
        """Return how long the answer to a request took, and its status; None if the exchange is not kept."""
        kept = self._slots[record.number % self._kept]
        if kept is None or kept[0] is not record:
            return None
        return kept[_TOOK], None if kept[_RESPONSE] is None else kept[_RESPONSE].status

    def of(self, record: RecordedRequest) -> Exchange | None:
        """Return the exchange of a request, or None if it is not kept."""
        kept = self._slots[record.number % self._kept]
        if kept is None or kept[0] is not record:
            return None
        _, method, query, headers, body, size, response, answer_size, took = kept
        answer = None if response is None else (response.body, answer_size)
        return Exchange(record, method, query, headers, (body, size), response, answer, took)
