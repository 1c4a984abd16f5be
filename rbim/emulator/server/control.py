"""The control interface: commands that only the emulator has, over HTTP with JSON, for tests and for use by hand.

The described interface has nothing like it. :func:`rbim.emulator.server.serve` serves it, and any ASGI server serves it with
``Control(emulator)``. It requires no signature and shows no token. Requests of web pages of other servers are refused. Each
command but GET needs ``Content-Type: application/json``, also without a body: a browser sends that only with a permission,
which the emulator never gives. ``GET /_emulator/`` lists the commands.

A refused request is answered with ``{"error": ...}``: 400 (not JSON, or a wrong field), 403 (a page of another server, or
another Host), 404 (no such command, or no object of that name), 405 (the command has another method), 409 (not possible in
the present state, or without a flag), 413 (too long), 415 (another Content-Type).
"""

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, Required, TypedDict
from urllib.parse import quote, unquote

import attrs
from attrs import field, frozen

from rbim._support import json
from rbim._support.asgi import TooLarge, body_of
from rbim._support.local_server import LocalServerGuard, is_json, is_loopback_url
from rbim.callbacks.events import ClientType, MsgType, Notice
from rbim.codes import MALFORMED
from rbim.emulator.asgi import OUTCOME, write
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.messages import Extras, PushExtras
from rbim.emulator.copies.targets import split_url
from rbim.emulator.documents import exactly, kind_of, read_document, strict_converter
from rbim.emulator.emulator import Emulator, Mode
from rbim.emulator.faults import Plan, copy_faults_from, faults_from
from rbim.emulator.platform.rules import Refusal
from rbim.emulator.server import page
from rbim.errors import InvalidRequest
from rbim.http import Response
from rbim.page.assets import SECURITY_HEADERS, Page, prefers_html
from rbim.validators import Accounts

if TYPE_CHECKING:
    from rbim._support.asgi import App, Receive, Scope, Send

__all__ = [
    "ABOUT",
    "COMMANDS",
    "PREFIX",
    "Command",
    "CommandError",
    "Control",
    "ControlApp",
    "ControlContext",
    "DeferredAnswer",
    "guard_of",
]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"
SHOWN = 200  # characters of a URL in a message
BODY_LIMIT = 64 * 1024 * 1024
HEADERS = {"content-type": "application/json;charset=utf-8", **SECURITY_HEADERS}
ICON = "/favicon.ico"  # a browser asks for it by itself after each answer that it shows, also after a refusal
OK = 200
PAGE = Page("emulator", prefix=PREFIX)

Close = Callable[[], Awaitable[None]]


class _Outages(Protocol):  # rbim.emulator.server.Server, which imports this module
    @property
    def listening(self) -> bool: ...
    @property
    def control_url(self) -> str: ...
    def begin_outage(self, seconds: float) -> Close: ...
    async def accept(self) -> None: ...


class CommandError(Exception):
    """A command that is refused, with the HTTP status and headers of the answer (409: not possible in the present state)."""

    def __init__(self, message: str, status: int = 409, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class ControlContext:
    """The context of commands: the emulator, its initial state, its server if that has outages, and what is allowed.

    ``sign_copies`` and ``remote_copies`` are as for :func:`rbim.emulator.server.serve`.
    """

    def __init__(self, emulator: Emulator, server: _Outages | None, *, sign_copies: bool, remote_copies: bool) -> None:
        self.emulator = emulator
        self.server = server
        self.may_sign_copies = sign_copies or emulator.own_credentials
        self.remote_copies = remote_copies
        self.changes = 0
        """The number of commands so far that may have changed something."""
        self.state = emulator.snapshot()
        self.faults = tuple(emulator.faults)
        self.copy_faults = tuple(emulator.copy_faults)
        self.destination = emulator.copier.destination

    @property
    def control_url(self) -> str | None:
        """The URL of the control interface that an outage does not affect; None if the server has no outages."""
        return None if self.server is None else self.server.control_url


@frozen
class DeferredAnswer:
    """An answer, and a function to call after it is written."""

    document: Any
    then: Close


# The bodies of commands: JSON objects.


class _Advance(TypedDict, total=False):
    seconds: float
    hours: float


class _Seconds(TypedDict):
    seconds: float


class _Login(TypedDict):
    account: str


class _Waiting(TypedDict):
    group_id: str
    account: str


class _Copy(TypedDict):
    url: str
    mode: NotRequired[Mode]


class _Say(Extras, total=False):
    sender: Required[str]
    to: Required[str]
    text: str


class _Push(PushExtras, total=False):
    to: Required[str | tuple[str, ...]]
    sender: str
    text: str


class _Notify(TypedDict, total=False):
    group_id: Required[str]
    notice: Required[Notice]
    members: tuple[str, ...]
    actor: str
    text: str


class _Number(TypedDict):
    number: int


Run = Callable[[ControlContext, Any], Any]


def _below(path: str) -> str:
    return PREFIX + path


@frozen
class Command:
    """One command, with its path below ``/_emulator/`` and one line of help.

    ``reads`` is the type of its body, ``object`` for any JSON, or None if it has only the name in its path.
    """

    method: str
    path: str = field(converter=_below)
    help: str
    run: Run
    reads: Any = None


# Those that are more than a call of the emulator.


def _index(context: ControlContext, _: str) -> Any:
    commands = {f"{each.method} {each.path}": each.help for each in COMMANDS}
    return {"about": ABOUT, "control": context.control_url, "commands": commands}


def _load(context: ControlContext, document: object) -> Any:
    context.emulator.load(document)
    return _counts(context)


def _reset(context: ControlContext, _: str) -> Any:
    emulator = context.emulator
    emulator.restore(context.state)
    emulator.requests.clear()
    _replace_faults(emulator.faults, context.faults)
    _replace_faults(emulator.copy_faults, context.copy_faults)
    emulator.copier.reset(context.destination)
    return _counts(context)


def _counts(context: ControlContext) -> Any:
    state = context.emulator.state
    return {"groups": len(state.groups), "tasks": len(state.tasks)}


def _clock(context: ControlContext, _: object = None) -> Any:
    clock = context.emulator.clock
    return {"now": clock.now().isoformat(), "monotonic": clock.monotonic(), "emulated": isinstance(clock, EmulatedClock)}


async def _advance(context: ControlContext, body: _Advance) -> Any:
    if not isinstance(context.emulator.clock, EmulatedClock):
        raise CommandError(
            "the emulator uses the system clock, which cannot be advanced: start it with rbim emulator --emulated-clock"
        )
    await context.emulator.advance(**body)
    return _clock(context)


def _may_call(context: ControlContext, task_id: str) -> Any:
    may_call = context.emulator.may_call(task_id)
    return {"task_id": task_id, "at": context.emulator.clock.now().isoformat(), "may_call": may_call}


def _outage(context: ControlContext, body: _Seconds) -> Any:
    # Answer first: the outage closes this connection, unless it came through the control port.
    close = _server_of(context).begin_outage(body["seconds"])
    return DeferredAnswer({**body, "control": context.control_url}, close)


def _server_of(context: ControlContext) -> _Outages:
    if context.server is None:
        raise CommandError("this server cannot refuse connections: serve the emulator with rbim emulator")
    return context.server


def _copy(context: ControlContext, _: object = None) -> Any:
    destination = context.emulator.copier.destination
    if destination is None:
        return None
    url = destination.target if isinstance(destination.target, str) else None
    return {"url": url, "mode": "high-guarantee" if destination.high else "normal"}


def _copy_to(context: ControlContext, body: _Copy) -> Any:
    url = body["url"]
    split_url(url)
    if not is_loopback_url(url):
        if not context.remote_copies:
            raise CommandError(
                f"url: {url[:SHOWN]!r} is not of this machine (localhost or a literal loopback address): start rbim "
                "emulator with --remote-copies (in Python: serve(emulator, remote_copies=True))"
            )
        if not context.may_sign_copies:
            raise CommandError(
                "message copies to another machine would be signed with the configured RBIM_APP_TOKEN: start rbim emulator "
                "with --sign-copies (in Python: serve(emulator, sign_copies=True)), or without RBIM_APP_TOKEN"
            )
    context.emulator.copy_to(url, body.get("mode", "normal"))
    return _copy(context)


def _send_again(context: ControlContext, body: _Number) -> Any:
    if context.emulator.copier.destination is None:
        raise CommandError("messages are not copied now: set a target first (PUT /_emulator/copy)")
    context.emulator.send_again(body["number"])
    return body


def _live(context: ControlContext, position: str) -> Any:
    emulator = context.emulator
    return {
        "counts": page.counts(emulator),
        "clock": _clock(context),
        "copied": emulator.copier.destination is not None,
        "listening": context.server is None or context.server.listening,
        "control": context.control_url,
        "changes": [*page.changes(emulator), context.changes],
        "requests": page.latest(emulator, position),
    }


def _call(method: str) -> Run:
    """Return a command that calls a method of the emulator with its body, and returns a message's id, or else the body."""

    def run(context: ControlContext, body: dict[str, Any]) -> Any:
        message_id = getattr(context.emulator, method)(**body)
        return body if message_id is None else {"message_id": message_id}

    return run


def _show(part: Callable[[Emulator, str], Any]) -> Run:
    """Return a command that shows a part of the emulator, by the name in the path."""
    return lambda context, name: part(context.emulator, name)


def _log(name: str) -> Run:
    return lambda context, _: [each.to_dict() for each in getattr(context.emulator, name)]


def _plan(
    path: str, of: str, plan_of: Callable[[Emulator], Plan[Any]], read: Callable[[Any], tuple[Any, ...]]
) -> list[Command]:
    """Return the commands of a fault plan."""

    def plan(context: ControlContext, _: object = None) -> Any:
        return [_as_document(fault) for fault in plan_of(context.emulator)]

    def replace(context: ControlContext, document: object) -> Any:
        _replace_faults(plan_of(context.emulator), read(document))
        return plan(context)

    def add(context: ControlContext, document: object) -> Any:
        try:
            (fault,) = read([document])
        except InvalidRequest as error:
            raise InvalidRequest(error.message.replace("$[0]", "$"), field=error.field) from None  # there is no list
        plan_of(context.emulator).add(fault)
        return plan(context)

    def counts(context: ControlContext, _: object = None) -> Any:
        return [{"matched": matched, "happened": happened} for matched, happened in plan_of(context.emulator).counts]

    def remove(context: ControlContext, number: str) -> Any:
        plan_of(context.emulator).remove(page.number_in(number))
        return counts(context)

    return [
        Command("GET", path, f"Return the fault plan{of}, a list.", plan),
        Command("PUT", path, f"Replace the fault plan{of}: its counts and its random numbers start again.", replace, object),
        Command("POST", path, f"Add a fault to the plan{of}.", add, object),
        Command("DELETE", path, f"Clear the fault plan{of}.", lambda context, _: plan_of(context.emulator).clear()),
        Command("GET", f"{path}/counts", f"Return how often each fault{of} matched, and how often it happened.", counts),
        Command("DELETE", f"{path}/{{number}}", f"Remove one fault{of}, by its number from 1.", remove),
    ]


def _replace_faults(plan: Plan[Any], faults: tuple[Any, ...]) -> None:
    plan.clear()
    plan.add(*faults)


def _as_document(fault: Any) -> dict[str, Any]:
    """Return a fault in the form of its file; a match by a function appears as ``a function``."""
    found = {a.name: getattr(fault, a.name) for a in attrs.fields(fault.__class__) if getattr(fault, a.name) != a.default}
    found["effect"] = {"kind": kind_of(fault.effect.__class__)} | attrs.asdict(fault.effect)
    if callable(fault.match):
        found["match"] = "a function"
    return found


COMMANDS = [
    Command("GET", "", "List the commands, and return the address during an outage.", _index),
    Command("GET", "state", "Return groups, tasks and accounts, as one document.", _show(lambda box, _: box.export())),
    Command("PUT", "state", "Replace the state by such a document.", _load, object),
    Command(
        "POST", "reset", "Reset everything but the clock to the initial state, and clear requests and deliveries.", _reset
    ),
    *_plan("faults", "", lambda emulator: emulator.faults, faults_from),
    *_plan("copy-faults", " of copies", lambda emulator: emulator.copy_faults, copy_faults_from),
    Command("GET", "requests", "List the requests so far, each with its operation and its result.", _log("requests")),
    Command("DELETE", "requests", "Clear the log of requests.", _show(lambda box, _: box.requests.clear())),
    Command("GET", "clock", "Return the emulator's time, and whether it is emulated.", _clock),
    Command("POST", "clock/advance", "Advance an emulated clock: seconds, hours.", _advance, _Advance),
    Command("GET", "tasks/{id}/may-call", "Return whether a task may call now (emulator-only).", _may_call),
    Command(
        "POST", "outage", "Refuse the platform's connections for a time: seconds of the emulator's clock.", _outage, _Seconds
    ),
    Command(
        "DELETE",
        "outage",
        "End an outage at once, through the control port.",
        lambda context, _: _server_of(context).accept(),
    ),
    # users of the platform talk through their own clients, and a copy address is set in a console
    Command("POST", "logins", "Log an account in for the first time: account (emulator-only).", _call("log_in"), _Login),
    *(
        Command("POST", path, f"{text}: group_id, account (emulator-only).", _call(path.rpartition("/")[2]), _Waiting)
        for path, text in (
            ("invitations/confirm", "Accept an invitation as the invited account"),
            ("invitations/decline", "Decline an invitation as the invited account"),
            ("applications/approve", "Approve a request to join as the group's owner"),
            ("applications/reject", "Reject a request to join as the group's owner"),
        )
    ),
    Command("GET", "copy", "Return where messages are copied to.", _copy),
    Command("PUT", "copy", "Copy messages from now on: url, mode (normal or high-guarantee).", _copy_to, _Copy),
    Command("DELETE", "copy", "Stop copying messages, and drop those that wait.", _show(lambda box, _: box.copy_to(None))),
    Command("GET", "deliveries", "List the attempts to deliver copies, each with its result.", _log("deliveries")),
    Command("DELETE", "deliveries", "Clear the log of deliveries.", _show(lambda box, _: box.deliveries.clear())),
    Command(
        "POST",
        "say",
        "Send a message to another account or to a group: sender, to, text (emulator-only).",
        _call("say"),
        _Say,
    ),
    Command(
        "POST", "push", "Push a message to one account, several, or a group: to, text (emulator-only).", _call("push"), _Push
    ),
    Command(
        "POST",
        "notify",
        "Notify a group without a change of it: group_id, notice (emulator-only).",
        _call("notify"),
        _Notify,
    ),
    Command(
        "POST",
        "deliveries/again",
        "Deliver a copied message again, as a resend: number (emulator-only).",
        _send_again,
        _Number,
    ),
    # what the page in the browser shows
    Command(
        "GET",
        "live/{position}",
        "Return the counters, and the requests after a position: 0, or that of the answer before.",
        _live,
    ),
    Command(
        "GET",
        "requests/{number}",
        "Return one of the latest requests as it was sent and answered, and as a curl command.",
        _show(page.request),
    ),
    Command("GET", "groups", "List the newest groups, with the number of their members.", _show(page.groups)),
    Command(
        "GET",
        "groups/{group_id}",
        "Return one group with its members, their roles, and who waits to join.",
        _show(page.group),
    ),
    Command("GET", "groups/with/{text}", "List the newest groups whose id or name contains a text.", _show(page.groups)),
    Command("GET", "accounts", "List accounts, with their groups and whether they have logged in.", _show(page.accounts)),
    Command("GET", "accounts/with/{text}", "List accounts whose name contains a text.", _show(page.accounts)),
    Command("GET", "tasks", "List the newest call tasks, with whether each may call now.", _show(page.tasks)),
    Command("GET", "messages", "List the latest copied messages, each with its attempts.", _show(page.messages)),
]


# The commands over HTTP.


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
        app: "App | None",
        watch: "Callable[[Scope, float], None] | None" = None,
    ) -> None:
        self._context = context
        self._guard = guard
        self._app = app
        self._watch = watch

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one scope."""
        began = perf_counter()
        try:
            await self._answer(scope, receive, send)
        except Exception as error:
            scope[OUTCOME] = 500, str(error)
            raise
        finally:
            if self._watch is not None:
                self._watch(scope, perf_counter() - began)

    async def _answer(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
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

    async def _command(self, path: str, scope: "Scope", receive: "Receive", send: "Send") -> None:
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


async def _refuse(send: "Send", status: int, why: str) -> None:
    """Refuse a request in the form of the control interface and in that of the platform, so that each client shows why."""
    document = {"error": why, "statusCode": MALFORMED, "statusMsg": why}
    await write(send, Response(status, HEADERS, json.dumps(document)))


def _find(scope: "Scope", path: str) -> tuple[Command, str]:
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
