"""The entries of a list in an answer, in the shapes in which the platform may write them; nothing in it is lost.

An object is read by the first rule that matches:

1. It has the field that identifies an entry (``groupId``, ``member``): an entry; a list in that field: an entry for each.
2. It has a key of the list (``groups``, ``group``), or entries by rule 1 in another field: the entries stand there, the
   other fields stand beside them.
3. It has another field of an entry: an entry. Otherwise it stands beside the entries.

Any other value is the identity of an entry, but false or 0 in place of the whole list stand beside its entries: there are
none. Null and empty values are nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attrs import field, frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["EntryShape"]


def _is_nothing(value: Any) -> bool:  # JSON
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
        entries: list[dict[str, Any]] = []
        beside: list[Any] = []
        for value in values:
            if isinstance(value, (int, float)) and not value:
                beside.append(value)
            else:
                self._collect(value, entries, beside)
        return entries, beside

    def _collect(self, value: Any, entries: list[dict[str, Any]], beside: list[Any]) -> None:  # JSON
        if isinstance(value, list):
            for each in cast("Iterable[Any]", value):
                self._collect(each, entries, beside)
        elif isinstance(value, dict):
            self._collect_object(self._respelled(cast("dict[str, Any]", value)), entries, beside)
        elif not _is_nothing(value):
            entries.append({self.identity: value})

    def _collect_object(self, fields: dict[str, Any], entries: list[dict[str, Any]], beside: list[Any]) -> None:
        identity: Any = fields.get(self.identity)
        if not _is_nothing(identity) and not (isinstance(identity, (list, dict)) and self._are_entries(identity)):
            if isinstance(identity, list) and self.keys.issuperset(fields):
                entries += [{**fields, self.identity: each} for each in cast("Iterable[Any]", identity)]
            else:
                entries.append(fields)
        elif inner := [key for key, each in fields.items() if key in self.wrappers or self._are_entries(each)]:
            for key in inner:
                self._collect(fields[key], entries, beside)
            if rest := {key: each for key, each in fields.items() if key not in inner}:
                beside.append(rest)
        elif not self.keys.isdisjoint(fields):
            entries.append(fields)
        elif fields:
            beside.append(fields)

    def _are_entries(self, value: Any) -> bool:  # JSON
        """Whether a value is an entry with its identity, or a list of such entries."""
        if isinstance(value, list):
            rows = cast("Iterable[Any]", value)
            return any(rows) and all(isinstance(row, dict) and self._are_entries(row) for row in rows)
        return isinstance(value, dict) and not _is_nothing(self._respelled(cast("dict[str, Any]", value)).get(self.identity))

    def _respelled(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields under the keys of an entry: ``Member`` becomes ``member`` if that is missing."""
        if self.keys.issuperset(fields):
            return fields
        known: dict[str, Any] = {}
        for key, value in fields.items():
            spelling = self._spellings.get(key.casefold(), key)
            known[key if spelling in fields or spelling in known else spelling] = value
        return known
