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

from inspect import isawaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from rbim._support import json
from rbim._support.asgi import TooLarge, body_of
from rbim._support.local_server import LocalServerGuard, is_json
from rbim.callbacks.events import ClientType, MsgType
from rbim.codes import MALFORMED
from rbim.emulator.asgi import OUTCOME, write
from rbim.emulator.documents import exactly, read_document, strict_converter
from rbim.emulator.platform.rules import Refusal
from rbim.emulator.server.commands import COMMANDS, PREFIX, Command, CommandError, ControlContext, DeferredAnswer
from rbim.errors import InvalidRequest
from rbim.http import Response
from rbim.page.assets import SECURITY_HEADERS, Page, prefers_html
from rbim.validators import Accounts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.emulator.emulator import Emulator

__all__ = ["Control", "ControlApp", "guard_of"]

BODY_LIMIT = 64 * 1024 * 1024
HEADERS = {"content-type": "application/json;charset=utf-8", **SECURITY_HEADERS}
ICON = "/favicon.ico"  # a browser asks for it by itself after each answer that it shows, also after a refusal
OK = 200
PAGE = Page("emulator", prefix=PREFIX)


def guard_of(allowed_hosts: Iterable[str], *, bound: str = "localhost") -> LocalServerGuard:
    """Return the guard of a server. Raises InvalidRequest if an allowed host is not a name or an address."""
    try:
        return LocalServerGuard(allowed_hosts, bound=bound)
    except ValueError as error:
        raise InvalidRequest(f"allowed_hosts: {error}", field="allowed_hosts") from None


class ControlApp:
    """The ASGI 3 application of one port: the guard, then the page and the commands, then ``app`` for all other paths.

    Without ``app`` there is nothing else. ``watch`` is called for each request when it is answered, with its scope and the
    seconds that it took.
    """

    def __init__(
        self,
        context: ControlContext,
        guard: LocalServerGuard,
        app: Callable[[Scope, Receive, Send], Awaitable[None]] | None,
        watch: Callable[[Scope, float], None] | None = None,
    ) -> None:
        self._context = context
        self._guard = guard
        self._app = app
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope."""
        if self._watch is None:
            await self._answer(scope, receive, send)
            return
        began = perf_counter()
        try:
            await self._answer(scope, receive, send)
        except Exception as error:
            scope[OUTCOME] = 500, str(error)
            raise
        finally:
            self._watch(scope, perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if self._app is not None:
                await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        shown = scope["method"] in {"GET", "HEAD"} and prefers_html(scope)  # in a browser
        why = self._guard.refusal(scope)
        if why is not None:
            scope[OUTCOME] = 403, why
            await _refuse(send, 403, why)
        elif scope["path"] == ICON:
            await _refuse(send, 404, "the emulator has no icon")
        elif path == "/" and shown:
            await write(send, Response(303, {"location": PREFIX.lstrip("/"), "vary": "accept", **SECURITY_HEADERS}))
        elif self._app is not None and not path.startswith(PREFIX):
            await self._app(scope, receive, send)
        elif PAGE.serves(path) and (path != PREFIX or shown):
            await PAGE(scope, receive, send)
        else:
            await self._command(path, scope, receive, send)

    async def _command(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out one command, and write its answer."""
        status, headers = OK, {"vary": "accept"} if path == PREFIX else dict[str, str]()
        try:
            command, name = _find(scope, path)
            body = await body_of(receive, BODY_LIMIT)
            if body is None:
                return
            self._context.changes += command.method != "GET"
            result = command.run(self._context, name if command.reads is None else _read(body, command.reads))
            result = await result if isawaitable(result) else result
        except CommandError as error:
            status, result, headers = error.status, {"error": str(error)}, error.headers
        except TooLarge as error:
            status, result = 413, {"error": str(error)}
        except InvalidRequest as error:
            status, result = 400, {"error": error.message}
        except LookupError as error:
            status, result = 404, {"error": str(error)}
        except Refusal as error:
            status, result = 409, {"error": str(error)}
        scope[OUTCOME] = status, "" if status == OK else result["error"]
        document = result.document if isinstance(result, DeferredAnswer) else result
        await write(send, Response(status, HEADERS | headers, json.dumps(document)))
        if isinstance(result, DeferredAnswer):
            await result.then()


class Control(ControlApp):
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
        super().__init__(context, guard_of(allowed_hosts), emulator.asgi)


async def _refuse(send: Send, status: int, why: str) -> None:
    """Refuse a request in the form of the control interface and in that of the platform, so that each client shows why."""
    document = {"error": why, "statusCode": MALFORMED, "statusMsg": why}
    await write(send, Response(status, HEADERS, json.dumps(document)))


def _find(scope: Scope, path: str) -> tuple[Command, str]:
    """Return the command for a request, and the name in its path."""
    # Each segment is decoded by itself, because a name may contain a slash. A server need not give the path as it was sent,
    # or something in front of it may have changed the other one.
    root = quote(scope.get("root_path", "")).encode()
    sent = (scope.get("raw_path") or b"").partition(b"?")[0].removeprefix(root).decode("latin-1")
    segments = [unquote(each) for each in sent.split("/")]
    if "/".join(segments) != path:
        segments = path.split("/")
    found = {each.method: (each, name) for each in COMMANDS if (name := _name_in(each.path, segments)) is not None}
    if not found:
        raise CommandError(f"there is no command {path}: GET {PREFIX} lists the commands", 404)
    method = scope["method"]
    if method not in found:
        allowed = ", ".join(found)
        raise CommandError(f"{path} takes {allowed}, not {method}", 405, allow=allowed)
    command, name = found[method]
    if method != "GET" and not is_json(scope):
        needs = "needs the header Content-Type: application/json, also without a body"
        raise CommandError(f"{method} {command.path} {needs}", 415)
    return command, name


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
    return document if kind is object else read_document(_converter, exactly(document, dict), kind)


def _texts(value: Any, kind: Any) -> Any:  # JSON; a tuple of texts, or a text where that is allowed, too
    either = kind is not Accounts and isinstance(value, str)
    return value if either else _converter.structure(value, tuple[str, ...])


_converter = strict_converter()
_converter.register_structure_hook_func(lambda kind: kind is Accounts or kind == str | tuple[str, ...], _texts)
_converter.register_structure_hook_func(  # the emulator refuses a wrong one, with the right ones in its message
    lambda kind: kind in (MsgType | str, ClientType | str), lambda value, _: exactly(value, str)
)
