"""The shape of an answer of a command, from its schema, for the check of ``--field`` before anything is sent."""

from __future__ import annotations

from typing import Any

from rbim.cli.field import ANYTHING
from rbim.emulator.server.schema import Schema, Schemas

__all__ = ["shape_of_answer"]


def shape_of_answer(kind: Any) -> Any:  # a type expression in, a shape out
    """Return the shape of the documents of a type."""
    schemas = Schemas()
    return _shape(schemas.of(kind), schemas.components)


def _shape(schema: Schema, components: dict[str, Schema]) -> Any:
    if "$ref" in schema:
        schema = components[schema["$ref"].rpartition("/")[2]]
    several = [each for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ())) if each != {"type": "null"}]
    if several:
        return _shape(several[0], components) if len(several) == 1 else ANYTHING
    if "properties" in schema:
        return {name: _shape(each, components) for name, each in schema["properties"].items()}
    kinds = schema.get("type", ())
    if "array" in kinds:
        return [_shape(schema["items"], components)]
    return ANYTHING if "object" in kinds or not (kinds or "const" in schema) else None
