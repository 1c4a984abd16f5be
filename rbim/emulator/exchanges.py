"""The latest exchanges over HTTP, as they were: what was sent and what was answered, by reference and bounded.

A server that shows requests keeps them (:class:`~rbim.emulator.asgi.EmulatorApp`); the emulator by itself does not. What is
shown of one is computed when it is shown. The price is what stays in memory, and out of the processor's cache: so few are
kept until someone looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from rbim.http import Response

if TYPE_CHECKING:
    from rbim._support.asgi import Scope
    from rbim.emulator.request_log import RecordedRequest

__all__ = ["FEW", "KEPT", "LONGEST", "Content", "Exchange", "ExchangeLog"]

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
