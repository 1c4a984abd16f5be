"""The conformance suite: checks that a transport keeps its contract, against scripted servers of plain sockets.

To test your own transport, with pytest and anyio (TLS cases need ``trustme``)::

    from rbim.testing.conformance import CASES, Conformance

    @pytest.mark.parametrize("case", CASES, ids=str)
    async def test_conformance(case):
        await case(Conformance(MyTransport, proxy=True))

``await failures(MyTransport, at_once=16)`` is faster, needs no pytest, and returns the failed cases. The contract is that of
:class:`rbim.http.Transport`. Where it leaves something open, the suite requires:

- A kept connection that was closed or received data while idle is not used again, for any request. If a connection ends
  after it got a request, the request is Unanswered, and it is sent only once.
- If a response has more bytes behind it in the same read, the result is this response or Unanswered; the other bytes are
  never the response to another request.
- A compressed body is returned as it came. A folded header is Unanswered or one value. An endless head, or endless trailers,
  are Unanswered before the server has sent 32 MiB; an endless body is AnswerTooLarge before it has sent 64 MiB.
- A time-out never ends an attempt early, nor more than 2 s late. It may be infinite; one of 0 or less is NotSent.
- A transport looks whether the server has closed a kept connection immediately before it writes a request (unless
  ``looks=False``), and does not use a connection again if anything came behind a response, also over TLS.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.testing.conformance.case import Case as Case, Conformance as Conformance, NonConforming as NonConforming
    from rbim.testing.conformance.suite import CASES as CASES, SLOW_CASES as SLOW_CASES, failures as failures
else:
    __getattr__, __dir__ = lazy_names(__name__)
