"""The state of the emulated platform: groups with their members, tasks, and accounts that never logged in.

Its document, to store it as JSON, has no request log, no fault plan and no clock.
"""

from collections.abc import Callable, Container
from datetime import date, datetime
from enum import StrEnum
from functools import lru_cache, partial
from operator import attrgetter, eq
from typing import Any, cast

import attrs
from attrs import define, field, setters
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn

from rbim.emulator.documents import exactly, read_document, strict_converter
from rbim.emulator.faults import within
from rbim.emulator.rules import Rules
from rbim.errors import InvalidRequest
from rbim.operations.call_tasks import CallPolicy, CreateCallTask, NoCallPolicy
from rbim.operations.groups import GroupType, Permission, Role, Target

__all__ = ["VERSION", "Group", "Nearest", "Roles", "State", "Task", "export_state", "load_state", "replace_state"]

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


# ------------------------------------------------------------------------------ the document

VERSION = 1
"""The format version of the documents; no other is read."""

SHOWN = 5  # errors of a document in one message


def export_state(state: State) -> dict[str, Any]:
    """Return the whole state as a document of lists, mappings and strings, for ``json.dumps``.

    Its ``version`` is :data:`VERSION`. Times are ISO 8601 with their offset, dates ``YYYY-MM-DD``, no-call policies and
    codes as on the wire.
    """
    document: dict[str, Any] = _converter(Rules()).unstructure(state)
    return {"version": VERSION} | document


def load_state(state: State, document: object, rules: Rules | None = None) -> None:
    """Replace the state, in place, by a document of :func:`export_state`.

    The ``rules`` (default: the default ones) must be able to produce the state.

    Raises InvalidRequest that names the wrong fields (at most five); the state then does not change. Fields with a default
    in :class:`~rbim.emulator.State` and its parts may be left out.
    """
    if not isinstance(document, dict):
        raise InvalidRequest(f"the emulator's state must be an object, not {type(document).__name__}", field="version")
    fields = cast("dict[str, Any]", document).copy()
    version = fields.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise InvalidRequest(f"version: must be {VERSION} for the emulator's state, not {version!r}", field="version")
    try:
        loaded = read_document(_converter(rules or Rules()), fields, State, field="document", most=SHOWN)
    except InvalidRequest as error:
        raise InvalidRequest(f"invalid emulator state: {error.message}", field="document") from None
    replace_state(state, loaded)


def replace_state(state: State, other: State) -> None:
    """Set the state, in place, to another one."""
    for each in attrs.fields(State):
        setattr(state, each.name, getattr(other, each.name))


@lru_cache(maxsize=8)
def _converter(rules: Rules) -> Converter:
    """Return the converter of states; it refuses groups that the rules cannot produce."""
    converter = strict_converter()
    converter.register_unstructure_hook(StrEnum, attrgetter("value"))

    def several(value: Any, kind: Any) -> list[Any]:  # a JSON list; the type of its entries
        return converter.structure(exactly(value, list), cast("Any", list)[kind])

    def read_by_id(value: Any, kind: type[Any], id_of: Callable[[Any], str]) -> dict[str, Any]:
        entries = {id_of(each): each for each in several(value, kind)}
        if len(entries) < len(value):
            raise ValueError("two entries have the same identifier")
        return entries

    def write_by_id(entries: dict[str, Any]) -> list[Any]:
        return [converter.unstructure(each) for each in entries.values()]

    forms: list[tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = [
        (date, date.isoformat, date.fromisoformat),
        (datetime, datetime.isoformat, _read_moment),
        (set[str], sorted, lambda value: set(several(value, str))),
        (dict[str, None], list, lambda value: dict.fromkeys(several(value, str))),  # an ordered set
        (dict[str, Group], write_by_id, lambda value: read_by_id(value, Group, attrgetter("group_id"))),
        (dict[str, Task], write_by_id, lambda value: read_by_id(value, Task, attrgetter("task_id"))),
        (
            attrs.fields(CreateCallTask).call_policy.type,  # the texts of policies or objects, or null
            lambda value: None if value is None else [_policy_entry(each) for each in value],
            lambda value: None if value is None else tuple(several(value, NoCallPolicy)),
        ),
    ]
    for kind, write, read in forms:
        is_kind = partial(eq, kind)
        converter.register_unstructure_hook_func(is_kind, write)
        converter.register_structure_hook_func(is_kind, partial(_read_with, read))
    converter.register_structure_hook(NoCallPolicy, _read_policy)
    read_group = make_dict_structure_fn(Group, converter)
    converter.register_structure_hook(Group, lambda value, kind: _checked(read_group(value, kind), rules))
    return converter


def _read_with(read: Callable[[Any], Any], value: Any, _: object) -> Any:  # JSON; a value
    return read(value)


def _read_moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value} has no UTC offset")
    return moment


def _read_policy(value: Any, _: object) -> NoCallPolicy | CallPolicy:  # JSON
    return CallPolicy.from_wire(cast("dict[str, Any]", value)) if isinstance(value, dict) else NoCallPolicy.from_entry(value)


def _policy_entry(policy: NoCallPolicy | CallPolicy) -> Any:  # JSON
    return policy.wire if isinstance(policy, CallPolicy) else policy.entry.decode()


def _checked(group: Group, rules: Rules) -> Group:
    creators = list(group.members.values()).count(Role.CREATOR)
    if creators > 1 or (creators == 0 and rules.empty_group_deleted):
        raise ValueError(f"a group has exactly one creator, not {creators}")
    limit = group.type.member_limit
    if len(group.members) > limit:
        raise ValueError(f"a group of this type has at most {limit} members, not {len(group.members)}")
    if group.target is Target.DISCUSSION and group.type is not group.type.for_discussion:
        raise ValueError(f"a discussion group has a type of at most {group.type.for_discussion}, not {group.type}")
    waiting = group.members.keys() & (group.invited.keys() | group.applied.keys())
    if waiting:
        raise ValueError(f"members cannot wait to join, but these do: {', '.join(sorted(waiting))}")
    return group
