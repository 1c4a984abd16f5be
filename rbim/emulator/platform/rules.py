"""The effect of each operation on the state: one rule per operation class, found by that class.

A rule takes the emulator's :class:`World` and the operation, changes the state, and returns the answer or raises
:class:`Refusal`. Comments name the section of the interface description that a rule follows; the dialect decides the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import field, frozen

from rbim.emulator.platform.state import Group, State, Task
from rbim.errors import AlreadyMember, ApiError, NotFound, NotMember
from rbim.operations.base import Answer, Operation
from rbim.operations.call_tasks import CallTaskCreated, CreateCallTask
from rbim.operations.groups import (
    Created,
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
    Fail,
    GroupDetail,
    GroupFound,
    GroupsFound,
    Invited,
    InviteJoinGroup,
    JoinGroup,
    LogoutGroup,
    ModifyGroup,
    Permission,
    QueryGroupDetail,
    Role,
    SearchPublicGroups,
    SetMemberRole,
    Success,
    Target,
)

if TYPE_CHECKING:
    from rbim.clock import Clock
    from rbim.dialect import Dialect

__all__ = [
    "FORBIDDEN",
    "FULL",
    "MALFORMED",
    "RULES",
    "UNKNOWN_OPERATION",
    "DependsOnDialect",
    "GroupChange",
    "Refusal",
    "Rule",
    "World",
]

# The emulator's own codes, where no public material shows the platform's.
MALFORMED = "900400"
FORBIDDEN = "900403"
FULL = "900409"
UNKNOWN_OPERATION = "900501"

RECENT = 1000

O = TypeVar("O", bound=Operation[Any])  # noqa: E741  # an operation


class Refusal(Exception):
    """The platform refuses a request: with a code, or with a kind of error whose code the dialect knows."""

    def __init__(self, reason: str, *, code: str | None = None, kind: type[ApiError] = ApiError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.kind = kind


class DependsOnDialect(AssertionError):
    """The effect of a request is not described: it depends on ``field`` of the dialect (``strict_dialect``)."""

    def __init__(self, field: str = "") -> None:
        super().__init__(f"the effect of this request is not described: it depends on Dialect.{field}")
        self.field = field


@frozen(kw_only=True)
class GroupChange:
    """A change that members of a group are notified of: its cause, the group, the account that acts, the members."""

    cause: str
    group_id: str
    actor: str
    members: tuple[str, ...]


@frozen(kw_only=True)
class World:
    """The data that rules read and change."""

    state: State
    dialect: Dialect
    clock: Clock
    administrator: str
    check_roles: bool = False
    strict: bool = False
    changes: list[GroupChange] = field(factory=list[GroupChange])
    listeners: list[Callable[[GroupChange], object]] = field(factory=list[Callable[["GroupChange"], object]])

    def choice(self, name: str) -> Any:
        """Return the dialect's value where the description says nothing; raise DependsOnDialect in a strict test."""
        if self.strict:
            raise DependsOnDialect(name)
        return getattr(self.dialect, name)

    def record_change(self, cause: str, group: Group, actor: str, *members: str) -> None:
        """Record a change of a group and call the listeners. At least the last thousand changes are kept."""
        change = GroupChange(cause=cause, group_id=group.group_id, actor=actor, members=members)
        for listener in self.listeners:
            listener(change)
        self.changes.append(change)
        if len(self.changes) >= 2 * RECENT:
            del self.changes[:-RECENT]

    def authorise(self, group: Group, account: str, *roles: Role) -> None:
        """Refuse an account that has none of these roles in the group, if roles are checked."""
        if self.check_roles and group.members.get(account) not in roles:
            raise Refusal(f"{account} may not do this to {group.group_id}", code=FORBIDDEN)

    def group(self, group_id: str) -> Group:
        """Return the group. Raises Refusal if there is none."""
        group = self.state.groups.get(group_id)
        if group is None:
            raise Refusal(f"there is no group {group_id}", kind=NotFound)
        return group

    def actor(self, user_name: str | None) -> str:
        """Return the account that acts: the named one, otherwise the administrator ("Group", owner)."""
        return user_name or self.administrator


Rule = Callable[[World, Any], Answer]
RULES: dict[type[Operation[Any]], Rule] = {}


def _rule(kind: type[O]) -> Callable[[Callable[[World, O], Answer]], Callable[[World, O], Answer]]:
    def register(function: Callable[[World, O], Answer]) -> Callable[[World, O], Answer]:
        RULES[kind] = function
        return function

    return register


@_rule(CreateGroup)
def _create(world: World, op: CreateGroup) -> Created:
    group = Group(
        group_id=world.state.new_group_id(),
        name=op.name,
        # Group type and capacity: a discussion group of a type above 2 gets 2
        type=op.type.for_discussion if op.target is Target.DISCUSSION else op.type,
        permission=op.permission,
        target=op.target,
        declared=op.declared or "",
        group_domain=op.group_domain,
        created=world.clock.now(),
        members={world.actor(op.user_name): Role.CREATOR},
    )
    world.state.groups[group.group_id] = group
    return Created(group_id=group.group_id)


@_rule(ModifyGroup)
def _modify(world: World, op: ModifyGroup) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(group, actor, Role.CREATOR, Role.ADMINISTRATOR)
    if op.permission is not None:
        group.permission = op.permission
    elif group.permission is not Permission.OPEN and world.choice("modify_resets_permission"):
        group.permission = Permission.OPEN
    group.name = op.name
    if op.declared is not None:
        group.declared = op.declared
    if op.group_domain is not None:
        group.group_domain = op.group_domain
    world.record_change("modify", group, actor, *group.members)
    return Success()


@_rule(DeleteGroup)
def _delete(world: World, op: DeleteGroup) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(group, actor, Role.CREATOR)
    del world.state.groups[group.group_id]
    world.record_change("delete", group, actor, *group.members)
    return Success()


@_rule(SearchPublicGroups)
def _search(world: World, op: SearchPublicGroups) -> GroupsFound:
    # SearchPublicGroups: private groups are never found; groupId takes precedence over name
    groups = world.state.groups
    within = groups.values() if op.group_id is None else [groups[op.group_id]] if op.group_id in groups else []
    found = [group for group in within if group.permission is not Permission.PRIVATE]
    if op.group_id is None and op.name is None and not world.choice("empty_search_finds_all"):
        found = []
    if op.group_id is None and op.name is not None:
        whole = op.name.isascii() and (op.name.isdigit() or op.name.isalpha())
        found = [group for group in found if (op.name == group.name if whole else op.name in group.name)]
    return GroupsFound(
        groups=tuple(
            GroupFound(
                group_id=group.group_id,
                name=group.name,
                type=group.type,
                count=len(group.members),
                permission=group.permission,
            )
            for group in found
        )
    )


@_rule(QueryGroupDetail)
def _detail(world: World, op: QueryGroupDetail) -> GroupDetail:
    group = world.group(op.group_id)
    return GroupDetail(
        name=group.name,
        owner=group.owner,
        declared=group.declared,
        count=len(group.members),
        date_created=group.created.astimezone(world.dialect.zone),
        # Group, permission: answers show only the first two values
        permission=world.dialect.private_shown_as if group.permission is Permission.PRIVATE else group.permission,
        target=group.target,
        type=group.type,
        group_domain=group.group_domain,
    )


@_rule(JoinGroup)
def _join(world: World, op: JoinGroup) -> Success:
    group, account = world.group(op.group_id), world.actor(op.user_name)
    if account in group.members:
        raise Refusal(f"{account} is in {group.group_id} already", kind=AlreadyMember)
    if group.permission is Permission.PRIVATE and world.choice("private_join_refused"):
        raise Refusal(f"{group.group_id} is private: members join by invitation only", code=FORBIDDEN)
    if group.is_full:
        raise Refusal(f"{group.group_id} is full", code=FULL)
    # States, rule 1: verification comes between asking and joining
    if group.permission is not Permission.OPEN:
        group.applied[account] = None
        world.record_change("apply", group, account, group.owner)
    else:
        group.admit(account)
        world.record_change("join", group, account, account)
    return Success()


@_rule(InviteJoinGroup)
def _invite(world: World, op: InviteJoinGroup) -> Invited:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(group, actor, Role.CREATOR, Role.ADMINISTRATOR)
    room = group.type.member_limit - len(group.members)
    fails: list[Fail] = []
    accepted: list[str] = []
    for account in dict.fromkeys(op.members):
        if not world.state.has_logged_in(account):  # States, rule 4
            fails.append(Fail(member=account, reason="the account has never logged in"))
        elif account in group.members:
            if world.choice("invited_member_fails"):
                fails.append(Fail(member=account, reason="the account is in the group already"))
        elif len(accepted) < room or op.needs_confirmation:
            accepted.append(account)
        elif world.choice("overflow_fails"):
            fails.append(Fail(member=account, reason="the group is full"))
        else:
            raise Refusal(f"{group.group_id} has room for {room} more", code=FULL)
    for account in accepted:
        if op.needs_confirmation:  # States, rule 3
            group.invited[account] = None
        else:
            group.admit(account)
    if accepted:
        world.record_change("invite" if op.needs_confirmation else "add", group, actor, *accepted)
    return Invited(fails=tuple(fails))


@_rule(DeleteGroupMember)
def _remove(world: World, op: DeleteGroupMember) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(group, actor, Role.CREATOR, Role.ADMINISTRATOR)
    present = [account for account in dict.fromkeys(op.members) if account in group.members]
    if not present:
        raise Refusal(f"none of the accounts is in {group.group_id}", kind=NotMember)
    _take_out(world, "remove", group, actor, *present)
    return Success()


@_rule(LogoutGroup)
def _leave(world: World, op: LogoutGroup) -> Success:
    group, account = world.group(op.group_id), world.actor(op.user_name)
    _member(group, account)
    _take_out(world, "leave", group, account, account)
    return Success()


@_rule(SetMemberRole)
def _set_role(world: World, op: SetMemberRole) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(group, actor, Role.CREATOR)
    _member(group, op.member)
    if op.role is Role.CREATOR:
        group.members[group.owner] = Role.MEMBER
    elif op.member == group.owner:
        raise Refusal(f"{op.member} is the creator: hand that role to another member first", code=FORBIDDEN)
    group.members[op.member] = op.role
    world.record_change("set_role", group, actor, op.member)
    return Success()


@_rule(CreateCallTask)
def _create_task(world: World, op: CreateCallTask) -> CallTaskCreated:
    task = Task(task_id=world.state.new_task_id(), request=op, created=world.clock.now())
    world.state.tasks[task.task_id] = task
    return CallTaskCreated(task_id=task.task_id)


def _member(group: Group, account: str) -> None:
    if account not in group.members:
        raise Refusal(f"{account} is not in {group.group_id}", kind=NotMember)


def _take_out(world: World, cause: str, group: Group, actor: str, *accounts: str) -> None:
    """Remove accounts from a group, notify those concerned, and pass their roles on."""
    heirs: tuple[tuple[Role, ...], ...] = ((Role.ADMINISTRATOR, Role.MEMBER),)
    members_remain = len(group.members) > len(accounts)
    if group.owner in accounts and members_remain and world.choice("administrators_inherit"):
        heirs = ((Role.ADMINISTRATOR,), (Role.MEMBER,))
    world.record_change(cause, group, actor, *accounts)
    for account, heir in group.dismiss(accounts, heirs).items():
        world.record_change("hand_over", group, account, heir)
    if not group.members:  # a group without members ceases to exist
        del world.state.groups[group.group_id]
