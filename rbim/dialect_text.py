"""The dialect's fields outside of Python: keys, variables and flags, and values as text.

Everything is derived from the declaration of the fields in :class:`~rbim.dialect.Dialect`. A document is a value of TOML or
JSON: plain values, lists, and for a mapping a table with its changes of the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import fields

from rbim._support import json
from rbim.dialect import Dialect, Gap
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim._support.forms import Form

__all__ = [
    "NAMES",
    "DialectField",
    "client_document",
    "dialect_differences",
    "dialect_document",
    "dialect_fields",
    "dialect_from_env",
    "dialect_of",
    "dialect_texts",
    "flag_of",
    "variable_of",
]

DEFAULT = "default"
"""The text of a mapping without changes of its default."""

NAMES = tuple(each.name for each in fields(Dialect))
"""The names of the fields, in order."""


def flag_of(name: str) -> str:
    """Return the flag of a field: ``--members-shape``."""
    return f"--{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    """Return the environment variable of a field: ``RBIM_MEMBERS_SHAPE``."""
    return f"RBIM_{name.upper()}"


class DialectField(NamedTuple):
    """One field of the dialect: the gap that it settles, and the form of its values."""

    gap: Gap
    form: Form

    @property
    def name(self) -> str:
        """The field's name, which is also its key in ``rbim.toml``."""
        return self.gap.name

    @property
    def flag(self) -> str:
        """The field's flag."""
        return flag_of(self.name)

    @property
    def variable(self) -> str:
        """The field's environment variable."""
        return variable_of(self.name)

    def parse(self, *texts: str) -> object:
        """Return the document of a text; of several texts if the flag of a list is repeated. Raises InvalidRequest."""
        if texts == (DEFAULT,) and isinstance(self.gap.default, Mapping):
            return {}
        try:
            return self.form.parse(",".join(texts))
        except ValueError as error:
            raise InvalidRequest(str(error), field=self.name) from None

    def read(self, document: object) -> Any:  # the field's type
        """Return the value of a document, or of a value, that the dialect accepts. Raises InvalidRequest."""
        try:
            value = self.form.read(document)
            return getattr(Dialect(**{self.name: value}), self.name)
        except InvalidRequest as error:
            raise InvalidRequest(error.message.removeprefix(f"{self.name}: "), field=self.name) from None
        except ValueError as error:
            raise InvalidRequest(str(error), field=self.name) from None

    def write(self, value: Any) -> object:  # the field's type
        """Return the document of a value."""
        return self.form.write(value)

    def spell(self, document: object) -> str:
        """Return the text of a document; "default" for a mapping without changes."""
        return DEFAULT if document == {} else self.form.spell(document)


@lru_cache
def dialect_fields() -> Mapping[str, DialectField]:
    """Return every field of the dialect by name, in order."""
    from rbim._support.forms import form_of, types_of

    types = types_of(Dialect)
    return MappingProxyType(
        {gap.name: DialectField(gap=gap, form=form_of(types[gap.name], gap.default)) for gap in Dialect.gaps()}
    )


def dialect_from_env() -> Dialect:
    """Return the dialect of the environment: ``RBIM_VERSION`` and so on; an empty variable counts as not set.

    Raises InvalidRequest that names the wrong variable.
    """
    given: dict[str, Any] = {}
    for name in NAMES:
        variable = variable_of(name)
        if text := os.environ.get(variable):
            each = dialect_fields()[name]
            try:
                given[name] = each.read(each.parse(text))
            except InvalidRequest as error:
                raise InvalidRequest(f"{variable}: {error.message}", field=variable) from None
    return Dialect(**given)


def dialect_document(dialect: Dialect) -> dict[str, Any]:
    """Return the fields that differ from their defaults, as documents."""
    found: dict[str, Any] = {}
    default = Dialect()
    for name in (name for name in NAMES if getattr(dialect, name) != getattr(default, name)):
        each = dialect_fields()[name]
        document = each.write(getattr(dialect, name))
        if document != each.write(each.gap.default):
            found[name] = document
    return found


def client_document(dialect: Dialect) -> dict[str, Any]:
    """Return the fields that the client uses and that differ from their defaults, as documents."""
    return {name: document for name, document in dialect_document(dialect).items() if not dialect_fields()[name].gap.only}


def dialect_of(document: Mapping[str, Any]) -> Dialect:
    """Return the dialect of such a document. Raises InvalidRequest that names the wrong field."""
    known = dialect_fields()
    given: dict[str, Any] = {}
    for name, each in document.items():
        if name not in known:
            raise InvalidRequest(f"{name}: this version of rbim has no such field of the dialect", field=name)
        try:
            given[name] = known[name].read(each)
        except InvalidRequest as error:
            raise InvalidRequest(f"{name}: {error.message}", field=name) from None
    return Dialect(**given)


def dialect_differences(kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the fields in which two such documents differ, each with both values as text."""
    names = [name for name in dict.fromkeys([*NAMES, *kept]) if kept.get(name) != given.get(name)]
    return {name: (_text(name, kept), _text(name, given)) for name in names}


def dialect_texts(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields of such a document, also of a newer version, with their values as text."""
    return {name: _text(name, document) for name in document}


def _text(name: str, document: Mapping[str, Any]) -> str:
    each = dialect_fields().get(name)
    if each is None:  # a field of a newer version
        return json.dumps(document[name]).decode() if name in document else "unknown"
    if name in document:
        return each.spell(document[name])
    return each.spell(each.write(each.gap.default))
