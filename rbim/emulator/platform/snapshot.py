"""The state as a value: snapshots to come back to, and documents to keep as JSON.

Neither holds what is not the platform's: the request journal, the fault plan and the clock go on as they are.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import date, datetime
from enum import StrEnum
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from attrs import frozen
from cattrs import Converter, ForbiddenExtraKeysError, transform_error
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from rbim.emulator.platform.state import Group, State, Task
from rbim.errors import InvalidRequest
from rbim.operations.call_tasks import NoCallPolicy
from rbim.operations.groups import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["VERSION", "Snapshot", "export_state", "load_state"]

VERSION = 1
"""The form of the documents that are written, and the only one that is read."""

SHOWN = 5  # errors of a document that one message shows

T = TypeVar("T", Group, Task)


@frozen(repr=False)
class Snapshot:
    """The state of an emulator at one moment. Nothing that happens later changes it; those of equal states are equal."""

    _state: State

    def __repr__(self) -> str:
        return f"<Snapshot of {len(self._state.groups)} groups and {len(self._state.tasks)} tasks>"

    @classmethod
    def of(cls, state: State) -> Self:
        """Take a snapshot."""
        return cls(deepcopy(state))

    def restore(self, state: State) -> None:
        """Make the state, in place, what it was. As often as one likes; groups and tasks are new objects afterwards."""
        _become(state, deepcopy(self._state))


def export_state(state: State) -> dict[str, Any]:
    """Return the whole state as a document of lists, mappings and texts, fit for ``json.dumps``.

    Its ``version`` is :data:`VERSION`. Moments are ISO 8601 with their offset, days ``YYYY-MM-DD``, no-call policies the
    entries of the wire, codes the wire's own.
    """
    document: dict[str, Any] = _converter().unstructure(state)
    return {"version": VERSION} | document


def load_state(state: State, document: object) -> None:
    """Make the state, in place, what a document of :func:`export_state` says.

    Raises InvalidRequest that says what is wrong and where; the state then stays what it was. Fields that have a default in
    :class:`~rbim.emulator.State` and its parts may be left out.
    """
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"a document of the emulator's state is an object, not {type(document).__name__}", field="version"
        )
    fields = cast("dict[str, Any]", document).copy()
    version = fields.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise InvalidRequest(
            f"version: documents of the emulator's state of version {VERSION} are read, not {version!r}", field="version"
        )
    try:
        loaded = _converter().structure(fields, State)
    except Exception as error:
        wrong = transform_error(error, format_exception=_why)
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise InvalidRequest(f"not a state of the emulator's: {'; '.join(wrong[:SHOWN])}{more}", field="document") from None
    _become(state, loaded)


def _become(state: State, other: State) -> None:
    for each in attrs.fields(State):
        setattr(state, each.name, getattr(other, each.name))


@cache
def _converter() -> Converter:
    converter = Converter(forbid_extra_keys=True, unstruct_collection_overrides={set: sorted})
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, _exactly)
    converter.register_unstructure_hook(StrEnum, attrgetter("value"))
    converter.register_structure_hook(StrEnum, lambda value, kind: kind(value))
    converter.register_unstructure_hook(date, date.isoformat)
    converter.register_structure_hook(date, lambda value, _: date.fromisoformat(value))
    converter.register_unstructure_hook(datetime, datetime.isoformat)
    converter.register_structure_hook(datetime, _read_moment)
    converter.register_unstructure_hook(NoCallPolicy, lambda policy: policy.entry.decode())
    converter.register_structure_hook(NoCallPolicy, lambda entry, _: NoCallPolicy.from_entry(entry))
    _register_group(converter)
    _register_state(converter)
    return converter


def _register_group(converter: Converter) -> None:
    """Write what only stands in an order as a list, and read no group that the rules could not have made."""
    names = override(unstruct_hook=list, struct_hook=lambda value, _: dict.fromkeys(_list_of(converter, value, str)))
    read = make_dict_structure_fn(Group, converter, invited=names, applied=names)
    converter.register_unstructure_hook(Group, make_dict_unstructure_fn(Group, converter, invited=names, applied=names))
    converter.register_structure_hook(Group, lambda value, kind: _possible(read(value, kind)))


def _register_state(converter: Converter) -> None:
    """Write what stands under its own identifier as a list."""

    def by_id(kind: type[T], id_of: Callable[[T], str]) -> Any:  # cattrs gives its overrides no public type

        def read(value: object, _: object) -> dict[str, T]:
            found = {id_of(each): each for each in _list_of(converter, value, kind)}
            if len(found) < len(cast("list[object]", value)):
                raise ValueError("two have the same identifier")
            return found

        def write(kept: dict[str, T]) -> list[Any]:
            return [converter.unstructure(each) for each in kept.values()]

        return override(unstruct_hook=write, struct_hook=read)

    def accounts(value: object, _: object) -> set[str] | None:
        return None if value is None else set(_list_of(converter, value, str))

    never = override(struct_hook=accounts)
    groups, tasks = by_id(Group, lambda group: group.group_id), by_id(Task, lambda task: task.task_id)
    converter.register_unstructure_hook(State, make_dict_unstructure_fn(State, converter, groups=groups, tasks=tasks))
    converter.register_structure_hook(
        State,
        make_dict_structure_fn(State, converter, groups=groups, tasks=tasks, never_logged_in=never, known=never),
    )


def _list_of(converter: Converter, value: object, kind: type[Any]) -> list[Any]:
    if not isinstance(value, list):  # cattrs would take a text apart into letters
        raise TypeError(f"a list is needed, not {type(value).__name__}")
    return converter.structure(value, cast("Any", list)[kind])


def _exactly(value: object, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} is needed, not {value!r}")
    return value


def _read_moment(value: Any, _: object) -> datetime:  # JSON
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError(f"{value} has no offset from UTC")
    return moment


def _possible(group: Group) -> Group:
    creators = list(group.members.values()).count(Role.CREATOR)
    if creators != 1:
        raise ValueError(f"a group has exactly one creator, not {creators}")
    if len(group.members) > group.type.member_limit:
        raise ValueError(f"a group of this type has at most {group.type.member_limit} members, not {len(group.members)}")
    waiting = group.members.keys() & (group.invited.keys() | group.applied.keys())
    if waiting:
        raise ValueError(f"members wait for nothing, but these do: {', '.join(sorted(waiting))}")
    return group


def _why(error: BaseException, kind: type[Any] | None) -> str:
    """Return what is wrong with one field."""
    if isinstance(error, KeyError):
        return "required field missing"
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown: {', '.join(sorted(error.extra_fields))}"
    # Python's own complaints of what is no mapping
    if isinstance(error, AttributeError) or (isinstance(error, TypeError) and kind is not None and attrs.has(kind)):
        return "an object is needed"
    return str(error)
