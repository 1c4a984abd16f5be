"""The states of an account and of a request in a job, as numbers in its journal."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["DONE_WORDS", "AccountState", "RequestState"]


class AccountState(IntEnum):
    """What is known of an account."""

    WAITING = 0
    """What is to be sent is 0 or below."""

    DONE = 1
    """The platform answered that it is so: invited, removed, joined."""

    REFUSED = 2
    """An answer lists it among those that failed."""

    FAILED = 3
    """Its request was refused as a whole, or was never sent, for good."""

    UNKNOWN = 4
    """The platform may have acted."""

    AGAIN = -1
    """Waiting, and it was unknown before: sending it sends it again."""


class RequestState(IntEnum):
    """What is known of a request, which is one sending."""

    OPEN = 0
    """It may be on its way: the intent is recorded, and no outcome."""

    ANSWERED = 1
    REFUSED = 2
    """Nothing was done."""

    NOT_SENT = 3
    UNKNOWN = 4
    PLANNED = 5
    """One half of a request that was refused; not sent so far."""


DONE_WORDS = {"InviteJoinGroup": "invited", "DeleteGroupMember": "removed", "JoinGroup": "joined", "LogoutGroup": "left"}
"""What the operations call an account that is done."""
