"""The state of the emulated platform: groups with their members, tasks, and accounts that never logged in."""

from collections.abc import Callable, Container
from datetime import datetime

from attrs import define, field, setters

from rbim.emulator.faults import within
from rbim.operations.call_tasks import CreateCallTask
from rbim.operations.groups import GroupType, Permission, Role, Target

__all__ = ["Group", "Nearest", "Roles", "State", "Task"]

Roles = tuple[Role, ...]
Nearest = Callable[[list[str], list[str]], str]
"""Picks one of several members, given those who joined before an account and those who joined after it."""

FIRST_GROUP = 49837291
FIRST_TASK = 1001
MOST_MADE = 10**12  # so that the identifiers of groups keep their 13 digits


@define(kw_only=True)
class Group:
    """One group. ``members`` maps accounts to roles in the order of joining; exactly one is the creator, if there are any.

    ``invited`` and ``applied`` are accounts whose invitation or request waits for an answer that no described operation
    gives.
    """

    group_id: str
    name: str
    type: GroupType
    permission: Permission
    target: Target
    declared: str
    group_domain: str | None
    created: datetime
    members: dict[str, Role]
    invited: dict[str, None] = field(factory=dict[str, None])
    applied: dict[str, None] = field(factory=dict[str, None])

    @property
    def owner(self) -> str:
        """The creator's account; empty if the group has no members."""
        return next((account for account, role in self.members.items() if role is Role.CREATOR), "")

    @property
    def room(self) -> int:
        """The number of accounts that can still join, if the owner takes one of the places that the type has."""
        return self.type.member_limit - len(self.members)

    def admit(self, account: str) -> None:
        """Make the account an ordinary member, and remove its invitation and its request to join."""
        self.members[account] = Role.MEMBER
        self.invited.pop(account, None)
        self.applied.pop(account, None)

    def successors(self, accounts: tuple[str, ...], heirs: tuple[Roles, ...], nearest: Nearest) -> dict[str, str]:
        """Return the remaining members who take over the roles of accounts that go, by account.

        An administrator is succeeded by the nearest member (TEAM_ADD_ADMIN). A creator is succeeded by the nearest member
        of the first of ``heirs`` that any remaining member has.
        """
        below: dict[Role, tuple[Roles, ...]] = {Role.CREATOR: heirs, Role.ADMINISTRATOR: ((Role.MEMBER,),), Role.MEMBER: ()}
        order = list(self.members)
        remaining = {account: role for account, role in self.members.items() if account not in accounts}
        found: dict[str, str] = {}
        for account in accounts:
            role, at = self.members[account], order.index(account)
            for roles in below[role]:
                before, after = (
                    [each for each in part if remaining.get(each) in roles] for part in (order[:at], order[at:])
                )
                if before or after:
                    found[account] = heir = nearest(before, after)
                    remaining[heir] = role
                    break
        return found

    def dismiss(self, accounts: tuple[str, ...], successors: dict[str, str]) -> None:
        """Remove the accounts, and give their roles to their successors."""
        roles = {account: self.members.pop(account) for account in accounts}
        for account, heir in successors.items():
            self.members[heir] = roles[account]


@define(kw_only=True)
class Task:
    """One outbound-call task, as requested."""

    task_id: str
    request: CreateCallTask
    created: datetime


@define
class State:
    """The whole state, by identifier.

    Accounts in ``never_logged_in`` cannot be invited; ``known`` are the only accounts that have logged in (None: all have).
    ``made`` is the number of identifiers made so far.
    """

    groups: dict[str, Group] = field(factory=dict[str, Group])
    tasks: dict[str, Task] = field(factory=dict[str, Task])
    never_logged_in: set[str] = field(factory=set[str])
    known: set[str] | None = None
    made: int = field(default=0, validator=within(0, MOST_MADE), on_setattr=setters.NO_OP)

    def has_logged_in(self, account: str) -> bool:
        """Return whether the account has ever logged in from a client: all have, except those set otherwise."""
        return account not in self.never_logged_in and (self.known is None or account in self.known)

    def new_group_id(self) -> str:
        """Return a new group identifier, in the platform's form."""
        return self._new(self.groups, "g8{:013d}", FIRST_GROUP)

    def new_task_id(self) -> str:
        """Return a new task identifier."""
        return self._new(self.tasks, "{}", FIRST_TASK)

    def _new(self, existing: Container[str], form: str, first: int) -> str:
        while True:
            identifier = form.format(first + self.made)
            self.made += 1
            if identifier not in existing:  # a state written by hand may have any identifiers
                return identifier
