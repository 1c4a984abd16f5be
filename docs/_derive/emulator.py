"""The control interface of the emulator: its commands, the fields of its documents, and its OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from _derive.markdown import code, table
from rbim.emulator.server.copy_commands import COMMANDS
from rbim.emulator.server.openapi import openapi

__all__ = ["commands", "fields", "openapi_file"]

DOCUMENTS = {
    "Faults of requests": ("Fault",),
    "Faults of copies": ("CopyFault",),
    "Requests": ("RecordedRequest",),
    "Deliveries": ("DeliveryAttempt",),
    "State": ("State", "Group", "Task"),
    "Clock": ("Clock", "Advance", "MayCall"),
    "Messages": ("Say", "Push", "Notify", "MessageSent"),
    "The target of copies": ("Copy", "CopyTarget"),
    "Other commands": ("Index", "Counts", "Outage", "Seconds", "Login", "Membership", "Waiting"),
}
"""The components, by heading; those that others refer to by name are not listed."""

LISTED = 12  # choices that are shown


def commands() -> str:
    """Return the table of commands."""
    rows = [(code(f"{each.method} {each.path}"), each.help[0].lower() + each.help[1:].rstrip(".")) for each in COMMANDS]
    return f"\n{table(('command', 'effect'), rows)}\n"


def fields() -> str:
    """Return a table of fields for each document."""
    found: dict[str, Any] = openapi(COMMANDS)["components"]["schemas"]
    parts: list[str] = []
    for heading, names in DOCUMENTS.items():
        parts.append(f"### {heading}\n")
        for name in names:
            parts += [f"{code(name)}: {found[name]['description']}\n", _fields(found[name])]
            kinds = found[name]["properties"].get("effect", {}).get("oneOf", ())
            if kinds:
                parts += ["The kinds of `effect`, with their fields:\n", _kinds([_target(each, found) for each in kinds])]
    return "\n" + "\n".join(parts) + "\n"


def openapi_file() -> str:
    """Return the OpenAPI document as a file."""
    return json.dumps(openapi(COMMANDS), ensure_ascii=False, indent=1) + "\n"


def _target(schema: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    return found[schema["$ref"].rpartition("/")[2]]


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        (code(name), _type(each), "yes" if name in schema["required"] else "", _meaning(each))
        for name, each in schema["properties"].items()
    ]
    return table(("field", "type", "always", "meaning"), rows)


def _kinds(kinds: list[dict[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = []
    for each in kinds:
        kind = each["properties"]["kind"]["const"]
        own = {name: field for name, field in each["properties"].items() if name != "kind"}
        rows.append((code(kind), "", "", "", each["description"]))
        rows += [
            ("", code(name), _type(field), "yes" if name in each["required"] else "", _meaning(field))
            for name, field in own.items()
        ]
    return table(("kind", "field", "type", "always", "meaning"), rows)


def _meaning(schema: dict[str, Any]) -> str:
    """Return what a field means, with pipes escaped: a pipe would end the cell of the table."""
    return str(schema.get("description", "")).replace("|", "\\|")


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "$ref" in schema:
        return code(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        some = [code(each) for each in schema["enum"][:LISTED]]
        return ", ".join(some) + (", and more" if len(schema["enum"]) > LISTED else "")
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(each) for each in schema["anyOf"] if len(schema["anyOf"]) < LISTED // 2)) or (
            "object"
        )
    if "oneOf" in schema:
        return "object"
    kinds = schema.get("type", "any")
    words = [_named(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " or ".join(words) + _bounds(schema)


def _named(kind: str, schema: dict[str, Any]) -> str:
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return {"integer": "whole number"}.get(kind, kind)


def _bounds(schema: dict[str, Any]) -> str:
    if "maximum" in schema:
        return f", {schema['minimum']:,.15g} to {schema['maximum']:,.15g}"
    return f", at least {schema['minimum']:,.15g}" if "minimum" in schema else ""
