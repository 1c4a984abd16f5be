"""The state as a document, to store it as JSON: only the platform's state, no request log, no fault plan and no clock."""

from __future__ import annotations

from datetime import date, datetime
from enum import StrEnum
from functools import lru_cache, partial
from operator import attrgetter, eq
from typing import TYPE_CHECKING, Any, cast

import attrs
from cattrs.gen import make_dict_structure_fn

from rbim.emulator.documents import exactly, read_document, strict_converter
from rbim.emulator.platform.state import Group, State, Task
from rbim.emulator.rules import Rules
from rbim.errors import InvalidRequest
from rbim.operations.call_tasks import CallPolicy, CreateCallTask, NoCallPolicy
from rbim.operations.groups import Role, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from cattrs import Converter

__all__ = ["VERSION", "export_state", "load_state", "replace_state"]

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
