"""Work of a job: how its rows become operations, and how an answer settles each account."""

from __future__ import annotations

import json
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import attrs
from attrs import define, field, frozen
from cattrs.preconf.json import make_converter

from rbim._support.text import one_line
from rbim.errors import InvalidRequest, RbimError
from rbim.operations.base import Operation, fields_of
from rbim.operations.fails import OWN_NAMES, Fail, RequestAccounts, attributed, failures_in
from rbim.operations.groups import Invited, InviteJoinGroup
from rbim.validators import at_least_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rbim.dialect import Dialect

__all__ = [
    "ALL_DONE",
    "DONE_WORDS",
    "AccountState",
    "Chunk",
    "FailureReason",
    "RequestState",
    "Settlement",
    "Work",
    "failure_reason",
    "options_of",
]


class AccountState(IntEnum):
    """State of an account."""

    WAITING = 0
    """To be sent. All states to be sent are 0 or below."""

    DONE = 1
    """The platform confirmed it: invited, removed, joined."""

    REFUSED = 2
    """An answer lists it among those that failed."""

    FAILED = 3
    """Its request was refused as a whole, or could not be sent, for good."""

    UNKNOWN = 4
    """The platform may have acted."""

    AGAIN = -1
    """Waiting after the state UNKNOWN: sending it is a resend."""


class RequestState(IntEnum):
    """State of a request. A request is one sending."""

    OPEN = 0
    """Its intent is recorded, its outcome is not: it may have left."""

    ANSWERED = 1
    REFUSED = 2
    """The platform did nothing."""

    NOT_SENT = 3
    UNKNOWN = 4


DONE_WORDS = {"InviteJoinGroup": "invited", "DeleteGroupMember": "removed", "JoinGroup": "joined", "LogoutGroup": "left"}
"""The word for a done account, by operation."""


R = TypeVar("R")

MAX_REASON = 500
"""Characters of a reason that are kept."""


class FailureReason(NamedTuple):
    """Cause of a failure: text, the platform's code, the error's class (empty for an entry of ``fails``)."""

    text: str
    code: str = ""
    error: str = ""


UNATTRIBUTED = FailureReason("the answer lists a failure that names no account of the request")


def failure_reason(error: RbimError) -> FailureReason:
    """Return the cause of an error."""
    return FailureReason(one_line(error.message, MAX_REASON), getattr(error, "code", ""), type(error).__name__)


@define(eq=False, kw_only=True)
class Chunk:
    """The accounts of one request: chunk ``id`` of a sender group.

    ``number`` is that of the request whose intent was recorded last (0: none). ``attempt`` counts the sendings,
    ``unknown_attempts`` those of unknown outcome. ``repeats`` is the number of the request that this one sends again, or is
    a half of. ``resent``: an earlier sending may have taken effect. ``expired``: the timestamp of an earlier sending was too
    old. ``waited``: seconds of delay by rates and congestion, since it was its turn (``ready_since``). ``left``: when it
    left, in seconds of the run's clock, and ``begun``: in epoch seconds; None before. ``invalid``: why its operation
    cannot be made.
    """

    sender_group: int = 0
    id: int
    group: str
    user_name: str | None
    accounts: tuple[str, ...]
    number: int = 0
    attempt: int = 1
    unknown_attempts: int = 0
    repeats: int | None = None
    resent: bool = False
    expired: bool = False
    waited: float = 0.0
    ready_since: float = 0.0
    left: float | None = None
    begun: float | None = None
    operation: Any = field(default=None, repr=False)  # made on first use
    invalid: InvalidRequest | None = field(default=None, repr=False)


@frozen(kw_only=True)
class Settlement:
    """Result of a sending, for the request (``outcome``) and for its accounts.

    ``state`` applies to all accounts except those in ``individual`` (index in the chunk, state, reason); None: they keep
    waiting. ``again``: the request is to be sent again. ``anomalies``: entries of the answer that name no account of the
    request.
    """

    outcome: RequestState
    state: AccountState | None = None
    reason: FailureReason | None = None
    individual: tuple[tuple[int, AccountState, FailureReason], ...] = ()
    anomalies: tuple[tuple[str, FailureReason], ...] = ()
    again: bool = False


ALL_DONE = Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE)
"""The settlement of an answer that lists no failures."""

_values = make_converter()


def _default_chunk(work: Work[Any]) -> int:
    return work.dialect.invite_limit if work.account_field == "members" else 1


@frozen(kw_only=True)
class Work(Generic[R]):
    """``operation`` for each ``chunk`` of accounts of a group, with ``options`` for its other fields.

    The accounts fill its field ``members``, one by one ``member``, or, if it has neither, ``user_name`` (the acting
    account). ``chunk``: accounts in one request (default: the dialect's limit for invitations; 1 if the operation takes one
    account).
    """

    operation: type[Operation[R]]
    dialect: Dialect
    options: Mapping[str, Any] = field(factory=dict[str, Any])
    chunk: int = field(default=attrs.Factory(_default_chunk, takes_self=True), validator=at_least_one)

    def __attrs_post_init__(self) -> None:
        if "group_id" not in self._fields:
            raise InvalidRequest(
                f"{self.operation.__name__} has no group_id: a job needs an operation on a group", field="operation"
            )
        if unknown := set(self.options) - (set(self._fields) - {"group_id", self.account_field}):
            raise InvalidRequest(f"{self.operation.__name__} has no option {', '.join(sorted(unknown))}", field="options")
        given = {*self.options, "group_id", self.account_field}
        if missing := [name for name, each in self._fields.items() if each.default is attrs.NOTHING and name not in given]:
            raise InvalidRequest(f"{self.operation.__name__} needs {', '.join(missing)} in options", field="options")
        self.make(Chunk(id=0, group="g", user_name=None, accounts=("a",)))  # validates the options
        limit = self.chunk if self.account_field == "members" else 1
        if self.operation is InviteJoinGroup:
            limit = self.dialect.invite_limit
        if self.chunk > limit:
            raise InvalidRequest(
                f"chunk: {self.chunk} is too large, use at most {limit} accounts in one request", field="chunk", limit=limit
            )

    @cached_property
    def _fields(self) -> dict[str, attrs.Attribute[Any]]:
        return {each.name: each for each in fields_of(self.operation)}

    @cached_property
    def account_field(self) -> str:
        """Name of the field that takes the accounts."""
        return next((name for name in ("members", "member") if name in self._fields), "user_name")

    def make(self, chunk: Chunk) -> Operation[R]:
        """Return the operation for a chunk. Raises InvalidRequest."""
        values: dict[str, Any] = {**self.options, "group_id": chunk.group}
        if chunk.user_name is not None:
            values["user_name"] = chunk.user_name
        values[self.account_field] = chunk.accounts if self.account_field == "members" else chunk.accounts[0]
        return cast("Callable[..., Operation[R]]", self.operation)(**values)

    def plain_options(self) -> dict[str, Any]:
        """Return the options as JSON values, as a journal stores them."""
        plain: dict[str, Any] = json.loads(_values.dumps(dict(self.options)))
        return plain

    def answered(self, chunk: Chunk, answer: object) -> Settlement:
        """Return the settlement of a successful answer: all accounts done, except those that ``fails`` names as refused.

        After a lost sending, those that it names are unknown: the lost one may have added them. ``already_reasons`` has the
        reasons that say so; then they are done. If an entry names no account of the request, or a field that is not
        read tells of failures, the others are unknown: one of them may be the refused one.
        """
        fails, unread = _fails(answer)
        if not fails and not unread:
            return ALL_DONE
        indexes = {account: index for index, account in enumerate(chunk.accounts)}
        individual: dict[int, tuple[int, AccountState, FailureReason]] = {}
        anomalies: list[tuple[str, FailureReason]] = []
        for entry in attributed(fails, [unread] if unread else [], RequestAccounts(chunk.accounts)):
            index = None if entry.account is None else indexes.get(entry.account)
            if index is None:
                reason = FailureReason(one_line(entry.reason, MAX_REASON))
                anomalies.append((one_line(entry.member or _shown(entry.extra), MAX_REASON), reason))
            elif index not in individual:
                state = AccountState.REFUSED
                if chunk.resent:  # an account that the lost request added is a member already, in words of the platform
                    done = entry.reason in self.dialect.already_reasons
                    state = AccountState.DONE if done else AccountState.UNKNOWN
                individual[index] = (index, state, FailureReason(one_line(entry.reason or _shown(entry.extra), MAX_REASON)))
        return Settlement(
            outcome=RequestState.ANSWERED,
            state=AccountState.UNKNOWN if anomalies else AccountState.DONE,
            reason=UNATTRIBUTED if anomalies else None,
            individual=tuple(individual.values()),
            anomalies=tuple(anomalies),
        )


def _fails(answer: object) -> tuple[tuple[Fail, ...], dict[str, Any]]:
    """Return the entries of ``fails``, and the failures under other names."""
    declared: Sequence[Any] | None = getattr(answer, "fails", None)
    fails = tuple(e if isinstance(e, Fail) else Fail(member=e.member, reason=e.reason) for e in declared or ())
    extra: Mapping[str, Any] = getattr(answer, "extra", {})
    if isinstance(answer, Invited) or not extra:  # the entries of Invited include those under other names
        return fails, {}
    read = OWN_NAMES if declared is not None else ()
    return fails, failures_in({key: value for key, value in extra.items() if key.casefold() not in read})


def _shown(extra: Mapping[str, Any]) -> str:
    return json.dumps(dict(extra), ensure_ascii=False) if extra else ""


def options_of(operation: type[Operation[Any]], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an operation from JSON values, see :meth:`Work.plain_options`."""
    types: dict[str, Any] = {each.name: each.type for each in fields_of(operation)}
    return {name: _values.structure(value, types.get(name, Any)) for name, value in plain.items()}
