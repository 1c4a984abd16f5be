"""The control interface: the emulator's own commands over HTTP, JSON in and out, for a second screen.

The described interface has nothing like it. It is off unless an emulator is served with it
(:func:`rbim.emulator.server.serve`, or ``Control(emulator)`` on any ASGI server); it asks for no signature and shows no
token.

====== =============================== ======================================================================================
method path                            what it does
====== =============================== ======================================================================================
GET    /_emulator/                     tell what this is, and its commands
GET    /_emulator/state                tell groups, tasks and accounts, as one document
PUT    /_emulator/state                make the state what such a document says
POST   /_emulator/reset                make everything but the clock what it was at first, and forget requests and deliveries
GET    /_emulator/faults               tell the fault plan, a list
PUT    /_emulator/faults               replace the fault plan: its counts and its chance begin anew
DELETE /_emulator/faults               empty the fault plan
GET    /_emulator/requests             tell each request so far, what it asked for and what became of it
DELETE /_emulator/requests             forget the requests
GET    /_emulator/clock                tell the emulator's time, and whether it is emulated
POST   /_emulator/clock/advance        let an emulated clock's time pass: seconds, hours
GET    /_emulator/tasks                tell the call tasks
GET    /_emulator/tasks/{id}/may-call  tell whether a task may call at this moment (emulator-only)
POST   /_emulator/outage               refuse all connections for so many seconds of the emulator's clock
POST   /_emulator/logins               let an account log in for the first time: account (emulator-only)
POST   /_emulator/invitations/confirm  let an account accept an invitation: group_id, account (emulator-only)
POST   /_emulator/invitations/decline  let an account turn an invitation down: group_id, account (emulator-only)
POST   /_emulator/applications/approve let a group's owner accept a request to join: group_id, account (emulator-only)
POST   /_emulator/applications/reject  let a group's owner turn a request to join down: group_id, account (emulator-only)
GET    /_emulator/copy                 tell where messages are copied to
PUT    /_emulator/copy                 copy messages from now on: url, mode (normal or high-guarantee)
DELETE /_emulator/copy                 copy messages no more, and drop those that wait
GET    /_emulator/copy-faults          tell the fault plan of copies, a list
PUT    /_emulator/copy-faults          replace the fault plan of copies
DELETE /_emulator/copy-faults          empty the fault plan of copies
GET    /_emulator/deliveries           tell each attempt to deliver a copy, and what became of it
DELETE /_emulator/deliveries           forget the deliveries
POST   /_emulator/say                  let an account say something to another or a group: sender, to, text (emulator-only)
POST   /_emulator/push                 push a message to one account, several, or a group: to, text (emulator-only)
POST   /_emulator/notify               notify a group of what has not happened: group_id, notice (emulator-only)
====== =============================== ======================================================================================

What is wrong with a request is said as ``{"error": ...}``: 400 (no JSON, or a field is wrong), 404 (no such command, or
nothing of that name), 405 (the command takes another method), 409 (not as things stand), 413 (too long).
"""

from __future__ import annotations

import re
from functools import cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from cattrs import Converter, transform_error

from rbim._support import json as jsontext
from rbim._support.asgi import TooLarge, body_of
from rbim.emulator.asgi import write
from rbim.emulator.faults.plan import in_words
from rbim.emulator.platform.rules import Refusal
from rbim.emulator.server.commands import PREFIX, Command, CommandError, ControlContext, DeferredAnswer
from rbim.emulator.server.copy_commands import COMMANDS
from rbim.errors import InvalidRequest
from rbim.http import Response

if TYPE_CHECKING:
    from rbim._support.asgi import Receive, Scope, Send
    from rbim.emulator.emulator import Emulator
    from rbim.emulator.server.commands import Outage

__all__ = ["Control"]

BODY_LIMIT = 64 * 1024 * 1024
JSON = {"content-type": "application/json;charset=utf-8"}


class _RequestError(Exception):
    """A request that is not carried out, with the HTTP status and the headers that say so."""

    def __init__(self, status: int, why: str, **headers: str) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers


class Control:
    """An ASGI 3 application: the emulator's own, behind its control interface.

    ``outage`` lets a server that can refuse connections for so many seconds, and returns what closes those that exist. What
    the emulator is now is what a reset makes of it.
    """

    def __init__(self, emulator: Emulator, *, outage: Outage | None = None) -> None:
        self._app = emulator.asgi
        self._desk = ControlContext(emulator, outage)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if not path.startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        status, headers = 200, dict[str, str]()
        try:
            body = await body_of(receive, BODY_LIMIT)
            if body is None:
                return
            said = await self._said(scope["method"], path, body)
        except TooLarge as error:
            status, said = 413, {"error": str(error)}
        except _RequestError as trouble:
            status, said, headers = trouble.status, {"error": str(trouble)}, trouble.headers
        document = said.said if isinstance(said, DeferredAnswer) else said
        await write(send, Response(status, {**JSON, **headers}, jsontext.dumps(document)))
        if isinstance(said, DeferredAnswer):
            await said.then()

    async def _said(self, method: str, path: str, body: bytes) -> Any:  # JSON, or Later
        command, name = _found(method, path)
        try:
            said = command.run(self._desk, name if command.reads is None else _read(body, command.reads))
            return await said if isawaitable(said) else said
        except InvalidRequest as error:
            raise _RequestError(400, error.message) from None
        except LookupError as error:
            raise _RequestError(404, str(error)) from None
        except (Refusal, CommandError) as error:
            raise _RequestError(409, str(error)) from None


def _found(method: str, path: str) -> tuple[Command, str]:
    """Return the command that a request is for, and the name in its path."""
    found = [(command, match) for command in COMMANDS if (match := _pattern(command.path).fullmatch(path))]
    if not found:
        raise _RequestError(404, f"there is no command {path}; GET {PREFIX} tells which there are")
    for command, match in found:
        if command.method == method:
            return command, "".join(match.groups())
    allowed = ", ".join(command.method for command, _ in found)
    raise _RequestError(405, f"{path} takes {allowed}, not {method}", allow=allowed)


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "([^/]+)", re.escape(path)))


def _read(body: bytes, kind: type[Any]) -> Any:  # what the command reads
    try:
        document = jsontext.loads(body)
        if rb"\u" in body:  # which may be half of a pair: no answer could repeat that
            jsontext.dumps(document)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from None
    if kind is object:
        return document
    if not isinstance(document, dict):
        raise InvalidRequest(f"an object is needed, not {type(document).__name__}")
    try:
        return _converter.structure(document, kind)
    except Exception as error:  # whatever is wrong with a document
        raise InvalidRequest("; ".join(transform_error(error, format_exception=in_words))) from None


def _exactly(value: object, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise InvalidRequest(f"{kind.__name__} is needed, not {value!r}")
    return value


def _number(value: object, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise InvalidRequest(f"a number from 0 on is needed, not {value!r}")
    return float(value)


def _texts(value: object, _: object) -> tuple[str, ...]:
    return tuple(_exactly(each, str) for each in _exactly(value, list))  # cattrs would take a text apart into letters


_converter = Converter(forbid_extra_keys=True)
for _kind in (str, bool):
    _converter.register_structure_hook(_kind, _exactly)
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _texts)
