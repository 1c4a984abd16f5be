"""The dialect: one frozen object with the choices of the interface description that a client or a receiver can notice.

Each field states the gap it settles, the evidence grade of its default and the possible values. Client, emulator and
receiver share one dialect, so that a test assumes the same as the client. The choices that only the emulator makes are
:class:`rbim.emulator.Rules`.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # its types are read
from datetime import timedelta, timezone, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from attrs import frozen

from rbim.choices import Choices, choice
from rbim.codes import CODES, Code, Grade
from rbim.errors import ApiError

__all__ = ["CHINA", "Character", "Dialect", "MembersShape", "OutOfTime", "TimeUnit", "client_document"]

CHINA = timezone(timedelta(hours=8), "UTC+08:00")
"""The platform's time zone (assumed: no page names one)."""


class MembersShape(StrEnum):
    """The JSON shape of ``members``."""

    PLAIN = "plain"
    """``["1001", "1002"]``"""

    NESTED = "nested"
    """``{"member": ["1001", "1002"]}``"""


class Character(StrEnum):
    """The unit in which lengths of texts are counted."""

    CODE_POINT = "code_point"
    """A code point of Unicode: an emoji is one."""

    UTF16_UNIT = "utf16_unit"
    """A unit of UTF-16, as Java and JavaScript count: an emoji is two."""

    def length(self, text: str) -> int:
        """Return the length of a text."""
        return len(text) if self is Character.CODE_POINT else len(text.encode("utf-16-le", "surrogatepass")) // 2


class TimeUnit(StrEnum):
    """The unit of ``msgTimestamp``."""

    MILLISECONDS = "milliseconds"
    """Milliseconds since 1970-01-01 00:00:00 UTC, as ``CurTime``."""

    SECONDS = "seconds"
    """Seconds since 1970-01-01 00:00:00 UTC."""


class OutOfTime(StrEnum):
    """The authentic deliveries that a receiver accepts although their ``CurTime`` is outside the limits."""

    REFUSED = "refused"
    """None."""

    RESENDS = "resends"
    """Those whose body has ``resendFlag`` 1."""

    ACCEPTED = "accepted"
    """All."""


ALREADY_SO = MappingProxyType(
    {
        "InviteJoinGroup": frozenset({"590017"}),
        "DeleteGroupMember": frozenset({"560072"}),
        "LogoutGroup": frozenset({"560072"}),
        "DeleteGroup": frozenset({"900404"}),
    }
)
RECEIVER = "receiver"


@frozen(kw_only=True)
class Dialect(Choices):
    """The platform's behaviour where the interface description is silent or contradicts itself.

    The defaults are the best public knowledge, graded in :meth:`gaps`; each can be replaced.
    """

    api_version: str = choice(
        "the version segment of the group paths; the samples use several dates",
        "Versioning",
        Grade.MULTIPLE,
        default="2013-12-26",
    )
    members_shape: MembersShape = choice(
        "how members are written: a plain array, or an object with the key member",
        "InviteJoinGroup, DeleteGroupMember",
        Grade.MULTIPLE,
        default=MembersShape.PLAIN,
    )
    singular_search: bool = choice(
        "whether the search path ends in SearchPublicGroup instead of SearchPublicGroups",
        "SearchPublicGroups",
        Grade.STATED,
        default=False,
    )
    bare_task_path: bool = choice(
        "whether the task path ends before /save", "Create outbound-call task", Grade.STATED, default=False
    )
    invite_limit: int = choice(
        "the maximum number of members in one invitation: 5 in one statement, 50 in another",
        "InviteJoinGroup",
        Grade.MULTIPLE,
        default=50,
    )
    zone: tzinfo = choice(
        "the time zone of the signature's timestamp, of creation times and of 'today'", "Authentication", default=CHINA
    )
    character: Character = choice(
        "the 'character' that limits of texts count: a code point, or a UTF-16 unit, of which an emoji has two",
        "Limits",
        default=Character.CODE_POINT,
    )
    application_concurrency: int | None = choice(
        "the application's call concurrency, which max_concurrent must not exceed; None: not checked by the client",
        "Outbound-call task",
        default=None,
    )
    max_below_min_refused: bool = choice(
        "whether a task whose max_concurrent is below its min_concurrent is refused, or created",
        "Outbound-call task",
        default=True,
    )
    reversed_periods_refused: bool = choice(
        "whether a no-call policy whose end is before its start is refused; if it is accepted, hours run past"
        " midnight, and dates forbid no day",
        "Outbound-call task",
        default=True,
    )
    codes: Mapping[str, Code] = choice(
        "the meaning of each status code, and the error it becomes", "Errors", Grade.SINGLE, default=CODES
    )
    already_so: Mapping[str, frozenset[str]] = choice(
        "the codes, by operation, for 'already in the wanted state': after an attempt of unknown outcome they count as"
        " success",
        "Errors",
        default=ALREADY_SO,
    )
    already_reasons: frozenset[str] = choice(
        "the reasons in fails for 'already in the wanted state': when a bulk job repeats an invitation of unknown"
        " outcome, they count as success",
        "InviteJoinGroup",
        Grade.EMULATOR,
        default=frozenset({"the account is in the group already"}),
    )
    message_time_unit: TimeUnit = choice(
        "the unit of msgTimestamp, 'a long integer carried as text'",
        "Conversation message event body",
        default=TimeUnit.MILLISECONDS,
        only="emulator and receiver",
    )
    delivery_max_age: float | None = choice(
        "the seconds by which CurTime may lie in the past; None: any number", "Authentication", default=300.0, only=RECEIVER
    )
    delivery_max_ahead: float | None = choice(
        "the seconds by which CurTime may lie in the future; None: any number", "Authentication", default=60.0, only=RECEIVER
    )
    normal_out_of_time: OutOfTime = choice(
        "which authentic deliveries outside these seconds a receiver in normal mode accepts all the same, if its sink is"
        " durable",
        "Authentication, Delivery rules",
        default=OutOfTime.ACCEPTED,
        only=RECEIVER,
    )
    high_guarantee_out_of_time: OutOfTime = choice(
        "which authentic deliveries outside these seconds a receiver in high-guarantee mode accepts all the same, if its"
        " sink is durable",
        "Authentication, Delivery rules",
        default=OutOfTime.RESENDS,
        only=RECEIVER,
    )

    def error_of(self, code: str) -> type[ApiError]:
        """Return the error class for a status code."""
        row = self.codes.get(code)
        return row.error if row is not None else ApiError

    def code_of(self, error: type[ApiError]) -> str:
        """Return the first status code for an error class (the emulator answers with it)."""
        return next(code for table in (self.codes, CODES) for code, row in table.items() if row.error is error)


def client_document(dialect: Dialect) -> dict[str, Any]:
    """Return the document of a dialect without the choices that no client notices."""
    only = {gap.name for gap in Dialect.gaps() if gap.only}
    return {name: each for name, each in dialect.to_document().items() if name not in only}
