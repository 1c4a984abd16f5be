"""The latest exchanges over HTTP, as they were: what was sent and what was answered, by reference and bounded.

A server that shows requests keeps them (:class:`~rbim.emulator.asgi.EmulatorApp`); the emulator by itself does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rbim.emulator.request_log import RecordedRequest
    from rbim.http import Response

__all__ = ["KEPT", "LONGEST", "Exchange", "ExchangeLog"]

KEPT = 512
"""Exchanges that are kept."""

LONGEST = 16 * 1024
"""Bytes of a body that are kept. In all at most 16 MB, because a request and its answer have one each."""


class Exchange:
    """One request as it arrived, and its answer. ``took`` is in seconds of the emulator's clock, None before the answer.

    ``size`` and ``answer_size`` are the lengths of the whole bodies, of which ``body`` and ``answer`` are the beginnings.
    ``response`` is None if the emulator failed to answer.
    """

    __slots__ = ("answer", "answer_size", "body", "headers", "method", "query", "record", "response", "size", "took")

    def __init__(self, record: RecordedRequest, scope: Any, body: bytes, response: Response | None) -> None:
        self.record = record
        self.method: str = scope["method"]
        self.query: bytes = scope["query_string"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.size = len(body)
        self.body = body if self.size <= LONGEST else body[:LONGEST]
        self.response = response
        answer = b"" if response is None else response.body
        self.answer_size = len(answer)
        self.answer = answer if self.answer_size <= LONGEST else answer[:LONGEST]
        self.took: float | None = None


class ExchangeLog:
    """The last :data:`KEPT` exchanges, by the numbers of their requests."""

    def __init__(self) -> None:
        self._slots: list[Exchange | None] = [None] * KEPT

    def note(self, exchange: Exchange) -> None:
        """Keep an exchange, in the place of the one that came :data:`KEPT` requests before."""
        self._slots[exchange.record.number % KEPT] = exchange

    def of(self, record: RecordedRequest) -> Exchange | None:
        """Return the exchange of a request, or None if it is not kept."""
        found = self._slots[record.number % KEPT]
        return found if found is not None and found.record is record else None
