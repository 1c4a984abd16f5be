"""The effect of each operation on the state: one rule per operation class, found by that class.

A rule takes the emulator's :class:`World` and the operation, changes the state, and returns the answer or raises
:class:`Refusal`. Comments name the section of the interface description that a rule follows; the dialect decides the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from attrs import field, frozen

from rbim.codes import FORBIDDEN, FULL
from rbim.emulator.platform.state import Group, Roles, State, Task
from rbim.emulator.rules import AbsentMembers, NearestMember
from rbim.errors import AlreadyMember, ApiError, NotFound, NotMember
from rbim.operations.base import Answer, Operation
from rbim.operations.call_tasks import CallTaskCreated, CreateCallTask
from rbim.operations.fails import Fail
from rbim.operations.groups import (
    Created,
    CreateGroup,
    DeleteGroup,
    DeleteGroupMember,
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
    from rbim.emulator.rules import Rules

__all__ = ["RULES", "DependsOnDialect", "GroupChange", "Refusal", "Rule", "World"]

O = TypeVar("O", bound=Operation[Any])  # noqa: E741  # an operation


class Refusal(Exception):
    """The platform refuses a request: with a code, or with a kind of error whose code the dialect knows."""

    def __init__(self, reason: str, *, code: str | None = None, kind: type[ApiError] = ApiError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.kind = kind


class DependsOnDialect(AssertionError):
    """The effect of a request is not described (``strict_dialect``).

    It depends on ``field``: of the dialect, of the emulator's rules, or of neither, for what the emulator always assumes.
    """

    def __init__(self, field: str = "", owner: str = "") -> None:
        cause = f"it depends on {owner}.{field}" if owner else f"the emulator assumes it ({field})"
        super().__init__(f"the effect of this request is not described: {cause}")
        self.field = field


@frozen(kw_only=True)
class GroupChange:
    """A change that members of a group are notified of: its cause, the group, the account that acts, the members."""

    cause: str
    group_id: str
    actor: str
    members: tuple[str, ...]


@frozen
class _StrictDialect:
    """A dialect whose fields raise DependsOnDialect, except those on the form of requests."""

    _dialect: Dialect

    def __getattr__(self, name: str) -> Any:
        if name not in FORM:
            raise DependsOnDialect(name, "Dialect")
        return getattr(self._dialect, name)


FORM = frozenset({"api_version", "members_shape", "invite_limit", "zone", "application_concurrency"})


@frozen(kw_only=True)
class World:
    """The data that rules read and change."""

    state: State
    dialect: Dialect
    rules: Rules
    clock: Clock
    administrator: str
    check_roles: bool = False
    strict: bool = False
    listeners: list[Callable[[GroupChange], object]] = field(factory=list[Callable[["GroupChange"], object]])

    def choice(self, name: str) -> Any:
        """Return the emulator's rule where the description says nothing; raise DependsOnDialect in a strict test."""
        if self.strict:
            raise DependsOnDialect(name, "Rules")
        return getattr(self.rules, name)

    def assume(self, name: str) -> None:
        """Raise DependsOnDialect in a strict test: what follows is not described, and a comment says what is assumed."""
        if self.strict:
            raise DependsOnDialect(name)

    @property
    def effects(self) -> Dialect:
        """The dialect for checks: in a strict test its fields raise, except those on the form of requests."""
        return cast("Dialect", _StrictDialect(self.dialect)) if self.strict else self.dialect

    def record_change(self, cause: str, group: Group, actor: str, *members: str) -> None:
        """Tell the listeners of a change of a group."""
        change = GroupChange(cause=cause, group_id=group.group_id, actor=actor, members=members)
        for listener in self.listeners:
            listener(change)

    def authorise(self, op: Operation[Any], group: Group, account: str) -> None:
        """Refuse an account whose role in the group does not allow the operation, if roles are checked."""
        name = op.spec.name
        if not self.check_roles or name not in self.rules.allowed_roles:
            return
        role = group.members.get(account)
        stated = role is Role.CREATOR or (role is Role.ADMINISTRATOR and name in BY_ADMINISTRATOR)
        allowed = (self.rules.allowed_roles if stated else self.choice("allowed_roles"))[name]
        if role is None or role.name.lower() not in allowed:
            raise Refusal(f"{account} may not do this to {group.group_id}", code=FORBIDDEN)

    def places(self, group: Group, wanted: int = 1) -> int:
        """Return how many accounts can join."""
        if wanted > group.room:
            self.assume("owner_counts")  # the owner takes one of the places that the type has (Group; G)
        return group.room

    def nearest(self, before: list[str], after: list[str]) -> str:
        """Return the nearest member to an account, given those who joined before it and after it."""
        members = [*before, *after]
        if len(members) == 1:
            return members[0]
        which = self.choice("nearest_member")
        if which is NearestMember.NEXT:
            members = [*after, *before]
        return members[-1 if which is NearestMember.LAST else 0]

    def group(self, group_id: str) -> Group:
        """Return the group. Raises Refusal if there is none."""
        group = self.state.groups.get(group_id)
        if group is None:
            raise Refusal(f"there is no group {group_id}", kind=NotFound)
        return group

    def actor(self, user_name: str | None) -> str:
        """Return the account that acts: the named one, otherwise the administrator ("Group", owner)."""
        return user_name or self.administrator


PRIVATE_SHOWN_AS = "1"  # of the two values that answers show, the one that does not mean free entry (QueryGroupDetail; G)
BY_ADMINISTRATOR = frozenset({"InviteJoinGroup", "DeleteGroupMember"})  # so says the description of the operations

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
    world.authorise(op, group, actor)
    permission = op.permission or group.permission
    if op.permission is None and permission is not Permission.OPEN:
        world.assume("modify_resets_permission")  # to the default that the description states (ModifyGroup; G)
        permission = Permission.OPEN
    declared = _modified(world, group.declared, op.declared)
    domain = _modified(world, group.group_domain, op.group_domain)
    group.name, group.permission = op.name, permission
    group.declared, group.group_domain = declared or "", domain
    world.record_change("modify", group, actor, *group.members)
    return Success()


def _modified(world: World, old: str | None, new: str | None) -> str | None:
    """Return an optional text of a group after a modification."""
    if new or not old:
        return new or old
    if new is None:
        return None if world.choice("modify_clears_texts") else old
    world.assume("empty_text_clears")  # no other request can remove an announcement (ModifyGroup; G)
    return None


@_rule(DeleteGroup)
def _delete(world: World, op: DeleteGroup) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(op, group, actor)
    del world.state.groups[group.group_id]
    world.record_change("delete", group, actor, *group.members)
    return Success()


@_rule(SearchPublicGroups)
def _search(world: World, op: SearchPublicGroups) -> GroupsFound:
    # SearchPublicGroups: private groups are never found; groupId takes precedence over name
    groups = world.state.groups
    within = groups.values() if not op.group_id else [groups[op.group_id]] if op.group_id in groups else []
    found = [group for group in within if group.permission is not Permission.PRIVATE]
    if not op.group_id and op.name:
        found = _named(world, found, op.name)
    elif not op.group_id and not world.choice("empty_search_finds_all"):
        found = []
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


def _named(world: World, groups: list[Group], text: str) -> list[Group]:
    """Return the groups that a search by name finds."""

    def matching(fold: Callable[[str], str], *, whole: bool) -> list[Group]:
        wanted = fold(text)
        return [group for group in groups if (wanted == fold(group.name) if whole else wanted in fold(group.name))]

    ignoring_case = matching(str.casefold, whole=False)
    whole = text.isdigit() or text.isalpha()
    if ignoring_case and whole and not text.isascii():
        world.assume("letters_are_ascii")  # else no Chinese name could be found by a part of it (SearchPublicGroups; G)
        whole = False
    found, more = matching(str, whole=whole), matching(str.casefold, whole=whole)
    return more if more != found and world.choice("search_ignores_case") else found


@_rule(QueryGroupDetail)
def _detail(world: World, op: QueryGroupDetail) -> GroupDetail:
    group = world.group(op.group_id)
    world.authorise(op, group, world.actor(op.user_name))
    return GroupDetail(
        name=group.name,
        owner=group.owner,
        declared=group.declared,
        count=len(group.members),
        date_created=group.created.astimezone(world.dialect.zone),
        # Group, permission: answers show only the first two values
        permission=PRIVATE_SHOWN_AS if group.permission is Permission.PRIVATE else group.permission,
        target=group.target,
        type=group.type,
        group_domain=group.group_domain,
    )


@_rule(JoinGroup)
def _join(world: World, op: JoinGroup) -> Success:
    group, account = world.group(op.group_id), world.actor(op.user_name)
    if account in group.members:
        if world.choice("second_join_refused"):
            raise Refusal(f"{account} is in {group.group_id} already", kind=AlreadyMember)
        return Success()
    if group.permission is Permission.PRIVATE and world.choice("private_join_refused"):
        raise Refusal(f"{group.group_id} is private: members join by invitation only", code=FORBIDDEN)
    if world.places(group) < 1:
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
    world.authorise(op, group, actor)
    places = _places(world, group, op)
    fails: list[Fail] = []
    accepted: list[str] = []
    for account in dict.fromkeys(op.members):
        if not world.state.has_logged_in(account):  # States, rule 4
            fails.append(Fail(member=account, reason="the account has never logged in"))
        elif account in group.members:
            if world.choice("invited_member_fails"):
                fails.append(Fail(member=account, reason="the account is in the group already"))
        elif len(accepted) < places:
            accepted.append(account)
        else:
            fails.append(Fail(member=account, reason="the group is full"))
    for account in accepted:
        if op.needs_confirmation:  # States, rule 3
            group.invited[account] = None
        else:
            group.admit(account)
    if accepted:
        world.record_change("invite" if op.needs_confirmation else "add", group, actor, *accepted)
    return Invited(fails=tuple(fails))


def _places(world: World, group: Group, op: InviteJoinGroup) -> int:
    """Return how many of the invited accounts are added or asked. Raises Refusal if a surplus refuses the invitation."""
    joining = [each for each in {*op.members} if world.state.has_logged_in(each) and each not in group.members]
    wanted = len(joining)
    if op.needs_confirmation or wanted <= group.room:
        return wanted
    # with one surplus account alone it depends on the owner's place whether there is any
    places = world.places(group, wanted) if wanted == group.room + 1 else group.room
    if not world.choice("overflow_fails"):
        raise Refusal(f"{group.group_id} has room for {places} more", code=FULL)
    return places


@_rule(DeleteGroupMember)
def _remove(world: World, op: DeleteGroupMember) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(op, group, actor)
    present = [account for account in dict.fromkeys(op.members) if account in group.members]
    absent = [account for account in op.members if account not in group.members]
    refused = world.choice("removal_refused_if_absent") if absent else AbsentMembers.NEVER
    if refused is AbsentMembers.ANY or (refused is AbsentMembers.ALL and not present):
        these = "none of the accounts is" if not present else f"{', '.join(absent)}: not"
        raise Refusal(f"{these} in {group.group_id}", kind=NotMember)
    if present:
        _take_out(world, "remove", group, actor, *present)
    return Success()


@_rule(LogoutGroup)
def _leave(world: World, op: LogoutGroup) -> Success:
    group, account = world.group(op.group_id), world.actor(op.user_name)
    _member(group, account)
    world.authorise(op, group, account)
    _take_out(world, "leave", group, account, account)
    return Success()


@_rule(SetMemberRole)
def _set_role(world: World, op: SetMemberRole) -> Success:
    group, actor = world.group(op.group_id), world.actor(op.user_name)
    world.authorise(op, group, actor)
    _member(group, op.member)
    owner, heir = group.owner, None
    if op.role is Role.CREATOR and owner not in ("", op.member):
        world.assume("former_creator_administers")  # no: the request gives no other role (SetMemberRole; G)
        group.members[owner] = Role.MEMBER
    elif op.role is not Role.CREATOR and op.member == owner:
        if not world.choice("creator_demotion_refused"):
            heir = group.successors((owner,), _heirs(world), world.nearest).get(owner)
        if heir is None:
            raise Refusal(f"{op.member} is the creator: hand that role to another member first", code=FORBIDDEN)
        group.members[heir] = Role.CREATOR
    group.members[op.member] = op.role
    world.record_change("set_role", group, actor, op.member)
    if heir is not None:
        world.record_change("hand_over", group, owner, heir)
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
    members_remain = len(group.members) > len(accounts)
    heirs = _heirs(world) if members_remain and group.owner in accounts else ()
    deleted = not members_remain and world.choice("empty_group_deleted")
    successors = group.successors(accounts, heirs, world.nearest)
    world.record_change(cause, group, actor, *accounts)
    group.dismiss(accounts, successors)
    for account, heir in successors.items():
        world.record_change("hand_over", group, account, heir)
    if deleted:
        del world.state.groups[group.group_id]


def _heirs(world: World) -> tuple[Roles, ...]:
    """Return the roles whose members take over from a creator: the nearest one with the first role that anyone has."""
    if world.choice("administrators_inherit"):
        return ((Role.ADMINISTRATOR,), (Role.MEMBER,))
    return ((Role.ADMINISTRATOR, Role.MEMBER),)
