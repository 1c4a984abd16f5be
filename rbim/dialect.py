"""The dialect: one frozen object with every choice that the interface description leaves open.

Each field states the gap it settles, the evidence grade of its default and the possible values. Client and emulator share
one dialect, so that a test assumes the same as the client.
"""

from __future__ import annotations

from datetime import timedelta, timezone, tzinfo
from enum import StrEnum
from inspect import cleandoc
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import Attribute, field, fields, frozen

from rbim.errors import (
    AlreadyMember,
    ApiError,
    AuthenticationError,
    InvalidRequest,
    NotFound,
    NotMember,
    ServerTrouble,
    Throttled,
    TimestampExpired,
)
from rbim.validators import at_least_one

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["CHINA", "CODES", "Code", "Dialect", "Gap", "Grade", "MembersShape"]

CHINA = timezone(timedelta(hours=8), "UTC+08:00")
"""The platform's time zone (assumed: no page names one)."""


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


class MembersShape(StrEnum):
    """The JSON shape of ``members``."""

    PLAIN = "plain"
    """``["1001", "1002"]``"""

    NESTED = "nested"
    """``{"member": ["1001", "1002"]}``"""


@frozen(kw_only=True)
class Code:
    """The meaning of a status code: the error it becomes, the evidence grade, and a note on the evidence.

    ``before_effect`` is True if the platform is known to return the code before it does anything: then even an operation
    that must never be repeated may be sent again.
    """

    error: type[ApiError]
    grade: Grade
    note: str
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
    yield from rows(NotFound, Grade.EMULATOR, "no such group", 900404)


CODES: Mapping[str, Code] = MappingProxyType(dict(_codes()))
"""The codes seen in public material. None is documented for these operations: replace or extend them as you learn more."""


@frozen(kw_only=True)
class Gap:
    """One gap of the interface description, with the default that settles it."""

    name: str
    default: object
    settles: str
    section: str
    grade: Grade


def _settles(settles: str, section: str, grade: Grade) -> dict[str, Any]:
    return {"gap": (settles, section, grade)}


def _filled(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{attribute.name}: a text that is not empty is needed, not {value!r}", field=attribute.name)


def _is_zone(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, tzinfo):
        raise InvalidRequest(
            f'{attribute.name}: a tzinfo such as ZoneInfo("Asia/Shanghai") is needed, not {value!r}', field=attribute.name
        )


def _shape(value: MembersShape | str) -> MembersShape:
    try:
        return MembersShape(value)
    except ValueError:
        raise InvalidRequest(
            f"members_shape: one of {', '.join(MembersShape)} is needed, not {value!r}", field="members_shape"
        ) from None


def _texts(value: Iterable[str]) -> frozenset[str]:
    return frozenset(value)


@frozen(kw_only=True)
class Dialect:
    """The platform's behaviour where the interface description is silent or contradicts itself.

    The defaults are the best public knowledge, graded in :meth:`gaps`; each can be replaced.
    """

    version: str = field(
        default="2013-12-26",
        validator=_filled,
        metadata=_settles(
            "the version segment of the group paths; the samples use several dates", "Versioning", Grade.MULTIPLE
        ),
    )
    members_shape: MembersShape = field(
        default=MembersShape.PLAIN,
        converter=_shape,
        metadata=_settles(
            "how members are written: a plain array, or an object with the key member",
            "InviteJoinGroup, DeleteGroupMember",
            Grade.MULTIPLE,
        ),
    )
    singular_search: bool = field(
        default=False,
        metadata=_settles(
            "whether the search path ends in SearchPublicGroup instead of SearchPublicGroups",
            "SearchPublicGroups",
            Grade.STATED,
        ),
    )
    bare_task_path: bool = field(
        default=False,
        metadata=_settles("whether the task path ends before /save", "Create outbound-call task", Grade.STATED),
    )
    invite_limit: int = field(
        default=50,
        validator=at_least_one,
        metadata=_settles(
            "the maximum number of members in one invitation: 5 in one statement, 50 in another",
            "InviteJoinGroup",
            Grade.MULTIPLE,
        ),
    )
    zone: tzinfo = field(
        default=CHINA,
        validator=_is_zone,
        metadata=_settles(
            "the time zone of the signature's timestamp, of creation times and of 'today'",
            "Authentication",
            Grade.GUESS,
        ),
    )
    application_concurrency: int | None = field(
        default=None,
        validator=at_least_one,
        metadata=_settles(
            "the application's call concurrency, which max_concurrent must not exceed; None: not checked by the client",
            "Outbound-call task",
            Grade.GUESS,
        ),
    )
    codes: Mapping[str, Code] = field(
        default=CODES,
        hash=False,
        metadata=_settles("the meaning of each status code, and the error it becomes", "Errors", Grade.SINGLE),
    )
    already_so: Mapping[str, frozenset[str]] = field(
        default=MappingProxyType(
            {
                "InviteJoinGroup": frozenset({"590017"}),
                "DeleteGroupMember": frozenset({"560072"}),
                "LogoutGroup": frozenset({"560072"}),
                "DeleteGroup": frozenset({"900404"}),
            }
        ),
        hash=False,
        metadata=_settles(
            "the codes, by operation, for 'already in the wanted state': after an attempt of unknown outcome they count as"
            " success",
            "Errors",
            Grade.GUESS,
        ),
    )
    already_reasons: frozenset[str] = field(
        default=frozenset({"the account is in the group already"}),
        converter=_texts,
        metadata=_settles(
            "the reasons in fails for 'already in the wanted state': when a bulk job repeats an invitation of unknown"
            " outcome, they count as success",
            "InviteJoinGroup",
            Grade.EMULATOR,
        ),
    )

    modify_resets_permission: bool = field(
        default=True,
        metadata=_settles(
            "whether a modification without a permission resets it to the stated default, open, or keeps it"
            " (emulator only: the client requires the field)",
            "ModifyGroup",
            Grade.GUESS,
        ),
    )
    invited_member_fails: bool = field(
        default=False,
        metadata=_settles(
            "whether an invited account that is already in the group is listed in fails, or is ignored (emulator only)",
            "InviteJoinGroup",
            Grade.GUESS,
        ),
    )

    private_join_refused: bool = field(
        default=True,
        metadata=_settles(
            "whether a request to join a private group is refused, or waits for an approval (emulator only)",
            "JoinGroup",
            Grade.GUESS,
        ),
    )
    private_shown_as: str = field(
        default="1",
        metadata=_settles(
            "the permission that answers show for a private group, since they show only 0 and 1 (emulator only)",
            "QueryGroupDetail",
            Grade.GUESS,
        ),
    )
    empty_search_finds_all: bool = field(
        default=True,
        metadata=_settles(
            "whether a search without groupId and name returns every public group, or none (emulator only)",
            "SearchPublicGroups",
            Grade.GUESS,
        ),
    )
    administrators_inherit: bool = field(
        default=True,
        metadata=_settles(
            "whether the creator's role passes to an administrator first when the creator leaves or is removed, or to the"
            " nearest member of any role (emulator only)",
            "Member role",
            Grade.GUESS,
        ),
    )
    overflow_fails: bool = field(
        default=True,
        metadata=_settles(
            "whether an invitation that exceeds the group's capacity lists the surplus in fails, or is refused as a whole"
            " (emulator only)",
            "InviteJoinGroup",
            Grade.GUESS,
        ),
    )
    notifications: Mapping[str, str] = field(
        default=MappingProxyType(
            {
                "apply": "TEAM_APPLY",
                "join": "TEAM_JOIN",
                "invite": "TEAM_INVITE",
                "add": "TEAM_JOIN",
                "delete": "TEAM_DISMISS",
                "leave": "TEAM_QUIT",
                "remove": "TEAM_KICK",
                "approve": "TEAM_APPLY_ACCEPT",
                "confirm": "TEAM_INVITE_ACCEPT",
                "reject": "TEAM_APPLY_REJECT",
                "decline": "TEAM_INVITE_REJECT",
                "modify": "TEAM_UPDATE",
                "hand_over": "TEAM_ADD_ADMIN",
                "set_role": "TEAM_ROLE_UPDATE",
            }
        ),
        hash=False,
        metadata=_settles(
            "the NOTIFY_TEAM message that each change of a group causes; a change that is not listed causes none"
            " (emulator only)",
            "Conversation message event body",
            Grade.GUESS,
        ),
    )
    resend_after: tuple[float, ...] = field(
        default=(5.0, 30.0, 120.0),
        metadata=_settles(
            "the seconds before each resend of high-guarantee copy; there is one resend per entry (emulator only)",
            "Delivery rules",
            Grade.GUESS,
        ),
    )
    resend_signed_anew: bool = field(
        default=True,
        metadata=_settles(
            "whether a resend is signed with the time of the resend, or repeats the CurTime of the first attempt"
            " (emulator only)",
            "Delivery rules",
            Grade.GUESS,
        ),
    )

    @classmethod
    def gaps(cls) -> Iterator[Gap]:
        """Yield the gap that each field settles, with its default and grade, in order."""
        for each in fields(cls):
            settles, section, grade = each.metadata["gap"]
            yield Gap(name=each.name, default=each.default, settles=settles, section=section, grade=grade)

    def error_of(self, code: str) -> type[ApiError]:
        """Return the error class for a status code."""
        row = self.codes.get(code)
        return row.error if row is not None else ApiError

    def code_of(self, error: type[ApiError]) -> str:
        """Return the first status code for an error class (the emulator answers with it)."""
        return next(code for table in (self.codes, CODES) for code, row in table.items() if row.error is error)


def _with_gaps(summary: str) -> str:
    lines = (f"- ``{gap.name}``: {gap.settles} ({gap.section}; {gap.grade})" for gap in Dialect.gaps())
    return "\n".join([cleandoc(summary), "", *lines])  # only Python 3.13 and later remove the indentation themselves


Dialect.__doc__ = _with_gaps(Dialect.__doc__ or "")  # `help` shows each field's gap and evidence grade
