"""What became of each attempt to copy a message: the delivery log."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from attrs import asdict, define, field, frozen

from rbim._support import json as jsontext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["OK", "DeliveryAttempt", "DeliveryLog"]

OK = 200
"""The one status that counts as received (Delivery rules, 4)."""


@frozen(kw_only=True)
class DeliveryAttempt:
    """One attempt. ``at`` counts seconds of the emulator's clock when it began, ``took`` how many passed until it ended.

    ``key`` is the conversation, ``number`` counts messages and ``attempt`` the attempts to deliver this one, both from 1;
    ``duplicate`` counts those that a fault made of this very attempt (0: none of them). ``status`` is the HTTP status of the
    answer, None where there was none; ``reason`` says why the attempt failed, and is empty where it did not. ``trouble``
    names the faults that it met. ``headers`` and ``body`` are what was sent.
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
        """Whether the receiver took it: HTTP 200, within the time."""
        return self.status == OK

    @property
    def document(self) -> dict[str, Any]:
        """The body, read; empty where it is no JSON object."""
        try:
            document = jsontext.loads(self.body)
        except jsontext.NotJson:
            return {}
        return cast("dict[str, Any]", document) if isinstance(document, dict) else {}

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, for ``json.dumps``; what is no UTF-8 in the body is escaped."""
        plain = asdict(self)
        return plain | {"trouble": list(self.trouble), "body": self.body.decode(errors="backslashreplace")}


_ORDER = attrgetter("at", "number", "attempt", "duplicate")


@define
class DeliveryLog:
    """The attempts so far. It iterates over all of them, in the order in which they began.

    Those that began at the very same time, as they do on an emulated clock, are in the order of their messages. With a
    ``limit`` it keeps about so many of the latest, for a server that runs for long.
    """

    records: list[DeliveryAttempt] = field(factory=list[DeliveryAttempt])
    limit: int | None = None

    def __iter__(self) -> Iterator[DeliveryAttempt]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def of(  # noqa: PLR0913  # what can be asked for, each by keyword
        self,
        *,
        message_id: str | None = None,
        key: str | None = None,
        conv_type: str | None = None,
        msg_type: str | None = None,
        attempt: int | None = None,
        ok: bool | None = None,
    ) -> list[DeliveryAttempt]:
        """Return the attempts that are all of what is asked for, in order. ``key`` is a group's id, or ``1001|1002``."""
        wanted = {"message_id": message_id, "key": key, "attempt": attempt, "ok": ok}
        written = {"convType": conv_type, "msgType": msg_type}
        return [
            each
            for each in self.records
            if all(value is None or getattr(each, name) == value for name, value in wanted.items())
            and all(value is None or each.document.get(name) == value for name, value in written.items())
        ]

    def clear(self) -> None:
        """Forget everything."""
        self.records.clear()

    def note(self, delivery: DeliveryAttempt) -> None:
        """Write down one attempt."""
        insort(self.records, delivery, key=_ORDER)
        if self.limit is not None and len(self.records) > self.limit:
            del self.records[: self.limit // 10 + 1]

    def trace(self) -> bytes:
        """Return the whole log as JSON lines: the same for the same messages, answers, seed and clock, to the byte."""
        return b"".join(jsontext.dumps(record.as_dict()) + b"\n" for record in self.records)
