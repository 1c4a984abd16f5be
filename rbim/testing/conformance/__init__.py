"""The conformance suite: what every transport must do, tried against scripted servers of plain sockets.

For a transport of one's own, with pytest and anyio (TLS cases need ``trustme``)::

    from rbim.testing.conformance import CASES, Conformance

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_conformance(case):
        await case(Conformance(MyTransport, proxy=True))

``await failures(MyTransport, at_once=16)`` is quicker, needs no pytest, and tells which cases fail. The contract is that of
:class:`rbim.http.Transport`; where it leaves something open, the suite asks for this:

- A kept connection that was closed, or on which something came, while it was idle is not used again, whatever the request;
  one that ends after it got a request is Unanswered, and the request is sent once.
- An answer with more behind it in the same read is this answer or Unanswered; what was behind it is nobody's.
- A compressed body is given as it came. A folded header is Unanswered or one value. A head, or trailers, without end are
  Unanswered before 32 MiB have left the server; a body without end is AnswerTooLarge before 64 MiB have.
- A time-out may not end an attempt early, nor more than 2 s late.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.testing.conformance.case import Case as Case, Conformance as Conformance, NonConforming as NonConforming
    from rbim.testing.conformance.suite import CASES as CASES, SLOW_CASES as SLOW_CASES, failures as failures
else:
    __getattr__, __dir__ = lazy_names(__name__)
