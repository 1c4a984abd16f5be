"""The control interface: commands that only the emulator has, over HTTP with JSON, for tests and for use by hand.

The described interface has nothing like it. :func:`rbim.emulator.server.serve` serves it, and any ASGI server serves it with
``Control(emulator)``. It requires no signature and shows no token. Requests of web pages of other servers are refused. Each
command but GET needs ``Content-Type: application/json``, also without a body: a browser sends that only with a permission,
which the emulator never gives. ``GET /_emulator/`` lists the commands.

A refused request is answered with ``{"error": ...}``: 400 (not JSON, or a wrong field), 403 (a page of another server, or
another Host), 404 (no such command, or no object of that name), 405 (the command has another method), 409 (not possible in
the present state, or without a flag), 413 (too long), 415 (another Content-Type).
"""

from __future__ import annotations

from enum import StrEnum
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin
from urllib.parse import quote, unquote

from cattrs import Converter, transform_error

from rbim._support import json
from rbim._support.asgi import TooLarge, body_of
from rbim._support.local_server import is_json
from rbim.emulator.asgi import write
from rbim.emulator.documents import in_words
from rbim.emulator.platform.rules import Refusal
from rbim.emulator.server.commands import PREFIX, Command, CommandError, ControlContext, DeferredAnswer
from rbim.emulator.server.console import Console
from rbim.emulator.server.guarded import JSON, OUTCOME, GuardedApp, guard_of
from rbim.emulator.server.view_commands import COMMANDS
from rbim.errors import InvalidRequest
from rbim.http import Response
from rbim.page.assets import SECURITY_HEADERS, prefers_html

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.emulator.emulator import Emulator

__all__ = ["Commands", "Control"]

BODY_LIMIT = 64 * 1024 * 1024
OK = 200


class _RequestError(Exception):
    """A request that is refused, with the HTTP status and headers of the answer."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class Control:
    """An ASGI 3 application: the emulator's own application with the control interface in front of it, both guarded.

    ``allowed_hosts``, ``sign_copies`` and ``remote_copies`` are as for :func:`serve`. It has no outages. A reset
    goes back to the emulator's state at the time of this call.
    """

    def __init__(
        self,
        emulator: Emulator,
        *,
        allowed_hosts: Iterable[str] = (),
        sign_copies: bool = False,
        remote_copies: bool = False,
    ) -> None:
        context = ControlContext(emulator, None, sign_copies=sign_copies, remote_copies=remote_copies)
        self._app = GuardedApp(Commands(context, Console(context), emulator.asgi), guard_of(allowed_hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        await self._app(scope, receive, send)


class Commands:
    """The ASGI 3 application of the commands and the page. Other paths, and other scopes, go to ``app`` if there is one."""

    def __init__(
        self,
        context: ControlContext,
        console: Console,
        app: Callable[[Scope, Receive, Send], Awaitable[None]] | None = None,
    ) -> None:
        self._context = context
        self._console = console
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        if path == "/" and _shows_pages(scope):
            await write(send, Response(303, {"location": PREFIX.lstrip("/"), "vary": "accept", **SECURITY_HEADERS}))
            return
        if self._app is not None and not path.startswith(PREFIX):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and self._console.serves(scope, path):
            await self._console(scope, receive, send)
            return
        status, headers = OK, {"vary": "accept"} if path == PREFIX else dict[str, str]()
        try:
            command, name = _find(scope["method"], path, _segments(scope, path))
            _require_json(command, scope)
            body = await body_of(receive, BODY_LIMIT)
            if body is None:
                return
            result = await self._run(command, name, body)
        except TooLarge as error:
            status, result = 413, {"error": str(error)}
        except _RequestError as error:
            status, result, headers = error.status, {"error": str(error)}, error.headers
        scope[OUTCOME] = status, "" if status == OK else result["error"]
        document = result.document if isinstance(result, DeferredAnswer) else result
        await write(send, Response(status, {**JSON, **SECURITY_HEADERS, **headers}, json.dumps(document)))
        if isinstance(result, DeferredAnswer):
            await result.then()

    async def _run(self, command: Command, name: str, body: bytes) -> Any:  # JSON, or DeferredAnswer
        self._context.changes += command.method != "GET"
        try:
            result = command.run(self._context, name if command.reads is None else _read(body, command.reads))
            return await result if isawaitable(result) else result
        except InvalidRequest as error:
            raise _RequestError(400, error.message) from None
        except LookupError as error:
            raise _RequestError(404, str(error)) from None
        except (Refusal, CommandError) as error:
            raise _RequestError(409, str(error)) from None


def _shows_pages(scope: Scope) -> bool:
    return scope["method"] in {"GET", "HEAD"} and prefers_html(scope)


def _segments(scope: Scope, path: str) -> list[str]:
    """Return the segments of the path, each decoded by itself, because a name may contain a slash.

    A server need not give the path as it was sent, or something in front of it may have changed the other one.
    """
    root = quote(scope.get("root_path", "")).encode()
    sent = scope.get("raw_path") or b""
    segments = [unquote(each) for each in sent.partition(b"?")[0].removeprefix(root).decode("latin-1").split("/")]
    return segments if "/".join(segments) == path else path.split("/")


def _find(method: str, path: str, segments: list[str]) -> tuple[Command, str]:
    """Return the command for a request, and the name in its path."""
    found = [(command, name) for command in COMMANDS if (name := _name_in(command.path, segments)) is not None]
    if not found:
        raise _RequestError(404, f"there is no command {path}: GET {PREFIX} lists the commands")
    for command, name in found:
        if command.method == method:
            return command, name
    allowed = ", ".join(command.method for command, _ in found)
    raise _RequestError(405, f"{path} takes {allowed}, not {method}", allow=allowed)


def _require_json(command: Command, scope: Scope) -> None:
    if command.method != "GET" and not is_json(scope):
        needs = "needs the header Content-Type: application/json, also without a body"
        raise _RequestError(415, f"{command.method} {command.path} {needs}")


def _name_in(template: str, segments: list[str]) -> str | None:
    """Return what stands in the place of the name in a command's path, "" if that has none; None for another path."""
    expected = template.split("/")
    if len(expected) != len(segments):
        return None
    name = ""
    for pattern, segment in zip(expected, segments, strict=True):
        if pattern.startswith("{") and segment:
            name = segment
        elif pattern != segment:
            return None
    return name


def _read(body: bytes, kind: type[Any]) -> Any:  # an object of ``kind``, or any JSON
    try:
        document = json.loads(body)
        if rb"\u" in body:  # it may escape a lone surrogate, which no answer can repeat
            json.dumps(document)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if kind is object:
        return document
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be an object, not {type(document).__name__}")
    try:
        return _converter.structure(document, kind)
    except Exception as error:  # any error in a document
        raise InvalidRequest("; ".join(transform_error(error, format_exception=in_words))) from None


def _exactly(value: object, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise InvalidRequest(f"must be {kind.__name__}, not {value!r}")
    return value


def _number(value: object, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise InvalidRequest(f"must be a number of at least 0, not {value!r}")
    return float(value)


def _texts(value: object, _: object) -> tuple[str, ...]:
    return tuple(_exactly(each, str) for each in _exactly(value, list))  # cattrs would split a string into characters


def _text_or_texts(value: object, _: object) -> str | tuple[str, ...]:
    if not isinstance(value, (str, list)):
        raise InvalidRequest(f"must be a text or a list of texts, not {value!r}")
    return value if isinstance(value, str) else _texts(cast("object", value), _)


def _is_literal(kind: Any) -> bool:  # a type expression
    origin: Any = get_origin(kind)
    return origin is Literal


def _choice(value: object, kind: Any) -> Any:  # a Literal of texts, or an enum of them
    choices = get_args(kind) or tuple(kind)
    if value not in choices:
        raise InvalidRequest(f"{value!r} is not one of {', '.join(choices)}")
    return value if get_args(kind) else kind(value)


_converter = Converter(forbid_extra_keys=True)
for _kind in (str, int, bool):
    _converter.register_structure_hook(_kind, _exactly)
_converter.register_structure_hook(float, _number)
_converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _texts)
_converter.register_structure_hook_func(lambda kind: kind == str | tuple[str, ...], _text_or_texts)
_converter.register_structure_hook_func(_is_literal, _choice)
_converter.register_structure_hook(StrEnum, _choice)
