"""What a job does: which operation its rows become, and what an answer to it says of each account."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

import attrs
from attrs import define, field, frozen
from cattrs.preconf.json import make_converter

from rbim._support.text import one_line
from rbim.bulk.states import DONE_WORDS, AccountState, RequestState
from rbim.errors import InvalidRequest, RbimError
from rbim.operations.base import Operation, fields_of
from rbim.operations.groups import InviteJoinGroup
from rbim.validators import at_least_one

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rbim.dialect import Dialect

__all__ = ["Chunk", "FailureReason", "Settlement", "Work", "failure_reason"]

R = TypeVar("R")

REASON = 500
"""Characters of a reason that are kept."""


class FailureReason(NamedTuple):
    """Why something was not done: words, the platform's code, the error's class (empty for an entry of ``fails``)."""

    text: str
    code: str = ""
    error: str = ""


def failure_reason(error: RbimError) -> FailureReason:
    """Return why a request was not answered well."""
    return FailureReason(one_line(error.message, REASON), getattr(error, "code", ""), type(error).__name__)


@define(eq=False, kw_only=True)
class Chunk:
    """What one request is to hold: those accounts of a lane that wait, from row ``first`` to row ``last`` of the input.

    ``number`` is that of its request, once it was begun. ``attempt`` counts its sendings, ``lost`` those of unknown outcome.
    ``repeats`` is the number of the request that it sends again, or is a half of, ``planned`` its own where that is there
    before. ``resent`` tells that an earlier sending may have had its effect, ``expired`` that its timestamp was too old.
    ``waited`` is the seconds that rates and halts held it back.
    """

    lane: int
    group: str
    user_name: str | None
    first: int
    last: int
    accounts: tuple[str, ...]
    number: int = 0
    attempt: int = 1
    lost: int = 0
    repeats: int | None = None
    planned: int | None = None
    resent: bool = False
    expired: bool = False
    waited: float = 0.0
    operation: Any = field(default=None, repr=False)  # made when it is first needed


@frozen(kw_only=True)
class Settlement:
    """What is known after a sending: of the request, and of its accounts.

    ``state`` is that of all accounts but those in ``apart`` (place among them, state, why); None where they wait on.
    ``again``: they are to be sent again. ``anomalies`` are entries of the answer for accounts that were not sent.
    """

    outcome: RequestState
    state: AccountState | None = None
    why: FailureReason | None = None
    apart: tuple[tuple[int, AccountState, FailureReason], ...] = ()
    anomalies: tuple[tuple[str, FailureReason], ...] = ()
    again: bool = False


_values = make_converter()


def _default_chunk(work: Work[Any]) -> int:
    return work.dialect.invite_limit if work.place == "members" else 1


@frozen(kw_only=True)
class Work(Generic[R]):
    """``operation`` for each ``chunk`` of accounts of a group, with ``options`` for its other fields.

    The accounts are its ``members``; or one is its ``member``; or, where it has neither, one is the account that acts
    (``user_name``). ``chunk`` is the dialect's limit for invitations unless told.
    """

    operation: type[Operation[R]]
    dialect: Dialect
    options: Mapping[str, Any] = field(factory=dict[str, Any])
    chunk: int = field(default=attrs.Factory(_default_chunk, takes_self=True), validator=at_least_one)

    def __attrs_post_init__(self) -> None:
        if "group_id" not in self._fields:
            raise InvalidRequest(
                f"{self.operation.__name__} has no group_id: a job has rows of groups and accounts", field="operation"
            )
        if unknown := set(self.options) - (set(self._fields) - {"group_id", self.place}):
            raise InvalidRequest(
                f"{self.operation.__name__} has no {', '.join(sorted(unknown))} to set for a whole job", field="options"
            )
        given = {*self.options, "group_id", self.place}
        if missing := [name for name, each in self._fields.items() if each.default is attrs.NOTHING and name not in given]:
            raise InvalidRequest(
                f"{self.operation.__name__} needs {', '.join(missing)} as well, the same for the whole job", field="options"
            )
        self.make(Chunk(lane=0, group="g", user_name=None, first=1, last=1, accounts=("a",)))  # checks options
        most = (
            1 if self.place != "members" else self.dialect.invite_limit if self.operation is InviteJoinGroup else self.chunk
        )
        if self.chunk > most:
            raise InvalidRequest(f"chunk: at most {most} in one request, not {self.chunk}", field="chunk", limit=most)

    @cached_property
    def _fields(self) -> dict[str, attrs.Attribute[Any]]:
        return {each.name: each for each in fields_of(self.operation)}

    @cached_property
    def place(self) -> str:
        """The field that the accounts are put into."""
        return next((name for name in ("members", "member") if name in self._fields), "user_name")

    @property
    def done_word(self) -> str:
        """What an account is for which it is done: ``invited``, ``removed``."""
        return DONE_WORDS.get(self.operation.spec.name, "done")

    def make(self, chunk: Chunk) -> Operation[R]:
        """Return the operation for a chunk. Raises InvalidRequest."""
        place = self.place
        values: dict[str, Any] = {**self.options, "group_id": chunk.group}
        if chunk.user_name is not None:
            values["user_name"] = chunk.user_name
        values[place] = chunk.accounts if place == "members" else chunk.accounts[0]
        return cast("Callable[..., Operation[R]]", self.operation)(**values)

    def plain_options(self) -> dict[str, Any]:
        """Return the options as JSON."""
        plain: dict[str, Any] = json.loads(_values.dumps(dict(self.options)))  # what a journal gives back
        return plain

    @classmethod
    def of(cls, operation: type[Operation[R]], options: Mapping[str, Any], chunk: int, dialect: Dialect) -> Work[R]:
        """Return the work again whose options were written as JSON."""
        kinds = {each.name: each.type for each in fields_of(operation)}
        told = {name: _values.structure(value, cast("Any", kinds.get(name, Any))) for name, value in options.items()}
        return cls(operation=operation, options=told, chunk=chunk, dialect=dialect)

    def answered(self, chunk: Chunk, answer: object) -> Settlement:
        """Return what a good answer says: all is done but for what it lists in ``fails``."""
        fails: Sequence[Any] = getattr(answer, "fails", ())
        if not fails:
            return Settlement(outcome=RequestState.ANSWERED, state=AccountState.DONE)
        places = {account: place for place, account in enumerate(chunk.accounts)}
        apart: dict[int, tuple[int, AccountState, FailureReason]] = {}
        anomalies: list[tuple[str, FailureReason]] = []
        for entry in fails:
            place, why = places.get(entry.member), FailureReason(one_line(entry.reason, REASON))
            if place is None:
                anomalies.append((one_line(entry.member, REASON), why))
            elif place not in apart:
                # somebody whom the lost request has added is there already when it comes again
                there = chunk.resent and entry.reason in self.dialect.already_reasons
                apart[place] = (place, AccountState.DONE if there else AccountState.REFUSED, why)
        return Settlement(
            outcome=RequestState.ANSWERED, state=AccountState.DONE, apart=tuple(apart.values()), anomalies=tuple(anomalies)
        )
