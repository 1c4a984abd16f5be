"""The cattrs converters of a codec: the hooks that convert each field to JSON and back, chosen by the field's type.

Both sides use them: the client writes operations and reads answers, the emulator reads operations and writes answers. The
conversions of single values are in ``rbim.wire.quirks``. Errors become one readable line.
"""

from __future__ import annotations

from datetime import date, datetime, time, tzinfo
from enum import Enum, StrEnum
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin
from weakref import WeakValueDictionary

import attrs
from cattrs import AttributeValidationNote, ClassValidationError, Converter, IterableValidationError, IterableValidationNote
from cattrs.fns import identity
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from rbim.dialect import MembersShape
from rbim.operations.base import Answer, Operation, Wire, fields_of, is_optional, options_of, wire_name, wire_names, wire_of
from rbim.wire.quirks import (
    Hook,
    read_choice,
    read_count,
    read_date,
    read_day,
    read_flag,
    read_mapped,
    read_members,
    read_moment,
    read_number,
    read_required,
    read_text,
    write_date,
    write_nested_members,
)
from rbim.wire.rows import EntryShape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rbim.dialect import Dialect

__all__ = [
    "Converters",
    "converters_for",
    "make_converter",
    "read_answer",
    "read_operation",
    "write_answer",
    "write_operation",
]

EXTRA = "rbim:extra"  # the key under which unknown fields reach `extra` (without a NUL, which cattrs < 26.2 breaks)


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


def _required(attribute: attrs.Attribute[Any]) -> bool:
    return attribute.default is attrs.NOTHING


# ---------------------------------------------------------------- answers, read


def read_answer(converter: Converter, zone: tzinfo, kind: type[Any]) -> Hook:
    """Return the hook that reads a JSON object as an answer of ``kind``."""
    attributes = _on_wire(kind)
    readers = {a.name: _reader(a, converter, zone) for a in attributes}
    names = {name: EXTRA if name == "extra" else key for name, key in wire_names(kind).items()}
    known = frozenset(names.values()) - {EXTRA}
    hooks = {name: override(rename=names[name], struct_hook=hook) for name, hook in readers.items()}
    local = {a.name: override(omit=True) for a in fields_of(kind) if wire_of(a).local}
    read = make_dict_structure_fn(
        kind,
        converter,
        _cattrs_detailed_validation=converter.detailed_validation,
        **cast("Any", hooks | local),  # cattrs takes fields and options as keywords of one call
    )
    lists = [_entry_shape(a) for a in attributes if _row_kind(a.type) and _declared_reader(wire_of(a)) is None]
    spellings = frozenset(each.casefold() for shape in lists for each in shape.wrappers)
    nested = next((a for a in attributes if _row_kind(a.type) and wire_of(a).nest), None)
    unflatten = _one_row(nested) if nested is not None else None
    keeps_extra = "extra" in names
    # readers of cattrs, of user hooks and of declarations do not accept null and empty
    defaulted = frozenset(
        names[a.name] for a in attributes if (readers[a.name] is None or _declared_reader(wire_of(a))) and not _required(a)
    )

    optional = not any(_required(a) for a in attributes)

    def structure(document: Any, _: Any) -> Any:  # JSON in, answer out
        if not isinstance(document, dict):
            raise TypeError(f"an object is needed, not {type(document).__name__}")
        fields = cast("dict[str, Any]", document)
        beside: dict[str, Any] = {}
        if lists and fields and not spellings.isdisjoint(map(str.casefold, fields)):
            fields, beside = _with_entries(fields, lists, known)
        if unflatten is not None:
            fields = unflatten(fields)
        if optional and not beside and known.isdisjoint(fields):  # such as a success without further fields
            return kind(extra=fields.copy()) if keeps_extra and fields else kind()
        if keeps_extra and (beside or not known.issuperset(fields)):
            unknown = {key: value for key, value in fields.items() if key not in known}
            fields = {**fields, EXTRA: unknown | beside}
        if defaulted:
            fields = {key: value for key, value in fields.items() if key not in defaulted or value not in (None, "")}
        return read(fields, kind)

    return structure


def _on_wire(kind: type[Any]) -> list[attrs.Attribute[Any]]:
    return [a for a in fields_of(kind) if not wire_of(a).local]


# `"fails": [{"member": "1001"}]`, and `"fail"` or `"Fails"` in its place: read by `rbim.wire.rows`
def _entry_shape(attribute: attrs.Attribute[Any]) -> EntryShape:
    row = cast("type[Any]", _row_kind(attribute.type))
    names = wire_names(row)
    also = {other: names[a.name] for a in _on_wire(row) for other in wire_of(a).also}
    keys = frozenset(names.values()) - {"extra"}
    return EntryShape(wire_name(attribute, in_camel=True), keys, next(iter(names.values())), also)


def _with_entries(
    fields: dict[str, Any], lists: list[EntryShape], known: frozenset[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields with each list as its entries, and, by list, what stands beside its entries."""
    beside: dict[str, Any] = {}
    for shape in lists:
        name = shape.name
        others = [key for key in fields if key not in known and shape.is_name(key)]
        if name not in fields and not others:
            continue
        found, more = shape.read([fields.get(name), *(fields[key] for key in others)])
        fields = {key: value for key, value in fields.items() if key not in others} | {name: found}
        if more:
            beside[name] = more[0] if len(more) == 1 else more
    return fields, beside


def _row_kind(kind: Any) -> type[Any] | None:  # a type expression
    arguments = get_args(kind)
    first = arguments[0] if get_origin(kind) is tuple and arguments else None
    return first if isinstance(first, type) and issubclass(first, Answer) else None


# `{"statusCode": "000000", "groupId": "g1", "name": "a"}`: the one row of a search is flat, beside the status;
# with only empty texts and a count, it is not a row
def _one_row(attribute: attrs.Attribute[Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    kind, name = cast("type[Any]", _row_kind(attribute.type)), wire_name(attribute, in_camel=True)
    keys = wire_names(kind)
    texts = [keys[a.name] for a in fields_of(kind) if a.type is str and not wire_of(a).name]
    row_keys = frozenset(keys.values()) - {"extra"}

    def unflatten(fields: dict[str, Any]) -> dict[str, Any]:
        if fields.get(name) or not any(fields.get(text) for text in texts):
            return fields
        row = {key: value for key, value in fields.items() if key in row_keys}
        return {key: value for key, value in fields.items() if key not in row_keys} | {name: [row]}

    return unflatten


def _reader(attribute: attrs.Attribute[Any], converter: Converter, zone: tzinfo) -> Hook | None:
    """Return the hook that reads a field of an answer, by its type; None: cattrs or a user's hook reads it."""
    kind, options = attribute.type, options_of(attribute.type)
    first = options[0]
    row = _row_kind(kind)
    if attribute.name == "extra":
        return lambda value, _: value
    declared = _declared_reader(wire_of(attribute))
    if declared is not None:
        return declared
    if row is not None:
        return lambda value, _: tuple(converter.structure(each, row) for each in value) if value else ()
    if kind is str:
        return read_required if _required(attribute) else read_text
    if kind == tuple[str, ...]:
        return lambda value, _: read_members(value, _) if value else ()
    if options == (str,):
        return lambda value, _: read_text(value, _) or None
    if options == (int,) and is_optional(kind):
        return read_count
    if options == (datetime,) and is_optional(kind):
        return lambda value, _: read_date(value, zone)
    if isinstance(first, type) and issubclass(first, Enum) and str in options:
        members = {str(member.value): member for member in first}
        return lambda value, _: read_choice(value, members)
    return None


# --------------------------------------------------------------- answers, written


def write_answer(converter: Converter, zone: tzinfo, kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the hook that writes an answer of ``kind`` as a JSON object."""
    names = wire_names(kind)
    attributes = [
        (a.name, names[a.name], _row_kind(a.type) is not None, wire_of(a).nest, _declared_writer(wire_of(a)))
        for a in _on_wire(kind)
    ]
    # fields with the text of another field, such as count_text, have the same key
    texts = {a.name for a in _on_wire(kind) if a.type is str and list(names.values()).count(names[a.name]) == 1}

    def unstructure(answer: Any) -> dict[str, Any]:  # any answer
        document: dict[str, Any] = {}
        for field, name, has_rows, nest, write in attributes:
            value = getattr(answer, field)
            if field == "extra":
                document |= {key: each for key, each in value.items() if key not in document}
            elif write is not None:
                document[name] = write(value)
            elif has_rows:
                rows = [converter.unstructure(row) for row in value]
                if nest is None:
                    document |= {name: rows} if rows else {}
                else:
                    document[name] = {nest: rows[0] if len(rows) == 1 else rows} if rows else {}
            elif isinstance(value, datetime):
                document[name] = write_date(value.astimezone(zone))
            elif isinstance(value, (int, StrEnum)):
                document[name] = str(value)
            elif value is not None and (value != "" or field in texts):
                document[name] = value if isinstance(value, str) else converter.unstructure(value)
        return document

    return unstructure


# ------------------------------------------------------------- operations, written


def write_operation(converter: Converter, members: MembersShape, kind: type[Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the hook that writes an operation of ``kind`` as a JSON object."""
    attributes = [a for a in fields_of(kind) if wire_of(a).header is None]
    names = wire_names(kind)
    in_body = {
        a.name: override(
            rename=names[a.name],
            omit_if_default=a.default is None or a.default == (),
            unstruct_hook=_writer(a, members),
        )
        for a in attributes
    }
    in_header = {a.name: override(omit=True) for a in fields_of(kind) if a not in attributes}
    write = make_dict_unstructure_fn(kind, converter, **cast("Any", in_body | in_header))
    # A field that may be None without None as its default (ModifyGroup.permission) is omitted too.
    bare = [names[a.name] for a in attributes if is_optional(a.type) and a.default is not None]

    def unstructure(op: Any) -> dict[str, Any]:  # any operation
        document = write(op)
        for name in bare:
            if document[name] is None:
                del document[name]
        return document

    return unstructure if bare else write


def _declared_writer(special: Wire) -> Callable[[Any], Any] | None:
    """Return the writer that a field's declaration gives, or None."""
    if special.write is not None:
        return special.write
    return special.values.__getitem__ if special.values is not None else None


def _writer(attribute: attrs.Attribute[Any], members: MembersShape) -> Callable[[Any], Any] | None:
    kind, options = attribute.type, options_of(attribute.type)
    declared = _declared_writer(wire_of(attribute))
    if declared is not None:
        return declared
    if kind == tuple[str, ...]:
        return identity if members is MembersShape.PLAIN else write_nested_members
    if len(options) == 1 and isinstance(options[0], type):
        if issubclass(options[0], Enum):
            value_of = attrgetter("value")
            return (lambda value: None if value is None else value.value) if is_optional(kind) else value_of
        if options[0] in (str, int):
            return identity
    return None


# ---------------------------------------------------------------- operations, read


def read_operation(converter: Converter, kind: type[Any]) -> Hook:
    """Return the hook that reads a JSON object as an operation of ``kind``."""
    body = [a for a in fields_of(kind) if wire_of(a).header is None]
    names = wire_names(kind)
    in_body = {a.name: override(rename=names[a.name], struct_hook=_request_reader(a)) for a in body}
    in_header = {a.name: override(omit=True) for a in fields_of(kind) if a not in body}
    read = make_dict_structure_fn(
        kind,
        converter,
        _cattrs_detailed_validation=converter.detailed_validation,
        **cast("Any", in_body | in_header),
    )
    bare = [names[a.name] for a in body if _required(a) and is_optional(a.type)]
    defaulted = {names[a.name] for a in body if not _required(a)} | set(bare)
    texts = {names[a.name] for a in body if options_of(a.type) == (str,)} - {names.get("user_name")}

    def structure(document: Any, _: Any) -> Any:  # JSON in, operation out
        if not isinstance(document, dict):
            raise TypeError(f"an object is needed, not {type(document).__name__}")
        fields = cast("dict[str, Any]", document).items()
        # `"confirm": ""`, `"userName": ""` and `"declared": null` count as missing; `"declared": ""` is an empty text
        present = {
            key: value
            for key, value in fields
            if key not in defaulted or (value is not None and (value != "" or key in texts))
        }
        return read(dict.fromkeys(bare) | present, kind)

    return structure


def _declared_reader(special: Wire) -> Hook | None:
    """Return the reader that a field's declaration gives, or None."""
    if special.read is not None:
        read = special.read
        return lambda value, _: read(value)
    if special.values is not None:
        return read_mapped({str(wire): value for value, wire in special.values.items()})
    return None


def _request_reader(attribute: attrs.Attribute[Any]) -> Hook | None:
    kind, options = attribute.type, options_of(attribute.type)
    declared = _declared_reader(wire_of(attribute))
    if declared is not None:
        return declared
    if kind == tuple[str, ...]:
        return read_members
    if options == (str,):
        return read_text
    if options == (int,) and not is_optional(kind):
        return read_number
    if len(options) == 1 and isinstance(options[0], type) and issubclass(options[0], Enum):
        choices = options[0]
        return lambda value, _: None if value is None else choices(read_text(value))
    return None
