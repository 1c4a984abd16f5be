"""The control interface as an OpenAPI 3.1 document, derived from its commands and their types."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from rbim import __version__
from rbim.emulator.server.answers import Failure, RefusedRequest
from rbim.emulator.server.schema import Schema, Schemas

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.emulator.server.commands import Command

__all__ = ["openapi"]

TITLE = "The control interface of rbim emulator"
ABOUT = (
    "Commands of an emulator of a written interface description, never of the service. They need no signature. Each command "
    "but GET needs the header Content-Type: application/json, also without a body. The operations of the platform are not "
    "in this document."
)
URL = "http://127.0.0.1:8883"
_PARAMETER = re.compile(r"\{(\w+)\}")


def openapi(commands: Iterable[Command], url: str = URL) -> Schema:
    """Return the document. Raises TypeError for a command whose answer has no type. ``url`` is the emulator's base URL."""
    schemas = Schemas()
    failure, refused = schemas.of(Failure), schemas.of(RefusedRequest)
    paths: dict[str, dict[str, Any]] = {}
    for command in commands:
        paths.setdefault(command.path, {})[command.method.lower()] = _operation(command, schemas, failure, refused)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": __version__, "description": ABOUT},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.components.items()))},
    }


def _operation(command: Command, schemas: Schemas, failure: Schema, refused: Schema) -> Schema:
    answer = schemas.of(command.answer)
    operation: Schema = {
        "operationId": _identifier(command),
        "summary": command.help,
        "responses": {
            "200": _response(HTTPStatus.OK.phrase, answer),
            "403": _response("A web page of another server, or another host", refused),
            "default": _response("A refusal", failure),
        },
    }
    names = _PARAMETER.findall(command.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if command.method != "GET":
        body = None if command.document is None else schemas.of(command.document)
        content = {"application/json": {"schema": body or {}}}
        operation["requestBody"] = {"required": body is not None, "content": content}
    return operation


def _identifier(command: Command) -> str:
    words = re.findall(r"\w+", command.path.removeprefix("/_emulator/")) or ["index"]
    return "_".join([command.method.lower(), *words]).replace("-", "_")


def _response(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
