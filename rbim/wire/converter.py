"""Makes the cattrs converters of a codec, and turns their errors into one readable line."""

from __future__ import annotations

from datetime import date, datetime, time, tzinfo
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import attrs
from cattrs import AttributeValidationNote, ClassValidationError, Converter, IterableValidationError, IterableValidationNote

from rbim.operations.base import Answer, Operation
from rbim.wire.hooks import read_answer, read_operation, wire_names, write_answer, write_operation
from rbim.wire.quirks import read_day, read_flag, read_moment, write_date

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.dialect import Dialect, MembersShape

__all__ = ["Converters", "converters_for", "make_converter"]


class Converters:
    """A fast converter and a detailed one that says what is wrong, both with the same hooks.

    ``hooks`` is called with each, to register what the types of one's own operations need.
    """

    def __init__(self, zone: tzinfo, members: MembersShape, hooks: Callable[[Converter], None] | None = None) -> None:
        self._facts = (zone, members)
        self._hooks = hooks
        self.fast = self._make(detailed=False)

    @cached_property
    def detailed(self) -> Converter:
        """The converter that says what is wrong, made when something first is."""
        return self._make(detailed=True)

    def _make(self, *, detailed: bool) -> Converter:
        converter = make_converter(*self._facts, detailed=detailed)
        if self._hooks is not None:
            self._hooks(converter)
        return converter

    def why_not(self, document: object, kind: type[Any], root: str = "$") -> str:
        """Return why the document cannot be read as ``kind``, naming fields as the wire does."""
        try:
            self.detailed.structure(document, kind)
        except Exception as error:  # whatever a hook raises is what is wrong
            return "; ".join(_reasons(error, root))
        return "not what it should be"


def _reasons(error: BaseException, path: str) -> Iterator[str]:
    """Yield what is wrong and where, out of what a detailed converter raised."""
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


_NAMED: tuple[type[Any], ...] = (Answer, Operation)


def _step(error: BaseException, kind: object) -> str:
    """Return the last part of the path to what was wrong in a value of ``kind``; cattrs leaves it in a note."""
    names = wire_names(kind) if isinstance(kind, type) and issubclass(kind, _NAMED) else {}
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return f".{names.get(note.name, note.name)}"
        if isinstance(note, IterableValidationNote):
            return f"[{note.index}]"
    return ""


# Compiling costs milliseconds: clients of the same dialect share the result, and what was compiled for operations of
# one's own goes with the last of them.
_shared: WeakValueDictionary[tuple[tzinfo, MembersShape], Converters] = WeakValueDictionary()


def converters_for(dialect: Dialect, hooks: Callable[[Converter], None] | None) -> Converters:
    """Return the converters for a dialect; clients of equal dialects without ``hooks`` share them."""
    key = (dialect.zone, dialect.members_shape)
    if hooks is not None:
        return Converters(*key, hooks)
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = Converters(*key)
    return found


def make_converter(zone: tzinfo, members: MembersShape, *, detailed: bool = False) -> Converter:
    """Return a converter that reads and writes as the wire does.

    Answers are read tolerantly:

    - unknown fields are kept in ``extra``;
    - absent, null and empty become the field's default;
    - numbers, booleans and whole objects where text is declared become text;
    - counts in text become int; unreadable ones None, their text kept beside them;
    - dates without padding, compact dates and epoch milliseconds become datetimes in ``zone``; unreadable ones None;
    - codes outside an enum stay the text they are;
    - rows come plain, single, nested, flat, or not at all;
    - only a field without a default is required.

    Requests are read with both shapes of ``members``, numbers in text and text in numbers, and are written in the shape
    that ``members`` names, without the fields that are None. ``detailed`` makes errors name the field, at a price in speed.
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
