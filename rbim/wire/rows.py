"""The entries of a list in an answer, in any shape in which the platform may write them; nothing in it is lost.

An object is read by the first rule that matches:

1. It has the field that identifies an entry (``groupId``, ``member``): an entry; a list in that field: an entry for each,
   unless a long object or list stands beside it, which each of them would copy.
2. It has a key of the list (``groups``, ``group``): the entries stand there, the other fields stand beside them.
3. It has another field of an entry: an entry.
4. An entry by rule 1 stands in one of its objects and lists: the entries stand there.
5. One of its values holds something: an entry of unknown fields. Otherwise it stands beside the entries.

Any other value is the identity of an entry, but false or 0 in place of the whole list stand beside its entries: there are
none. Null and empty values are nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attrs import field, frozen

from rbim.wire.quirks import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["EntryShape", "is_nothing"]

CONTAINERS = (list, dict)
MOST_COPIED = 1000  # characters


def is_nothing(value: Any) -> bool:  # JSON
    """Whether a JSON value holds no information: null, an empty text, an empty list or object."""
    return value is None or (not value and isinstance(value, (str, list, dict)))


@frozen
class EntryShape:
    """The shape of a list: its ``name``, the ``keys`` of an entry, and ``identity``, the key that identifies an entry.

    ``also``: other keys that entries may have, and the key that each stands for. Keys are read in any case.
    """

    name: str
    keys: frozenset[str]
    identity: str
    also: Mapping[str, str] = field(factory=dict[str, str])
    wrappers: tuple[str, ...] = field(init=False)
    _spellings: Mapping[str, str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        wrappers = (self.name, self.name.removesuffix("s"))
        spellings = {key.casefold(): key for key in (*wrappers, *self.keys)}
        spellings |= {other.casefold(): key for other, key in self.also.items()}
        object.__setattr__(self, "wrappers", wrappers)
        object.__setattr__(self, "_spellings", spellings)

    def is_name(self, key: str) -> bool:
        """Whether a key is another spelling of the list's name: ``fail``, ``Fails``."""
        return self._spellings.get(key.casefold()) in self.wrappers

    def read(self, values: Iterable[Any]) -> tuple[list[dict[str, Any]], list[Any]]:  # JSON
        """Return the entries in the values of the list, and what stands beside them and is no entry."""
        reading = _RowReading(self)
        for value in values:
            if isinstance(value, (int, float)) and not value:
                reading.beside.append(value)
            else:
                reading.collect(value)
        return reading.entries, reading.beside

    def respelled(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields under the keys of an entry: ``Member`` becomes ``member`` if that is missing."""
        if self.keys.issuperset(fields):
            return fields
        known: dict[str, Any] = {}
        for key, value in fields.items():
            spelling = self._spellings.get(key.casefold(), key)
            known[key if spelling in fields or spelling in known else spelling] = value
        return known


class _RowReading:
    """One reading of a list: its entries in order."""

    __slots__ = ("beside", "entries", "shape")

    def __init__(self, shape: EntryShape) -> None:
        self.shape = shape
        self.entries: list[dict[str, Any]] = []
        self.beside: list[Any] = []

    def collect(self, value: Any) -> bool:  # JSON
        """Add the entries in a value; return whether one of them has its identity in a field."""
        if isinstance(value, list):
            found = False
            for each in cast("Iterable[Any]", value):
                found = self.collect(each) or found
            return found
        if isinstance(value, dict):
            return self._object(cast("dict[str, Any]", value))
        if not is_nothing(value):
            self.entries.append({self.shape.identity: value})
        return False

    def _object(self, fields: dict[str, Any]) -> bool:
        shape = self.shape
        fields = shape.respelled(fields)
        identity = fields.get(shape.identity)
        if not is_nothing(identity):
            if not _holds_containers(identity, at_all=shape.identity in shape.wrappers):
                self._entry(fields, identity)
                return True
            self._wrapper(fields, (shape.identity, *shape.wrappers))
            return True
        if any(key in fields for key in shape.wrappers):
            self._wrapper(fields, shape.wrappers)
            return True
        if not shape.keys.isdisjoint(fields):
            self.entries.append(fields)
            return False
        return self._unknown(fields)

    def _entry(self, fields: dict[str, Any], identity: Any) -> None:  # JSON
        if (
            isinstance(identity, list)
            and self.shape.keys.issuperset(fields)
            and not any(_is_long(value) for key, value in fields.items() if key != self.shape.identity)
        ):
            self.entries += [{**fields, self.shape.identity: each} for each in cast("Iterable[Any]", identity)]
        else:
            self.entries.append(fields)

    def _wrapper(self, fields: dict[str, Any], keys: Iterable[str]) -> None:
        keys = dict.fromkeys(keys)
        for key in keys:
            self.collect(fields.get(key))
        self._beside({key: value for key, value in fields.items() if key not in keys})

    def _beside(self, fields: dict[str, Any]) -> None:
        if fields:
            self.beside.append(fields)

    def _unknown(self, fields: dict[str, Any]) -> bool:
        entries, beside = len(self.entries), len(self.beside)
        found = False
        for value in fields.values():
            if isinstance(value, CONTAINERS):
                found = self.collect(value) or found
        rest = {key: value for key, value in fields.items() if not isinstance(value, CONTAINERS)}
        if found:
            self._beside(rest)
            return True
        nothing = (len(self.entries), len(self.beside)) == (entries, beside) and all(map(is_nothing, rest.values()))
        del self.entries[entries:], self.beside[beside:]
        if not nothing:
            self.entries.append(fields)
        else:
            self._beside(fields)
        return False


def _holds_containers(identity: Any, *, at_all: bool) -> bool:  # JSON
    """Whether entries stand in the identity of an object; ``at_all``: a list is one of entries in any case."""
    if isinstance(identity, list):
        return at_all or any(isinstance(each, CONTAINERS) for each in cast("Iterable[Any]", identity))
    return isinstance(identity, dict)


def _is_long(value: Any) -> bool:  # JSON
    """Whether a value is a list or an object that is too long to be copied to each of many entries."""
    return value.__class__ in CONTAINERS and len(read_text(value)) > MOST_COPIED
