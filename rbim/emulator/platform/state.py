"""What the emulated platform remembers: groups with their members, tasks, and accounts that never logged in."""

from collections.abc import Container
from datetime import datetime

from attrs import define, field

from rbim.operations.call_tasks import CreateCallTask
from rbim.operations.groups import GroupType, Permission, Role, Target

__all__ = ["Group", "State", "Task"]

FIRST_GROUP = 49837291
FIRST_TASK = 1001


@define(kw_only=True)
class Group:
    """One group. ``members`` maps accounts to roles in the order in which they came; exactly one is the creator.

    ``invited`` and ``applied`` wait for an answer that no described operation can give.
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
        """The creator's account."""
        return next(account for account, role in self.members.items() if role is Role.CREATOR)

    @property
    def is_full(self) -> bool:
        """Whether the group holds as many members as its type takes."""
        return len(self.members) >= self.type.member_limit

    def admit(self, account: str) -> None:
        """Make the account an ordinary member; whatever it waited for is settled."""
        self.members[account] = Role.MEMBER
        self.invited.pop(account, None)
        self.applied.pop(account, None)

    def dismiss(self, accounts: tuple[str, ...], heirs: tuple[tuple[Role, ...], ...]) -> dict[str, str]:
        """Take the accounts out and return whom their roles pass to, among those who stay.

        The nearest member, the one who came first, follows an administrator (TEAM_ADD_ADMIN). A creator is followed by the
        nearest of the first of ``heirs``, sets of roles, that anybody has.
        """
        roles = {account: self.members.pop(account) for account in accounts}
        followed: dict[str, str] = {}
        for account, role in roles.items():
            below = {Role.CREATOR: heirs, Role.ADMINISTRATOR: ((Role.MEMBER,),), Role.MEMBER: ()}[role]
            heir = next((each for lower in below for each, has in self.members.items() if has in lower), None)
            if heir is not None:
                self.members[heir] = role
                followed[account] = heir
        return followed


@define(kw_only=True)
class Task:
    """One outbound-call task, as it was asked for."""

    task_id: str
    request: CreateCallTask
    created: datetime


@define
class State:
    """Everything, by identifier."""

    groups: dict[str, Group] = field(factory=dict[str, Group])
    tasks: dict[str, Task] = field(factory=dict[str, Task])
    never_logged_in: set[str] = field(factory=set[str])
    known: set[str] | None = None
    made: int = 0

    def has_logged_in(self, account: str) -> bool:
        """Tell whether the account has ever logged in from a client: all have, but those that are said not to."""
        return account not in self.never_logged_in and (self.known is None or account in self.known)

    def new_group_id(self) -> str:
        """Return an identifier that looks like the platform's and that no group has."""
        return self._new(self.groups, "g8{:013d}", FIRST_GROUP)

    def new_task_id(self) -> str:
        """Return a task's identifier, which no other has."""
        return self._new(self.tasks, "{}", FIRST_TASK)

    def _new(self, taken: Container[str], shape: str, first: int) -> str:
        while True:
            made = shape.format(first + self.made)
            self.made += 1
            if made not in taken:  # a state written by hand may hold any identifier
                return made
