"""The dialect: one frozen object with every choice that the interface description leaves open.

Each field states the gap it settles, the evidence grade of its default and the possible values. Client, emulator and
receiver share one dialect, so that a test assumes the same as the client.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta, timezone, tzinfo
from enum import StrEnum
from inspect import cleandoc
from math import isfinite
from types import MappingProxyType
from typing import Any, TypeVar, cast

from attrs import Attribute, field, fields, frozen

from rbim._support.text import quoted
from rbim.codes import CODES, Code, Grade
from rbim.errors import ApiError, InvalidRequest
from rbim.validators import above_zero, at_least_one, finite, one_of, or_none

__all__ = ["CHINA", "AbsentMembers", "Character", "Dialect", "Gap", "MembersShape", "NearestMember", "OutOfTime", "TimeUnit"]

E = TypeVar("E", bound=StrEnum)

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


class AbsentMembers(StrEnum):
    """The condition under which a removal is refused because accounts are not in the group."""

    ALL = "all"
    """None of the accounts is in the group."""

    ANY = "any"
    """At least one account is not in the group."""

    NEVER = "never"
    """Never: absent accounts are ignored."""


class NearestMember(StrEnum):
    """The member who is nearest to one who leaves, and so takes over the role."""

    FIRST = "first"
    """The member who joined first."""

    NEXT = "next"
    """The member who joined next after the one who leaves, otherwise the first."""

    LAST = "last"
    """The member who joined last."""


@frozen(kw_only=True)
class Gap:
    """One gap of the interface description, with the default that settles it."""

    name: str
    default: object
    settles: str
    section: str
    grade: Grade

    @property
    def only(self) -> str:
        """The only user of the choice: "emulator", "receiver" or "emulator and receiver"; empty if the client is one."""
        found = _ONLY.search(self.settles)
        return found[1] if found else ""

    @property
    def choice(self) -> str:
        """The text of ``settles``, without the note on the only user."""
        return _ONLY.sub(lambda found: f"; {found[2]}" if found[2] else "", self.settles)


_ONLY = re.compile(r" \((emulator|receiver|emulator and receiver) only(?:: (.*?))?\)")


def _settles(settles: str, section: str, grade: Grade) -> dict[str, Any]:
    return {"gap": (settles, section, grade)}


def _filled(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(
            f"{attribute.name}: a text that is not empty is needed, not {quoted(value)}", field=attribute.name
        )


def _is_zone(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, tzinfo):
        raise InvalidRequest(
            f'{attribute.name}: a tzinfo such as ZoneInfo("Asia/Shanghai") is needed, not {quoted(value)}',
            field=attribute.name,
        )


def _member(kind: type[E], name: str, value: E | str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{name}: one of {', '.join(kind)} is needed, not {quoted(value)}", field=name) from None


# mypy accepts only plain functions as converters
def _shape(value: MembersShape | str) -> MembersShape:
    return _member(MembersShape, "members_shape", value)


def _character(value: Character | str) -> Character:
    return _member(Character, "character", value)


def _unit(value: TimeUnit | str) -> TimeUnit:
    return _member(TimeUnit, "message_time_unit", value)


def _normal(value: OutOfTime | str) -> OutOfTime:
    return _member(OutOfTime, "normal_out_of_time", value)


def _high_guarantee(value: OutOfTime | str) -> OutOfTime:
    return _member(OutOfTime, "high_guarantee_out_of_time", value)


def _absent(value: AbsentMembers | str) -> AbsentMembers:
    return _member(AbsentMembers, "removal_refused_if_absent", value)


def _nearest(value: NearestMember | str) -> NearestMember:
    return _member(NearestMember, "nearest_member", value)


def _set_of_texts(name: str, value: Iterable[str]) -> frozenset[str]:
    several = isinstance(cast("object", value), Iterable) and not isinstance(value, (str, bytes))
    found = tuple(value) if several else (None,)
    if not all(isinstance(each, str) for each in found):
        raise InvalidRequest(f"{name}: a set of texts is needed, not {quoted(value)}", field=name)
    return frozenset(cast("tuple[str, ...]", found))


def _api_versions(value: Iterable[str]) -> frozenset[str]:
    return _set_of_texts("api_versions", value)


def _reasons(value: Iterable[str]) -> frozenset[str]:
    return _set_of_texts("already_reasons", value)


def _mapping(name: str, value: object, form: str) -> Mapping[str, Any]:
    given = value
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[object, object]", value)):
        raise InvalidRequest(f"{name}: a mapping of {form} is needed, not {quoted(given)}", field=name)
    return cast("Mapping[str, Any]", value)


def _sets(name: str, value: Mapping[str, Iterable[str]], form: str) -> Mapping[str, frozenset[str]]:
    entries = _mapping(name, value, form)
    return MappingProxyType({key: _set_of_texts(name, each) for key, each in entries.items()})


def _already_so(value: Mapping[str, Iterable[str]]) -> Mapping[str, frozenset[str]]:
    return _sets("already_so", value, "operations to sets of codes")


def _allowed_roles(value: Mapping[str, Iterable[str]]) -> Mapping[str, frozenset[str]]:
    return _sets("allowed_roles", value, "operations to sets of roles")


def _known_roles(_: object, attribute: Attribute[Any], value: Mapping[str, frozenset[str]]) -> None:
    unknown = sorted(frozenset[str]().union(*value.values()) - ROLES)
    if unknown:
        raise InvalidRequest(
            f"{attribute.name}: {quoted(unknown[0])} is not one of {', '.join(sorted(ROLES))}", field=attribute.name
        )


ROLES = frozenset({"creator", "administrator", "member"})


def _entries_of(kind: type[Any], form: str) -> Any:  # an attrs validator
    def validate(_: object, attribute: Attribute[Any], value: object) -> None:
        name = attribute.name
        if not all(isinstance(each, kind) for each in _mapping(name, value, form).values()):
            raise InvalidRequest(f"{name}: a mapping of {form} is needed, not {quoted(value)}", field=name)

    return validate


def _pauses(value: Iterable[float]) -> tuple[float, ...]:
    numbers = tuple(value) if isinstance(cast("object", value), Iterable) else (None,)
    for each in cast("tuple[object, ...]", numbers):
        if not isinstance(each, (int, float)) or isinstance(each, bool) or not isfinite(each) or each < 0:
            raise InvalidRequest(
                f"resend_after: a list of seconds such as (5, 30) is needed, not {quoted(value)}", field="resend_after"
            )
    return tuple(cast("tuple[float, ...]", numbers))


def _flag(*, default: bool, settles: str, section: str, grade: Grade) -> bool:
    """Return an attrs field that is True or False."""
    return field(default=default, validator=one_of(bool), metadata=_settles(settles, section, grade))


@frozen(kw_only=True)
class Dialect:
    """The platform's behaviour where the interface description is silent or contradicts itself.

    The defaults are the best public knowledge, graded in :meth:`gaps`; each can be replaced.
    """

    api_version: str = field(
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
    singular_search: bool = _flag(
        default=False,
        settles="whether the search path ends in SearchPublicGroup instead of SearchPublicGroups",
        section="SearchPublicGroups",
        grade=Grade.STATED,
    )
    bare_task_path: bool = _flag(
        default=False,
        settles="whether the task path ends before /save",
        section="Create outbound-call task",
        grade=Grade.STATED,
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
    character: Character = field(
        default=Character.CODE_POINT,
        converter=_character,
        metadata=_settles(
            "the 'character' that limits of texts count: a code point, or a UTF-16 unit, of which an emoji has two",
            "Limits",
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
    max_below_min_refused: bool = _flag(
        default=True,
        settles="whether a task whose max_concurrent is below its min_concurrent is refused, or created",
        section="Outbound-call task",
        grade=Grade.GUESS,
    )
    reversed_periods_refused: bool = _flag(
        default=True,
        settles="whether a no-call policy whose end is before its start is refused; if it is accepted, hours run past"
        " midnight, and dates forbid no day",
        section="Outbound-call task",
        grade=Grade.GUESS,
    )
    codes: Mapping[str, Code] = field(
        default=CODES,
        hash=False,
        validator=_entries_of(Code, "codes to Code values"),
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
        converter=_already_so,
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
        converter=_reasons,
        metadata=_settles(
            "the reasons in fails for 'already in the wanted state': when a bulk job repeats an invitation of unknown"
            " outcome, they count as success",
            "InviteJoinGroup",
            Grade.EMULATOR,
        ),
    )
    message_time_unit: TimeUnit = field(
        default=TimeUnit.MILLISECONDS,
        converter=_unit,
        metadata=_settles(
            "the unit of msgTimestamp, 'a long integer carried as text' (emulator and receiver only)",
            "Conversation message event body",
            Grade.GUESS,
        ),
    )

    delivery_max_age: float | None = field(
        default=300.0,
        validator=(or_none(above_zero), or_none(finite)),
        metadata=_settles(
            "the seconds by which CurTime may lie in the past; None: any number (receiver only)",
            "Authentication",
            Grade.GUESS,
        ),
    )
    delivery_max_ahead: float | None = field(
        default=60.0,
        validator=(or_none(above_zero), or_none(finite)),
        metadata=_settles(
            "the seconds by which CurTime may lie in the future; None: any number (receiver only)",
            "Authentication",
            Grade.GUESS,
        ),
    )
    normal_out_of_time: OutOfTime = field(
        default=OutOfTime.ACCEPTED,
        converter=_normal,
        metadata=_settles(
            "which authentic deliveries outside these seconds a receiver in normal mode accepts all the same, if its sink is"
            " durable (receiver only)",
            "Authentication, Delivery rules",
            Grade.GUESS,
        ),
    )
    high_guarantee_out_of_time: OutOfTime = field(
        default=OutOfTime.RESENDS,
        converter=_high_guarantee,
        metadata=_settles(
            "which authentic deliveries outside these seconds a receiver in high-guarantee mode accepts all the same, if its"
            " sink is durable (receiver only)",
            "Authentication, Delivery rules",
            Grade.GUESS,
        ),
    )

    signature_valid_for: float = field(
        default=86_400.0,
        validator=(above_zero, finite),
        metadata=_settles(
            "the seconds by which the timestamp of a request's signature may differ from the platform's clock"
            " (emulator only)",
            "Authentication",
            Grade.OFFICIAL,
        ),
    )
    api_versions: frozenset[str] = field(
        default=frozenset[str](),
        converter=_api_versions,
        metadata=_settles(
            "which versions are accepted in a path beside api_version; none named: every date YYYY-MM-DD (emulator only)",
            "Versioning",
            Grade.GUESS,
        ),
    )
    other_forms_refused: bool = _flag(
        default=False,
        settles="whether a request with the other stated path, or with the other shape of members, is refused, or done all"
        " the same (emulator only)",
        section="InviteJoinGroup, SearchPublicGroups, Create outbound-call task",
        grade=Grade.GUESS,
    )
    modify_resets_permission: bool = _flag(
        default=True,
        settles="whether a modification without a permission resets it to the stated default, open, or keeps it"
        " (emulator only: the client requires the field)",
        section="ModifyGroup",
        grade=Grade.GUESS,
    )
    modify_clears_texts: bool = _flag(
        default=False,
        settles="whether a modification without declared or groupDomain clears the text, or keeps it (emulator only)",
        section="ModifyGroup",
        grade=Grade.GUESS,
    )
    empty_text_clears: bool = _flag(
        default=True,
        settles="whether a modification with an empty declared or groupDomain clears the text, or counts as one without the"
        " field (emulator only)",
        section="ModifyGroup",
        grade=Grade.GUESS,
    )
    invited_member_fails: bool = _flag(
        default=False,
        settles="whether an invited account that is already in the group is listed in fails, or is ignored (emulator only)",
        section="InviteJoinGroup",
        grade=Grade.GUESS,
    )
    second_join_refused: bool = _flag(
        default=True,
        settles="whether a request of a member to join the group again is refused, or succeeds without effect"
        " (emulator only)",
        section="JoinGroup",
        grade=Grade.GUESS,
    )
    private_join_refused: bool = _flag(
        default=True,
        settles="whether a request to join a private group is refused, or waits for an approval (emulator only)",
        section="JoinGroup",
        grade=Grade.GUESS,
    )
    private_shown_as: str = field(
        default="1",
        validator=_filled,
        metadata=_settles(
            "the permission that answers show for a private group, since they show only 0 and 1 (emulator only)",
            "QueryGroupDetail",
            Grade.GUESS,
        ),
    )
    empty_search_finds_all: bool = _flag(
        default=True,
        settles="whether a search without groupId and name returns every public group, or none (emulator only)",
        section="SearchPublicGroups",
        grade=Grade.GUESS,
    )
    letters_are_ascii: bool = _flag(
        default=True,
        settles="whether the 'digits' and 'letters' that must be the complete name are only those of ASCII, or of every"
        " script, Chinese included (emulator only)",
        section="SearchPublicGroups",
        grade=Grade.GUESS,
    )
    search_ignores_case: bool = _flag(
        default=False,
        settles="whether a search by name ignores the case of letters (emulator only)",
        section="SearchPublicGroups",
        grade=Grade.GUESS,
    )
    removal_refused_if_absent: AbsentMembers = field(
        default=AbsentMembers.ALL,
        converter=_absent,
        metadata=_settles(
            "how many of the accounts of a removal must be absent from the group for a refusal: all, any, or never refused"
            " (emulator only)",
            "DeleteGroupMember",
            Grade.GUESS,
        ),
    )
    empty_group_deleted: bool = _flag(
        default=True,
        settles="whether the group is deleted when its last member leaves or is removed, or remains without members"
        " (emulator only)",
        section="LogoutGroup, DeleteGroupMember",
        grade=Grade.GUESS,
    )
    nearest_member: NearestMember = field(
        default=NearestMember.FIRST,
        converter=_nearest,
        metadata=_settles(
            "the 'nearest' member, who takes over a role: the first who joined, the next after the one who leaves, or the"
            " last (emulator only)",
            "Conversation message event body",
            Grade.GUESS,
        ),
    )
    administrators_inherit: bool = _flag(
        default=True,
        settles="whether the creator's role passes to an administrator first when the creator leaves or is removed, or to"
        " the nearest member of any role (emulator only)",
        section="Member role",
        grade=Grade.GUESS,
    )
    former_creator_administers: bool = _flag(
        default=False,
        settles="whether a creator who hands the role over becomes an administrator, or an ordinary member (emulator only)",
        section="SetMemberRole",
        grade=Grade.GUESS,
    )
    creator_demotion_refused: bool = _flag(
        default=True,
        settles="whether a lower role for the creator is refused, or passes the creator's role on as when the creator leaves"
        " (emulator only)",
        section="SetMemberRole",
        grade=Grade.GUESS,
    )
    allowed_roles: Mapping[str, frozenset[str]] = field(
        default=MappingProxyType(
            {
                "ModifyGroup": frozenset({"creator", "administrator"}),
                "DeleteGroup": frozenset({"creator"}),
                "InviteJoinGroup": frozenset({"creator", "administrator"}),
                "DeleteGroupMember": frozenset({"creator", "administrator"}),
                "SetMemberRole": frozenset({"creator"}),
            }
        ),
        converter=_allowed_roles,
        validator=_known_roles,
        hash=False,
        metadata=_settles(
            "the roles that may call each operation if check_roles is on; everyone may call an operation that is not listed"
            " (emulator only)",
            "Common rules for the group operations",
            Grade.GUESS,
        ),
    )
    owner_counts: bool = _flag(
        default=True,
        settles="whether the owner takes one of the places that the group's type has (emulator only)",
        section="Group",
        grade=Grade.GUESS,
    )
    overflow_fails: bool = _flag(
        default=True,
        settles="whether an invitation that exceeds the group's capacity lists the surplus in fails, or is refused as a"
        " whole (emulator only)",
        section="InviteJoinGroup",
        grade=Grade.GUESS,
    )
    default_policies_apply: bool = _flag(
        default=True,
        settles="whether the default no-call policies, 00:00:00 to 09:00:00 and 21:00:00 to 23:59:59, apply to a task"
        " without call_policy (emulator only)",
        section="Outbound-call task",
        grade=Grade.STATED,
    )
    empty_policy_is_none: bool = _flag(
        default=True,
        settles="whether an empty call_policy forbids no time, or counts as a task without call_policy (emulator only)",
        section="Outbound-call task",
        grade=Grade.GUESS,
    )
    day_policy_repeats: bool = _flag(
        default=True,
        settles="whether a policy of type 0, 'the current day', forbids its hours on every day, or only on the day on which"
        " the task is created (emulator only)",
        section="Outbound-call task",
        grade=Grade.GUESS,
    )
    hours_include_end: bool = _flag(
        default=True,
        settles="whether the hours of a no-call policy include their last second (emulator only)",
        section="Outbound-call task",
        grade=Grade.GUESS,
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
        validator=_entries_of(str, "changes to texts"),
        metadata=_settles(
            "the NOTIFY_TEAM message that each change of a group causes; a change that is not listed causes none"
            " (emulator only)",
            "Conversation message event body",
            Grade.GUESS,
        ),
    )
    team_members_list_sender: bool = _flag(
        default=False,
        settles="whether tMembers of a TEAM message lists the sender beside the other members (emulator only)",
        section="Conversation message event body",
        grade=Grade.GUESS,
    )
    resend_after: tuple[float, ...] = field(
        default=(5.0, 30.0, 120.0),
        converter=_pauses,
        metadata=_settles(
            "the seconds before each resend of high-guarantee copy; there is one resend per entry (emulator only)",
            "Delivery rules",
            Grade.GUESS,
        ),
    )
    resend_signed_anew: bool = _flag(
        default=True,
        settles="whether a resend is signed with the time of the resend, or repeats the CurTime of the first attempt"
        " (emulator only)",
        section="Delivery rules",
        grade=Grade.GUESS,
    )
    resend_holds_conversation: bool = _flag(
        default=True,
        settles="whether the later messages of a conversation wait while one waits to be resent, or overtake it"
        " (emulator only)",
        section="Delivery rules",
        grade=Grade.GUESS,
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
