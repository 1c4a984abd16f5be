"""The documented rule: from what a client can know of an attempt to the error, the outcome and what is repeated.

It follows the sentences of docs/errors.md, docs/errors.md and docs/transports.md, and uses nothing of the client: neither
its classes nor its tables of codes and statuses.
"""

from attrs import frozen

ALL = ("safe", "idempotent", "never")
HARMLESS = ("safe", "idempotent")

OF_A_CODE = {
    "111109": "AuthenticationError",
    "161106": "TimestampExpired",
    "160016": "Throttled",
    "529999": "ServerTrouble",
    "560072": "NotMember",
    "590017": "AlreadyMember",
    "900404": "NotFound",
}


@frozen(kw_only=True)
class Known:
    """What a client can know of an attempt.

    ``left``: a byte of the request may have left for the platform. ``status``: of an answer that came whole. ``document``:
    its body is a document that can be read, ``page``: it is one of something in between. ``code``: the code in it.
    ``too_large``: its body is over the limit.
    ``ended_by``: "deadline" or "cancellation", if the caller ended it. ``retry_after``: seconds.
    """

    left: bool = True
    status: int | None = None
    document: bool = False
    page: bool = False
    code: str | None = None
    other_code: str | None = None
    too_large: bool = False
    ended_by: str = ""
    retry_after: int | None = None


@frozen(kw_only=True)
class Told:
    """What the caller is told: the class of the error ("" for success), the outcome, and the kinds that are sent again."""

    error: str = ""
    outcome: str = ""
    again: tuple[str, ...] = ()


def told(known):
    if known.ended_by == "cancellation":
        return Told(error="the cancellation", outcome="unknown")  # the outcome that observers get
    error, outcome = _attempt(known)
    if known.ended_by == "deadline":
        return Told(error="DeadlineExceeded", outcome=outcome)
    return Told(error=error, outcome=outcome, again=_again(known, error, outcome))


def _attempt(known):
    if not known.left:
        return "NotSent", "not sent"
    if known.too_large:
        return "AnswerTooLarge", "unknown"
    if known.status is None:
        return "Unanswered", "unknown"
    return _answer(known, known.status)


def _answer(known, status):
    """Where the status and the code of an answer disagree, the less certain outcome holds."""
    uncertain = status >= 500 or status == 408
    if not known.document or known.code is None:
        if status == 429:
            return "Throttled", "refused"
        if known.page or not 200 <= status < 300:
            before = 300 <= status < 500 and status not in {403, 408, 451}
            return "IntermediaryError", "refused" if before else "unknown"
        return "ProtocolError", "unknown"
    if known.code == "000000":
        disagrees = known.other_code not in {None, "000000"} or status != 200
        return ("ProtocolError", "unknown") if disagrees else ("", "")
    error = "Throttled" if status == 429 else OF_A_CODE.get(known.code, "ApiError")
    return error, "unknown" if uncertain or OF_A_CODE.get(known.code) == "ServerTrouble" else "refused"


def _again(known, error, outcome):
    """The table of docs/errors.md. No code of these scenarios is known to come before any effect."""
    if outcome == "not sent":
        return ALL
    if outcome == "unknown":
        return HARMLESS
    if error == "Throttled":
        return ALL if known.status == 429 else HARMLESS
    return ALL if error == "TimestampExpired" else ()
