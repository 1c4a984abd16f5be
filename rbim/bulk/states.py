"""States of an account and of a request in a job, as numbers in its journal."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["DONE_WORDS", "AccountState", "RequestState"]


class AccountState(IntEnum):
    """State of an account."""

    WAITING = 0
    """To be sent. All states to be sent are 0 or below."""

    DONE = 1
    """The platform confirmed it: invited, removed, joined."""

    REFUSED = 2
    """An answer lists it among those that failed."""

    FAILED = 3
    """Its request was refused as a whole, or could not be sent, for good."""

    UNKNOWN = 4
    """The platform may have acted."""

    AGAIN = -1
    """Waiting after the state UNKNOWN: sending it is a resend."""


class RequestState(IntEnum):
    """State of a request. A request is one sending."""

    OPEN = 0
    """It has left, and the run ended before its outcome was recorded."""

    ANSWERED = 1
    REFUSED = 2
    """The platform did nothing."""

    NOT_SENT = 3
    UNKNOWN = 4
    PLANNED = 5
    """The intent is recorded. It has left if it is marked (:mod:`rbim.bulk.journal.marks`)."""


DONE_WORDS = {"InviteJoinGroup": "invited", "DeleteGroupMember": "removed", "JoinGroup": "joined", "LogoutGroup": "left"}
"""The word for a done account, by operation."""
