"""Rules of the emulator: choices of the interface description that change the result of somebody's test.

What a client or a receiver can notice, too, is in :class:`rbim.Dialect`; what changes no test's result is a constant where
it is used.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003  # its types are read
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from attrs import frozen

from rbim.choices import Choices, choice
from rbim.codes import Grade

__all__ = ["AbsentMembers", "NearestMember", "Rules"]


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


RoleName = Literal["creator", "administrator", "member"]
ALLOWED_ROLES: Mapping[str, frozenset[RoleName]] = MappingProxyType(
    {
        "ModifyGroup": frozenset({"creator", "administrator"}),
        "DeleteGroup": frozenset({"creator"}),
        "InviteJoinGroup": frozenset({"creator", "administrator"}),
        "DeleteGroupMember": frozenset({"creator", "administrator"}),
        "SetMemberRole": frozenset({"creator"}),
    }
)
NOTIFICATIONS = MappingProxyType(
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
)


@frozen(kw_only=True)
class Rules(Choices):
    """The rules of the emulator where the interface description is silent or contradicts itself.

    The defaults are graded in :meth:`gaps`; each can be replaced.
    """

    other_forms_refused: bool = choice(
        "whether a request with the other stated path, or with the other shape of members, is refused, or done all the same",
        "InviteJoinGroup, SearchPublicGroups, Create outbound-call task",
        default=False,
    )
    modify_clears_texts: bool = choice(
        "whether a modification without declared or groupDomain clears the text, or keeps it", "ModifyGroup", default=False
    )
    invited_member_fails: bool = choice(
        "whether an invited account that is already in the group is listed in fails, or is ignored",
        "InviteJoinGroup",
        default=False,
    )
    second_join_refused: bool = choice(
        "whether a request of a member to join the group again is refused, or succeeds without effect",
        "JoinGroup",
        default=True,
    )
    private_join_refused: bool = choice(
        "whether a request to join a private group is refused, or waits for an approval", "JoinGroup", default=True
    )
    empty_search_finds_all: bool = choice(
        "whether a search without groupId and name returns every public group, or none", "SearchPublicGroups", default=True
    )
    search_ignores_case: bool = choice(
        "whether a search by name ignores the case of letters", "SearchPublicGroups", default=False
    )
    removal_refused_if_absent: AbsentMembers = choice(
        "how many of the accounts of a removal must be absent from the group for a refusal: all, any, or never refused",
        "DeleteGroupMember",
        default=AbsentMembers.ALL,
    )
    empty_group_deleted: bool = choice(
        "whether the group is deleted when its last member leaves or is removed, or remains without members",
        "LogoutGroup, DeleteGroupMember",
        default=True,
    )
    nearest_member: NearestMember = choice(
        "the 'nearest' member, who takes over a role: the first who joined, the next after the one who leaves, or the last",
        "Conversation message event body",
        default=NearestMember.FIRST,
    )
    administrators_inherit: bool = choice(
        "whether the creator's role passes to an administrator first when the creator leaves or is removed, or to the"
        " nearest member of any role",
        "Member role",
        default=True,
    )
    creator_demotion_refused: bool = choice(
        "whether a lower role for the creator is refused, or passes the creator's role on as when the creator leaves",
        "SetMemberRole",
        default=True,
    )
    allowed_roles: Mapping[str, frozenset[RoleName]] = choice(
        "the roles that may call each operation if check_roles is on; everyone may call an operation that is not listed",
        "Common rules for the group operations",
        default=ALLOWED_ROLES,
    )
    overflow_fails: bool = choice(
        "whether an invitation that exceeds the group's capacity lists the surplus in fails, or is refused as a whole",
        "InviteJoinGroup",
        default=True,
    )
    default_policies_apply: bool = choice(
        "whether the default no-call policies, 00:00:00 to 09:00:00 and 21:00:00 to 23:59:59, apply to a task without"
        " call_policy",
        "Outbound-call task",
        Grade.STATED,
        default=True,
    )
    notifications: Mapping[str, str] = choice(
        "the NOTIFY_TEAM message that each change of a group causes; a change that is not listed causes none",
        "Conversation message event body",
        default=NOTIFICATIONS,
    )
    resend_after: tuple[float, ...] = choice(
        "the seconds before each resend of high-guarantee copy; there is one resend per entry",
        "Delivery rules",
        default=(5.0, 30.0, 120.0),
    )
