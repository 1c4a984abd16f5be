"""The latest exchanges over HTTP, as they were: what was sent and what was answered, by reference and bounded.

A server that shows requests keeps them (:class:`~rbim.emulator.asgi.EmulatorApp`); the emulator by itself does not. The
price is what stays in memory, and out of the processor's cache: so few are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from rbim.http import Response

if TYPE_CHECKING:
    from rbim._support.asgi import Scope
    from rbim.emulator.request_log import RecordedRequest

__all__ = ["KEPT", "MAX_BODY", "Exchange", "ExchangeLog"]

KEPT = 256
"""Exchanges that are kept."""

MAX_BODY = 16 * 1024
"""Bytes of a body that are kept. In all at most 8 MB, because a request and its answer have one each."""


@define(eq=False)
class Exchange:
    """One request as it arrived, and its answer. ``took`` is in seconds of the emulator's clock, None before the answer.

    ``response`` is None if the emulator failed to answer. Both bodies are without the end of long ones; ``size`` and
    ``answer_size`` are the lengths of the whole.
    """

    record: RecordedRequest
    method: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    size: int
    response: Response | None
    answer_size: int
    took: float | None = None


class ExchangeLog:
    """The last :data:`KEPT` exchanges, by the numbers of their requests."""

    def __init__(self) -> None:
        self._slots: list[Exchange | None] = [None] * KEPT

    def begin(self, record: RecordedRequest, scope: Scope, body: bytes, response: Response | None) -> Exchange:
        """Keep an exchange in the place of an old one; the caller notes ``took`` at its end."""
        size, answer_size = len(body), 0 if response is None else len(response.body)
        if response is not None and answer_size > MAX_BODY:
            response = Response(response.status, response.headers, response.body[:MAX_BODY])
        method, query, headers = scope["method"], scope["query_string"], scope["headers"]
        kept = Exchange(record, method, query, headers, body[:MAX_BODY], size, response, answer_size)
        self._slots[record.number % KEPT] = kept
        return kept

    def of(self, record: RecordedRequest) -> Exchange | None:
        """Return the exchange of a request, or None if it is not kept."""
        kept = self._slots[record.number % KEPT]
        return kept if kept is not None and kept.record is record else None
