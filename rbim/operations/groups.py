"""The ten group operations, their answers, and the namespace ``client.groups``.

``invite_all`` and ``remove_all`` of the namespace send one operation in several requests, each with a part of the accounts.

Fields, limits and defaults are those of the interface description ("Resources and their fields", "Endpoints", "Limits").
``user_name`` is optional everywhere, since the description states both; the client can supply it.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from attrs import evolve, field, frozen

from rbim._support.json_values import ToDict
from rbim._support.lazy_names import late_anyio
from rbim._support.text import empty
from rbim.dialect import Dialect
from rbim.errors import AuthenticationError, InvalidRequest, NotSent, Outcome, RbimError, Unanswered
from rbim.operations.base import Answer, Endpoint, Operation, Repeat, described, operation, wire
from rbim.operations.fails import Fail, RequestAccounts, attributed, failures_in
from rbim.operations.namespace import Method, Namespace, Sender
from rbim.validators import Accounts, accounts, each_account, one_of, or_none, text

__all__ = [
    "GROUP",
    "CreateGroup",
    "Created",
    "DeleteGroup",
    "DeleteGroupMember",
    "GroupDetail",
    "GroupFound",
    "GroupOperation",
    "GroupType",
    "Groups",
    "GroupsFound",
    "InviteJoinGroup",
    "Invited",
    "InvitedAll",
    "JoinGroup",
    "LogoutGroup",
    "ModifyGroup",
    "Permission",
    "QueryGroupDetail",
    "RemovedAll",
    "Role",
    "SearchPublicGroups",
    "SetMemberRole",
    "Success",
    "Target",
]

R_co = TypeVar("R_co", covariant=True)

NAME = 50
ANNOUNCEMENT = 200
REASON = 50

NAMED = 3  # accounts that a confirmation question names; more are only counted


class GroupType(StrEnum):
    """The type of a group, which determines its capacity ("Group type and capacity")."""

    TEMPORARY = "0"
    PAID_300 = "1"
    PAID_500 = "2"
    PAID_1000 = "3"
    VIP = "4"

    @property
    def member_limit(self) -> int:
        """The maximum number of members of a group of this type, including its owner."""
        return {"0": 100, "1": 300, "2": 500, "3": 1000, "4": 2000}[self.value]

    @property
    def for_discussion(self) -> "GroupType":
        """The type of a discussion group that is created with this type: above 2 becomes 2."""
        return min(self, GroupType.PAID_500)


class Permission(StrEnum):
    """The join mode of a group. Answers show only ``OPEN`` and ``VERIFIED``."""

    OPEN = "0"
    """Accounts join directly."""

    VERIFIED = "1"
    """Accounts join after identity verification."""

    PRIVATE = "2"
    """A private group; searches do not find it."""


class Target(StrEnum):
    """The kind of group: a discussion group or a group."""

    DISCUSSION = "0"
    GROUP = "1"


class Role(StrEnum):
    """The role of a member."""

    CREATOR = "0"
    ADMINISTRATOR = "1"
    MEMBER = "2"


@frozen(kw_only=True)
class Success(Answer):
    """The answer of operations that return only their success.

    If :attr:`failures` is not empty, the operation may have failed for some of its accounts, or for all.
    """

    extra: Mapping[str, Any] = field(factory=empty, hash=False)

    @property
    def failures(self) -> dict[str, Any]:
        """The fields of ``extra``, at any depth, that have "fail" in their key and are not empty, false or 0, by path."""
        return failures_in(self.extra)


@frozen(kw_only=True)
class Created(Answer):
    """The new group's ``group_id``: opaque text such as ``g80000049837291``."""

    group_id: str
    extra: Mapping[str, Any] = field(factory=empty, hash=False)


@frozen(kw_only=True)
class Invited(Answer):
    """The result of an invitation: each account of the request is invited, refused or unknown.

    ``invited``: the accounts that were invited. :attr:`refused`: those that the answer lists as failed, with the reason.
    ``unknown``: accounts of which the answer does not say whether they were invited, because an entry of ``fails`` names no
    account of the request, or a field of ``extra`` has "fail" in its key and is not empty; then no account is reported as
    invited. ``fails``: all entries as the platform sent them, and one for such fields, so an empty ``fails`` means that
    everybody was invited. An answer that :meth:`InviteJoinGroup.complete` has not completed with its request has neither
    ``invited`` nor ``unknown``.
    """

    invited: tuple[str, ...] = field(default=(), metadata=wire(local=True))
    unknown: tuple[str, ...] = field(default=(), metadata=wire(local=True))
    fails: tuple[Fail, ...] = ()
    extra: Mapping[str, Any] = field(factory=empty, hash=False)

    @property
    def refused(self) -> dict[str, str]:
        """The accounts that were not invited, with the reason that the platform gives."""
        return {fail.account: fail.reason for fail in reversed(self.fails) if fail.account is not None}

    @property
    def unattributed(self) -> tuple[Fail, ...]:
        """The entries of ``fails`` that name no account of the request, or not clearly one."""
        return tuple(fail for fail in self.fails if fail.account is None)


@frozen(kw_only=True)
class GroupFound(Answer):
    """One group found by a search. ``count`` is None if its text, kept in ``count_text``, is not a number.

    ``type`` and ``permission`` are plain text if the value is not in their enum.
    """

    group_id: str = field(default="", metadata=wire(also=("id",)))
    name: str = ""
    type: GroupType | str | None = None
    count: int | None = None
    count_text: str = field(default="", metadata=wire("count"))
    permission: Permission | str | None = None
    extra: Mapping[str, Any] = field(factory=empty, hash=False)


@frozen(kw_only=True)
class GroupsFound(Answer):
    """The answer to a search: an iterable over ``groups``; it is empty if nothing matched."""

    groups: tuple[GroupFound, ...] = field(default=(), metadata=wire(nest="group"))
    extra: Mapping[str, Any] = field(factory=empty, hash=False)

    def __iter__(self) -> Iterator[GroupFound]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


@frozen(kw_only=True)
class GroupDetail(Answer):
    """The details of a group.

    ``count`` and ``date_created`` are None if their text, kept in ``count_text`` and ``date_created_text``, cannot be read;
    the date is in the dialect's zone. ``permission`` is never ``PRIVATE`` in an answer.
    """

    name: str = ""
    owner: str = ""
    declared: str = ""
    count: int | None = None
    count_text: str = field(default="", metadata=wire("count"))
    date_created: datetime | None = None
    date_created_text: str = field(default="", metadata=wire("dateCreated"))
    permission: Permission | str | None = None
    target: Target | str | None = None
    type: GroupType | str | None = None
    group_domain: str | None = None
    extra: Mapping[str, Any] = field(factory=empty, hash=False)


GROUP = Endpoint(path="/{api_version}/Application/{app_id}/IM/Group/{name}")
"""The group operations' endpoint ("Common rules for the group operations")."""


@frozen(kw_only=True)
class GroupOperation(Operation[R_co]):
    """The base class of group operations, also of new ones. ``user_name`` is the acting account (None: the client's)."""

    endpoint: ClassVar[Endpoint] = GROUP
    user_name: str | None = field(
        default=None,
        validator=or_none(text()),
        metadata=described("The acting account (default: the one that is configured)."),
    )


@operation("CreateGroup")
@frozen(kw_only=True)
class CreateGroup(GroupOperation[Created]):
    """Create a group.

    ``name`` has at most 50 characters, ``declared`` (the announcement) at most 200. A discussion group (``target``) of a
    type above ``PAID_500`` becomes ``PAID_500``. Never repeated automatically: a second request creates a second group.
    """

    name: str = field(validator=text(at_most=NAME), metadata=described("The name of the group."))
    type: GroupType = field(
        validator=one_of(GroupType),
        metadata=described("The type of the group, which determines how many members it may have."),
    )
    permission: Permission = field(
        default=Permission.OPEN,
        validator=one_of(Permission),
        metadata=described(
            "open: accounts join directly; verified: after a check of their identity; private: no search finds it."
        ),
    )
    declared: str | None = field(
        default=None,
        validator=text(at_most=ANNOUNCEMENT, optional=True),
        metadata=described("The announcement of the group."),
    )
    target: Target = field(
        default=Target.GROUP, validator=one_of(Target), metadata=described("A discussion group, or a group.")
    )
    group_domain: str | None = field(
        default=None,
        validator=text(optional=True),
        metadata=described("A text of your own, which the platform keeps with the group."),
    )


@operation("ModifyGroup", repeat=Repeat.IDEMPOTENT)
@frozen(kw_only=True)
class ModifyGroup(GroupOperation[Success]):
    """Change a group's name, join mode, announcement or extension field.

    ``permission`` is required; None leaves it out. The platform's default for a missing one is ``OPEN``, which
    would open a private group, and no answer shows that a group is private. ``name`` has at most 50 characters,
    ``declared`` 200.
    """

    group_id: str = field(validator=text(), metadata=described("The group."))
    name: str = field(validator=text(at_most=NAME), metadata=described("The new name of the group."))
    permission: Permission | None = field(
        validator=one_of(Permission, optional=True), metadata=described("How accounts join.")
    )
    declared: str | None = field(
        default=None,
        validator=text(at_most=ANNOUNCEMENT, optional=True),
        metadata=described("The new announcement of the group."),
    )
    group_domain: str | None = field(
        default=None,
        validator=text(optional=True),
        metadata=described("A text of your own, which the platform keeps with the group."),
    )


@operation("DeleteGroup", repeat=Repeat.IDEMPOTENT, destroys=lambda op: f"delete group {op.group_id}")
@frozen(kw_only=True)
class DeleteGroup(GroupOperation[Success]):
    """Delete a group."""

    group_id: str = field(validator=text(), metadata=described("The group to delete."))


@operation(
    "SearchPublicGroups",
    paths=(GROUP.path, GROUP.path.replace("{name}", "SearchPublicGroup")),
    repeat=Repeat.SAFE,
)
@frozen(kw_only=True)
class SearchPublicGroups(GroupOperation[GroupsFound]):
    """Search the groups that are not private.

    ``group_id`` takes precedence over ``name``. The search by name is fuzzy, but a search text of digits only, or of letters
    only, must be the whole name. There is no paging: the platform returns one list.
    """

    group_id: str | None = field(
        default=None, validator=text(optional=True), metadata=described("Search for the group with this identifier.")
    )
    name: str | None = field(
        default=None, validator=text(optional=True), metadata=described("Search for groups with this text in their names.")
    )

    @classmethod
    def path(cls, dialect: "Dialect") -> str:
        """Return the plural path, or the singular path of the request sample."""
        return cls.spec.paths[dialect.singular_search]


@operation("QueryGroupDetail", repeat=Repeat.SAFE)
@frozen(kw_only=True)
class QueryGroupDetail(GroupOperation[GroupDetail]):
    """Get a group's name, owner, announcement, member count, creation time and join mode."""

    group_id: str = field(validator=text(), metadata=described("The group."))


@operation("JoinGroup")
@frozen(kw_only=True)
class JoinGroup(GroupOperation[Success]):
    """Join a group, or apply if the group verifies; ``declared`` is the reason, at most 50 characters."""

    group_id: str = field(validator=text(), metadata=described("The group to join."))
    declared: str | None = field(
        default=None, validator=text(at_most=REASON, optional=True), metadata=described("The reason for the application.")
    )


def _inviting(op: "InviteJoinGroup") -> Repeat:
    """idempotent; never with confirmation"""  # noqa: D400  # a cell of the operations table
    return Repeat.NEVER if op.needs_confirmation else Repeat.IDEMPOTENT


@operation("InviteJoinGroup", repeat=_inviting)
@frozen(kw_only=True)
class InviteJoinGroup(GroupOperation[Invited]):
    """Invite users into a group (by an administrator).

    ``members`` are accounts that have logged in before, at most the dialect's ``invite_limit`` (default: 50); an account
    that is listed twice is sent once. With ``needs_confirmation`` each invited account must agree; without it, they join at
    once. ``declared`` is the reason, at most 50 characters. The answer says of each account whether it was invited.
    """

    group_id: str = field(validator=text(), metadata=described("The group."))
    members: tuple[str, ...] = field(
        converter=accounts, validator=each_account, metadata=described("The accounts to invite.")
    )
    needs_confirmation: bool = field(
        default=False,
        validator=one_of(bool),
        metadata=wire("confirm", values={True: "0", False: "1"}) | described("Each invited account must agree."),
    )
    declared: str | None = field(
        default=None, validator=text(at_most=REASON, optional=True), metadata=described("The reason for the invitation.")
    )

    def check(self, dialect: "Dialect", _clock: object, /) -> None:
        """Raise InvalidRequest for more members than one request takes: nothing is split silently."""
        if len(self.members) > dialect.invite_limit:
            raise InvalidRequest(
                f"members: at most {dialect.invite_limit} in one request, not {len(self.members)}; "
                "use groups.invite_all, or rbim.bulk for larger jobs",
                field="members",
                limit=dialect.invite_limit,
                length=len(self.members),
            )

    def complete(self, answer: Any, /, *, app_id: str, confirmed: bool) -> Invited:
        """Return the answer with the accounts that were invited, and those of which that is unknown.

        A code that means "already in the wanted state" does not say which of several accounts it is about.
        """
        extra = answer.extra
        message = isinstance(extra.get(self.endpoint.message), str)
        more = len(extra) > message  # than the platform's message
        if answer.fails or more:
            beside = list(_beside(extra)) if more else []
            fails = attributed(answer.fails, beside, RequestAccounts(self.members, app_id))
            named = {fail.account for fail in fails}
            others = tuple([each for each in self.members if each not in named])  # a generator takes twice the time
            if None in named:
                return Invited(unknown=others, fails=fails, extra=extra)
            if fails:
                return Invited(invited=others, fails=fails, extra=extra)
        if confirmed and len(self.members) > 1:
            return Invited(unknown=self.members, extra=extra)
        object.__setattr__(answer, "invited", self.members)  # a second answer would take longer than to read the first one
        completed: Invited = answer
        return completed


def _beside(extra: Mapping[str, Any]) -> Iterator[Any]:  # JSON
    """Yield what stands beside the entries of ``fails``, and the failures under other names."""
    own = extra.get("fails", [])
    yield from own if isinstance(own, list) else [own]
    if unread := failures_in({key: value for key, value in extra.items() if key != "fails"}):
        yield unread


def _removing(op: "DeleteGroupMember") -> str:
    few = len(op.members) <= NAMED
    return f"remove {', '.join(op.members) if few else f'{len(op.members)} accounts'} from group {op.group_id}"


@operation("DeleteGroupMember", repeat=Repeat.IDEMPOTENT, destroys=_removing)
@frozen(kw_only=True)
class DeleteGroupMember(GroupOperation[Success]):
    """Remove members from a group (by an administrator); an account that is listed twice is sent once."""

    group_id: str = field(validator=text(), metadata=described("The group."))
    members: tuple[str, ...] = field(
        converter=accounts, validator=each_account, metadata=described("The accounts to remove.")
    )


@operation("LogoutGroup", repeat=Repeat.IDEMPOTENT)
@frozen(kw_only=True)
class LogoutGroup(GroupOperation[Success]):
    """Leave a group (by a member)."""

    group_id: str = field(validator=text(), metadata=described("The group to leave."))


def _giving_role(op: "SetMemberRole") -> Repeat:
    """idempotent; never for the creator's role"""  # noqa: D400  # a cell of the operations table
    return Repeat.NEVER if op.role is Role.CREATOR else Repeat.IDEMPOTENT


@operation("SetMemberRole", repeat=_giving_role)
@frozen(kw_only=True)
class SetMemberRole(GroupOperation[Success]):
    """Set a member's role. A transfer of the creator's role is never repeated automatically."""

    group_id: str = field(validator=text(), metadata=described("The group."))
    member: str = field(validator=text(), metadata=described("The account."))
    role: Role = field(validator=one_of(Role), metadata=described("The new role of the account."))


PARALLEL = 8
"""Requests of one ``invite_all`` at once: few, because the deadline of each begins when it waits for its turn."""


@frozen(kw_only=True)
class InvitedAll(ToDict):
    """The result of :meth:`Groups.invite_all`: each account is invited, refused or unknown.

    ``invited``: the accounts that were invited. ``refused``: those that were surely not, with the reason: that of the
    platform for the account, or the message of the error of its request. ``unknown``: the others. ``errors``: the accounts
    whose request failed, with its error; those whose error has the outcome ``NOT_SENT`` can be sent again.
    """

    invited: tuple[str, ...]
    refused: Mapping[str, str] = field(hash=False)
    unknown: tuple[str, ...]
    errors: Mapping[str, RbimError] = field(hash=False)


@frozen(kw_only=True)
class RemovedAll(ToDict):
    """The result of :meth:`Groups.remove_all`: each account is removed, refused or unknown, as in :class:`InvitedAll`."""

    removed: tuple[str, ...]
    refused: Mapping[str, str] = field(hash=False)
    unknown: tuple[str, ...]
    errors: Mapping[str, RbimError] = field(hash=False)


class Groups(Namespace):
    """The ten group operations as methods."""

    create = Method(CreateGroup)
    modify = Method(ModifyGroup)
    delete = Method(DeleteGroup)
    search = Method(SearchPublicGroups)
    detail = Method(QueryGroupDetail)
    join = Method(JoinGroup)
    invite = Method(InviteJoinGroup)
    remove = Method(DeleteGroupMember)
    leave = Method(LogoutGroup)
    set_role = Method(SetMemberRole)

    async def invite_all(
        self,
        *,
        group_id: str,
        members: Accounts,
        needs_confirmation: bool = False,
        declared: str | None = None,
        user_name: str | None = None,
    ) -> InvitedAll:
        """Invite any number of accounts, with as many requests as needed, and return what became of each account.

        A request takes the dialect's ``invite_limit`` (default: 50) of the accounts, and 8 requests run at once; each is a
        call with its own deadline and retries. An account that is listed twice is sent once. A request that fails does not
        end the others: its accounts are in the answer with the error. After an AuthenticationError no further request is
        sent. It raises InvalidRequest before anything is sent. If it is cancelled there is no answer, and requests that have
        left may have acted: ``rbim.bulk`` keeps a journal.
        """
        whole = InviteJoinGroup(
            group_id=group_id,
            members=members,
            needs_confirmation=needs_confirmation,
            declared=declared,
            user_name=user_name,
        )
        done, refused, unknown, errors = await _in_parts(self.sender, whole)
        return InvitedAll(invited=done, refused=refused, unknown=unknown, errors=errors)

    async def remove_all(self, *, group_id: str, members: Accounts, user_name: str | None = None) -> RemovedAll:
        """Remove any number of accounts, with as many requests as needed, and return what became of each account.

        The requests are as large, and as many at once, as those of :meth:`invite_all`, and fail in the same way.
        """
        whole = DeleteGroupMember(group_id=group_id, members=members, user_name=user_name)
        done, refused, unknown, errors = await _in_parts(self.sender, whole)
        return RemovedAll(removed=done, refused=refused, unknown=unknown, errors=errors)


async def _in_parts(
    sender: Sender, whole: InviteJoinGroup | DeleteGroupMember
) -> tuple[tuple[str, ...], dict[str, str], tuple[str, ...], dict[str, RbimError]]:
    """Send an operation in parts; return the accounts that are done, refused (with the reason), unknown, and the errors."""
    dialect: Dialect = getattr(sender, "dialect", None) or Dialect()
    whole.check_lengths(dialect)
    size, members = dialect.invite_limit, whole.members
    parts = [evolve(whole, members=members[at : at + size]) for at in range(0, len(members), size)]
    done, unknown = list[str](), list[str]()
    refused, errors = dict[str, str](), dict[str, RbimError]()
    for part, answer in zip(parts, await _sent(sender, parts), strict=True):
        if isinstance(answer, Invited):
            done += answer.invited
            refused |= answer.refused
            unknown += answer.unknown
        elif not isinstance(answer, RbimError):
            if answer.failures:  # a field that is not read tells of failures, of whichever accounts
                unknown += part.members
            else:
                done += part.members
        else:
            errors |= dict.fromkeys(part.members, answer)
            if answer.outcome is Outcome.UNKNOWN:
                unknown += part.members
            else:
                refused |= dict.fromkeys(part.members, answer.message)
    return tuple(done), refused, tuple(unknown), errors


async def _sent(sender: Sender, parts: Sequence[InviteJoinGroup | DeleteGroupMember]) -> list[Invited | Success | RbimError]:
    """Send operations, ``PARALLEL`` at once, and return the answer or the error of each."""
    answers: list[Invited | Success | RbimError] = [Unanswered("the sender cancelled the request")] * len(parts)
    waiting = iter(enumerate(parts))
    credentials_refused: AuthenticationError | None = None
    unexpected: list[Exception] = []

    async def work() -> None:
        nonlocal credentials_refused
        for index, part in waiting:
            if credentials_refused is not None:
                answers[index] = NotSent(f"not sent after: {credentials_refused.message}")
                continue
            try:
                answers[index] = await sender.send(part)
            except RbimError as error:
                answers[index] = error
                if isinstance(error, AuthenticationError):
                    credentials_refused = error
            except Exception as error:  # of a sender that is no client
                unexpected.append(error)
                tasks.cancel_scope.cancel()

    async with late_anyio().create_task_group() as tasks:
        for _ in range(min(PARALLEL, len(parts))):
            tasks.start_soon(work)
    if unexpected:
        raise unexpected[0]
    return answers
