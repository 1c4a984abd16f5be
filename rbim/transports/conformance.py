"""The conformance suite: what every transport must do, tried against scripted servers of plain sockets.

For a transport of one's own, with pytest and anyio (TLS cases need ``trustme``)::

    from rbim.transports.conformance import CASES, Conformance

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_conformance(case):
        await case(Conformance(MyTransport, proxy=True))

Without pytest, ``await failures(MyTransport)`` tells which cases fail. The contract is that of
:class:`rbim.message.Transport`; where it leaves something open, the suite asks for this:

- A kept connection that was closed, or on which something came, while it was idle is not used again, whatever the request;
  one that ends after it got a request is Unanswered, and the request is sent once.
- An answer with more behind it in the same read is this answer or Unanswered; what was behind it is nobody's.
- A compressed body is given as it came. A folded header is Unanswered or one value. A head, or trailers, without end are
  Unanswered before 32 MiB have left the server; a body without end is AnswerTooLarge before 64 MiB have.
- A time-out may not end an attempt early, nor more than 2 s late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import SkipTest

from rbim.transports import (
    conformance_answers,
    conformance_connections,
    conformance_crowd,
    conformance_failures,
    conformance_requests,
    conformance_tls,
)
from rbim.transports.conformance_base import Case, Conformance, NonConforming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rbim.message import Transport

__all__ = ["CASES", "SLOW_CASES", "Case", "Conformance", "NonConforming", "failures"]

CASES: tuple[Case, ...] = (
    *conformance_requests.CASES,
    *conformance_answers.CASES,
    *conformance_connections.CASES,
    *conformance_failures.CASES,
    *conformance_tls.CASES,
    *conformance_crowd.CASES,
)
"""What every transport must pass, in a few seconds."""

SLOW_CASES: tuple[Case, ...] = (*conformance_crowd.SLOW_CASES,)
"""The long forms, in minutes."""


async def failures(
    subject: Conformance | Callable[..., Transport], /, cases: Iterable[Case] = CASES
) -> dict[str, NonConforming]:
    """Run cases one after the other; return why those fail that do, by their names. Skipped ones count as passed."""
    failing: dict[str, NonConforming] = {}
    for case in cases:
        try:
            await case(subject)
        except SkipTest:
            continue
        except NonConforming as failure:
            failing[case.name] = failure
    return failing
