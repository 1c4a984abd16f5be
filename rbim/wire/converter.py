"""Create the cattrs converters of a codec, and turn their errors into one readable line."""

from __future__ import annotations

from datetime import date, datetime, time, tzinfo
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import attrs
from cattrs import AttributeValidationNote, ClassValidationError, Converter, IterableValidationError, IterableValidationNote

from rbim.operations.base import Answer, Operation, wire_names
from rbim.wire.hooks import read_answer, read_operation, write_answer, write_operation
from rbim.wire.quirks import read_day, read_flag, read_moment, write_date

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.dialect import Dialect, MembersShape

__all__ = ["Converters", "converters_for", "make_converter"]


class Converters:
    """A fast converter and a detailed one, with the same hooks; the detailed one explains errors.

    ``hooks`` is called with each converter, to register hooks for the types of new operations.
    """

    def __init__(self, zone: tzinfo, members: MembersShape, hooks: Callable[[Converter], None] | None = None) -> None:
        self._options = (zone, members)
        self._hooks = hooks
        self.fast = self._make(detailed=False)

    @cached_property
    def detailed(self) -> Converter:
        """The converter that explains errors; created on the first error."""
        return self._make(detailed=True)

    def _make(self, *, detailed: bool) -> Converter:
        converter = make_converter(*self._options, detailed=detailed)
        if self._hooks is not None:
            self._hooks(converter)
        return converter

    def explain(self, document: object, kind: type[Any], root: str = "$") -> str:
        """Return the reason why the document cannot be read as ``kind``, with the field names of the wire."""
        try:
            self.detailed.structure(document, kind)
        except Exception as error:  # hooks may raise any exception; it is the reason
            return "; ".join(_reasons(error, root))
        return "the document cannot be read"


def _reasons(error: BaseException, path: str) -> Iterator[str]:
    """Yield each reason with its path, from an exception of the detailed converter."""
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        kind: object = error.cl
        for each in error.exceptions:
            yield from _reasons(each, path + _step(each, kind))
    elif isinstance(error, KeyError):
        yield f"required field missing @ {path}"
    elif isinstance(error, RecursionError):
        yield f"nested too deep @ {path}"
    else:
        yield f"{str(error) or type(error).__name__} @ {path}"


_WITH_WIRE_NAMES: tuple[type[Any], ...] = (Answer, Operation)


def _step(error: BaseException, kind: object) -> str:
    """Return the last part of the path to the wrong value inside ``kind``; cattrs stores it in a note."""
    names = wire_names(kind) if isinstance(kind, type) and issubclass(kind, _WITH_WIRE_NAMES) else {}
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return f".{names.get(note.name, note.name)}"
        if isinstance(note, IterableValidationNote):
            return f"[{note.index}]"
    return ""


# Compiling hooks takes milliseconds: clients of the same dialect share the converters. The values are weak references, so
# that hooks compiled for an application's own operations are freed with the last client.
_shared: WeakValueDictionary[tuple[tzinfo, MembersShape], Converters] = WeakValueDictionary()


def converters_for(dialect: Dialect, hooks: Callable[[Converter], None] | None) -> Converters:
    """Return the converters for a dialect; clients without ``hooks`` share them if their dialects agree."""
    key = (dialect.zone, dialect.members_shape)
    if hooks is not None:
        return Converters(*key, hooks)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Converters(*key)
    return found


def make_converter(zone: tzinfo, members: MembersShape, *, detailed: bool = False) -> Converter:
    """Return a converter between operations, answers and their JSON objects.

    Answers are read tolerantly:

    - unknown fields are kept in ``extra``;
    - missing, null and empty values become the field's default;
    - numbers, booleans and whole objects become text if text is declared;
    - counts in text become int; unreadable ones become None, and their text is kept in another field;
    - dates without padding, compact dates and epoch milliseconds become datetimes in ``zone``; unreadable ones None;
    - codes outside an enum stay text;
    - rows are accepted plain, single, nested, flat, or missing;
    - only a field without a default is required.

    Requests are read with both shapes of ``members``, with numbers as text and text as numbers. They are written in the
    shape ``members``, without fields that are None. ``detailed`` makes errors name the field, but is slower.
    """
    converter = Converter(detailed_validation=detailed)
    is_answer, is_operation = _is_kind_of(Answer), _is_kind_of(Operation)
    converter.register_structure_hook_factory(is_answer, partial(read_answer, converter, zone))
    converter.register_unstructure_hook_factory(is_answer, partial(write_answer, converter, zone))
    converter.register_structure_hook_factory(is_operation, partial(read_operation, converter))
    converter.register_unstructure_hook_factory(is_operation, partial(write_operation, converter, members))
    converter.register_unstructure_hook(date, date.isoformat)
    converter.register_structure_hook(date, read_day)
    converter.register_unstructure_hook(datetime, lambda moment: write_date(moment.astimezone(zone)))
    converter.register_structure_hook(datetime, lambda value, _: read_moment(value, zone))
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_structure_hook(time, lambda value, _: time.fromisoformat(value))
    converter.register_structure_hook(bool, read_flag)
    return converter


def _is_kind_of(base: type[Any]) -> Callable[[Any], bool]:
    return lambda kind: isinstance(kind, type) and issubclass(kind, base) and attrs.has(kind)
