"""Status codes: the error that each one becomes, and the grade of the evidence for it."""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from attrs import frozen

from rbim.errors import (
    AlreadyMember,
    ApiError,
    AuthenticationError,
    NotFound,
    NotMember,
    ServerTrouble,
    Throttled,
    TimestampExpired,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CODES", "FORBIDDEN", "FULL", "MALFORMED", "UNKNOWN_OPERATION", "Code", "Grade"]

# The emulator's own codes, where no public material shows the platform's.
MALFORMED = "900400"
FORBIDDEN = "900403"
FULL = "900409"
UNKNOWN_OPERATION = "900501"


class Grade(StrEnum):
    """The evidence grade of a fact that the interface description does not state clearly."""

    STATED = "stated"
    """The interface description states both, or mentions it in passing."""

    OFFICIAL = "O"
    """An official page of the platform."""

    MULTIPLE = "M"
    """Two or more independent public clients."""

    SINGLE = "S"
    """One public client."""

    GUESS = "G"
    """A reasoned guess."""

    EMULATOR = "E"
    """Invented for the emulator; the platform's value is not known."""


@frozen(kw_only=True)
class Code:
    """The meaning of a status code: the error it becomes, the evidence grade (default: a guess), and a note on the evidence.

    ``before_effect`` is True if the platform is known to return the code before it does anything: then even an operation
    that must never be repeated may be sent again.
    """

    error: type[ApiError]
    grade: Grade = Grade.GUESS
    note: str = ""
    before_effect: bool = False


def _codes() -> Iterator[tuple[str, Code]]:
    def rows(error: type[ApiError], grade: Grade, note: str, *codes: int) -> Iterator[tuple[str, Code]]:
        for code in codes:
            yield f"{code:06d}", Code(error=error, grade=grade, note=note)

    yield from rows(AuthenticationError, Grade.SINGLE, "signature check failed", 111109)
    yield from rows(
        AuthenticationError,
        Grade.SINGLE,
        "authorization malformed or refused (SMS gateway)",
        *range(161100, 161106),
        161107,
        161108,
    )
    yield from rows(TimestampExpired, Grade.SINGLE, "timestamp expired (SMS gateway)", 161106)
    yield from rows(Throttled, Grade.SINGLE, "channel busy (SMS gateway)", *range(160001, 160011))
    yield from rows(Throttled, Grade.SINGLE, "speed limit (SMS gateway)", 160016)
    yield from rows(Throttled, Grade.SINGLE, "concurrency exceeded (SMS gateway)", 161006)
    yield from rows(Throttled, Grade.SINGLE, "too many concurrent queries (SMS gateway)", 112354)
    yield from rows(ServerTrouble, Grade.GUESS, "server trouble (official for the device SDK)", 529999, 559999)
    yield from rows(NotMember, Grade.GUESS, "not in the group (official for the device SDK)", 560072)
    yield from rows(AlreadyMember, Grade.GUESS, "already in the group (official for the device SDK)", 590017)
    yield from rows(ApiError, Grade.EMULATOR, "a request that the emulator cannot read", int(MALFORMED))
    yield from rows(ApiError, Grade.EMULATOR, "not allowed to this account", int(FORBIDDEN))
    yield from rows(NotFound, Grade.EMULATOR, "no such group", 900404)
    yield from rows(ApiError, Grade.EMULATOR, "the group is full", int(FULL))
    yield from rows(ApiError, Grade.EMULATOR, "an operation that the emulator does not have", int(UNKNOWN_OPERATION))


CODES: Mapping[str, Code] = MappingProxyType(dict(_codes()))
"""The codes seen in public material. None is documented for these operations: replace or extend them as you learn more."""
