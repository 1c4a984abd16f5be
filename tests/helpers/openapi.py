"""The OpenAPI document of the emulator's control interface, as a judge of answers. Needs jsonschema."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from rbim.emulator.server.copy_commands import COMMANDS
from rbim.emulator.server.openapi import openapi

__all__ = ["document", "judge", "seen", "valid"]


@cache
def document() -> dict[str, Any]:
    return openapi(COMMANDS)


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))), path) for path in document()["paths"]]


def schema_of(method: str, path: str, status: int) -> dict[str, Any]:
    """Return the schema of an answer; that of a failure for a path or a method that there is not."""
    found = next((template for pattern, template in _patterns() if pattern.fullmatch(path)), "/_emulator/")
    operations = document()["paths"][found]
    responses = operations.get(method.lower(), operations[next(iter(operations))])["responses"]
    return responses.get(str(status), responses["default"])["content"]["application/json"]["schema"]


def judge(method: str, path: str, status: int, answer: Any) -> None:
    """Raise ValidationError for an answer that is not as the document says."""
    valid(schema_of(method, path, status)).validate(answer)


def valid(schema: dict[str, Any]) -> Draft202012Validator:
    """Return a validator of a schema of the document."""
    return Draft202012Validator(schema | {"components": document()["components"]})


def seen(schema: dict[str, Any], value: Any, into: set[tuple[str, str]]) -> None:
    """Add the fields of components that a value has, as pairs of the component and the field."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = document()["components"]["schemas"][name]
        into |= {(name, key) for key in value if key in schema.get("properties", {})}
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if valid(branch).is_valid(value):  # equal shapes, as those of operations with the same fields, are all seen
            seen(branch, value, into)
    if isinstance(value, list):
        for each in value:
            seen(schema.get("items", {}), each, into)
    if isinstance(value, dict):
        for key, each in value.items():
            seen(schema.get("properties", {}).get(key, {}), each, into)
