"""The conformance suite: what every transport must do, tried against scripted servers of plain sockets.

For a transport of one's own, with pytest and anyio (TLS cases need ``trustme``)::

    from rbim.transports.conformance import CASES, Conformance

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_conformance(case):
        await case(Conformance(MyTransport, proxy=True))

``await failures(MyTransport, at_once=16)`` is quicker, needs no pytest, and tells which cases fail. The contract is that of
:class:`rbim.Transport`; where it leaves something open, the suite asks for this:

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

from anyio import create_task_group

from rbim.testing.conformance import (
    answers as conformance_answers,
    concurrency as conformance_crowd,
    connections as conformance_connections,
    errors as conformance_failures,
    requests as conformance_requests,
    tls as conformance_tls,
)
from rbim.testing.conformance.case import Case, Conformance, NonConforming, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rbim.http import Transport

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
    subject: Conformance | Callable[..., Transport], /, cases: Iterable[Case] = CASES, *, at_once: int = 1
) -> dict[str, NonConforming]:
    """Run cases; return why those fail that do, by their names and in their order. Skipped ones count as passed.

    Up to ``at_once`` of them run side by side, but for those that have to run alone: most of what cases do is waiting.
    """
    wanted = [*cases]
    waiting = iter([case for case in wanted if not case.alone])
    failing: dict[str, NonConforming] = {}

    async def tries(those: Iterable[Case]) -> None:
        for case in those:
            try:
                await case(subject)
            except SkipTest:
                continue
            except NonConforming as failure:
                failing[case.name] = failure

    with environment({}):  # around them all: what each of them hides, another one would put back meanwhile
        async with create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(tries, waiting)
        await tries(case for case in wanted if case.alone)
    return {case.name: failing[case.name] for case in wanted if case.name in failing}
