"""The state as a value: snapshots to restore, and documents to store as JSON.

They hold only the platform's state. Restoring them does not change the request log, the fault plan and the clock.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import date, datetime
from enum import StrEnum
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from attrs import frozen
from cattrs import Converter, ForbiddenExtraKeysError, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from rbim.emulator.platform.state import Group, State, Task
from rbim.emulator.rules import Rules
from rbim.errors import InvalidRequest
from rbim.operations.call_tasks import CallPolicy, CreateCallTask, NoCallPolicy
from rbim.operations.groups import Role, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["VERSION", "Snapshot", "export_state", "load_state"]

VERSION = 1
"""The format version of the documents; no other is read."""

SHOWN = 5  # errors of a document in one message

T = TypeVar("T", Group, Task)


@frozen(repr=False)
class Snapshot:
    """The state of an emulator at one moment. Later changes do not affect it; snapshots of equal states are equal."""

    _state: State

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self._state.groups)} groups and {len(self._state.tasks)} tasks>"

    @classmethod
    def of(cls, state: State) -> Self:
        """Take a snapshot."""
        return cls(deepcopy(state))

    def restore(self, state: State) -> None:
        """Set the state, in place, back to the snapshot. Groups and tasks are new objects afterwards."""
        _assign(state, deepcopy(self._state))


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
        loaded = _converter(rules or Rules()).structure(fields, State)
    except Exception as error:
        wrong = transform_error(error, format_exception=_message)
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InvalidRequest(f"invalid emulator state: {'; '.join(wrong[:SHOWN])}{more}", field="document") from None
    _assign(state, loaded)


def _assign(state: State, other: State) -> None:
    for each in attrs.fields(State):
        setattr(state, each.name, getattr(other, each.name))


@lru_cache(maxsize=8)
def _converter(rules: Rules) -> Converter:
    converter = Converter(forbid_extra_keys=True, unstruct_collection_overrides={set: sorted})
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, _exactly)
    converter.register_unstructure_hook(StrEnum, attrgetter("value"))
    converter.register_structure_hook(StrEnum, lambda value, kind: kind(value))
    converter.register_unstructure_hook(date, date.isoformat)
    converter.register_structure_hook(date, lambda value, _: date.fromisoformat(value))
    converter.register_unstructure_hook(datetime, datetime.isoformat)
    converter.register_structure_hook(datetime, _read_moment)
    _register_policies(converter)
    _register_group(converter, rules)
    _register_state(converter)
    return converter


def _register_policies(converter: Converter) -> None:
    """Write ``call_policy`` as a list of policies' texts or of objects, None as null."""

    def read_one(value: Any, _: object) -> NoCallPolicy | CallPolicy:  # JSON
        if isinstance(value, dict):
            return CallPolicy.from_wire(cast("dict[str, Any]", value))
        return NoCallPolicy.from_entry(value)

    def read(value: object, _: object) -> tuple[NoCallPolicy | CallPolicy, ...] | None:
        return None if value is None else tuple(_list_of(converter, value, NoCallPolicy))

    def write(value: tuple[NoCallPolicy | CallPolicy, ...] | None) -> list[Any] | None:
        if value is None:
            return None
        return [each.wire if isinstance(each, CallPolicy) else each.entry.decode() for each in value]

    either = override(struct_hook=read, unstruct_hook=write)
    converter.register_structure_hook(NoCallPolicy, read_one)
    converter.register_unstructure_hook(
        CreateCallTask, make_dict_unstructure_fn(CreateCallTask, converter, call_policy=either)
    )
    converter.register_structure_hook(CreateCallTask, make_dict_structure_fn(CreateCallTask, converter, call_policy=either))


def _register_group(converter: Converter, rules: Rules) -> None:
    """Write ordered sets as lists, and refuse groups that the rules cannot produce."""
    names = override(unstruct_hook=list, struct_hook=lambda value, _: dict.fromkeys(_list_of(converter, value, str)))
    read = make_dict_structure_fn(Group, converter, invited=names, applied=names)
    converter.register_unstructure_hook(Group, make_dict_unstructure_fn(Group, converter, invited=names, applied=names))
    converter.register_structure_hook(Group, lambda value, kind: _checked(read(value, kind), rules))


def _register_state(converter: Converter) -> None:
    """Write mappings by identifier as lists."""

    def by_id(kind: type[T], id_of: Callable[[T], str]) -> Any:  # cattrs has no public type for overrides

        def read(value: object, _: object) -> dict[str, T]:
            entries = {id_of(each): each for each in _list_of(converter, value, kind)}
            if len(entries) < len(cast("list[object]", value)):
                raise ValueError("two entries have the same identifier")
            return entries

        def write(entries: dict[str, T]) -> list[Any]:
            return [converter.unstructure(each) for each in entries.values()]

        return override(unstruct_hook=write, struct_hook=read)

    def accounts(value: object, _: object) -> set[str] | None:
        return None if value is None else set(_list_of(converter, value, str))

    account_set = override(struct_hook=accounts)
    groups, tasks = by_id(Group, lambda group: group.group_id), by_id(Task, lambda task: task.task_id)
    converter.register_unstructure_hook(State, make_dict_unstructure_fn(State, converter, groups=groups, tasks=tasks))
    converter.register_structure_hook(
        State,
        make_dict_structure_fn(State, converter, groups=groups, tasks=tasks, never_logged_in=account_set, known=account_set),
    )


def _list_of(converter: Converter, value: object, kind: type[Any]) -> list[Any]:
    if not isinstance(value, list):  # cattrs would split a string into characters
        raise TypeError(f"must be a list, not {type(value).__name__}")
    return converter.structure(value, cast("Any", list)[kind])


def _exactly(value: object, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"must be {kind.__name__}, not {value!r}")
    return value


def _read_moment(value: Any, _: object) -> datetime:  # JSON
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value} has no UTC offset")
    return moment


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


def _message(error: BaseException, kind: type[Any] | None) -> str:
    """Return the message for one wrong field."""
    if isinstance(error, KeyError):
        return "required field missing"
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown: {', '.join(sorted(error.extra_fields))}"
    # Python's own errors for a value that is not a mapping
    if isinstance(error, AttributeError) or (isinstance(error, TypeError) and kind is not None and attrs.has(kind)):
        return "must be an object"
    return str(error)
