"""The commands of the control interface; :mod:`rbim.emulator.server.control` serves them over HTTP.

A command is a function of the :class:`ControlContext` and of the body of the request, already read (or of the name in its
path). It returns JSON, and its docstring is its help text. The page in the browser is made of those that show parts of the
emulator: their lists are bounded, so that they cost little however much the emulator holds.
"""

import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict, cast
from urllib.parse import quote

import attrs
from attrs import frozen

from rbim._support import json
from rbim._support.local_server import is_loopback_url
from rbim.callbacks.events import Notice
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.log import DeliveryAttempt
from rbim.emulator.copies.messages import Extras, PushExtras
from rbim.emulator.copies.targets import split_url
from rbim.emulator.documents import kind_of
from rbim.emulator.emulator import Mode
from rbim.emulator.faults import Plan, copy_faults_from, faults_from
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.emulator.platform.state import Group, Task
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.emulator.emulator import Emulator

__all__ = [
    "ABOUT",
    "COMMANDS",
    "MASK",
    "PREFIX",
    "Command",
    "CommandError",
    "ControlContext",
    "DeferredAnswer",
    "as_curl",
    "without_token",
]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"
SHOWN = 200  # characters of a URL in a message
MOST = 200  # entries of a list
ATTEMPTS = 1000  # latest attempts among which messages are looked for
DIGITS = 18  # of a number in a path, at most
MASK = "•••"
"""What stands in the place of a secret."""

ANSWERLESS = ("refuse", "reset_before", "reset_after")

Close = Callable[[], Awaitable[None]]


class _Outages(Protocol):  # rbim.emulator.server.Server, which imports this module
    @property
    def listening(self) -> bool: ...
    @property
    def control_url(self) -> str: ...
    def begin_outage(self, seconds: float) -> Close: ...
    async def accept(self) -> None: ...


class CommandError(Exception):
    """A command that this emulator, or its server, cannot carry out; the text is the reason."""


class ControlContext:
    """The context of commands: the emulator, its initial state, its server if that has outages, and what is allowed.

    ``sign_copies`` and ``remote_copies`` are as for :func:`rbim.emulator.server.serve`.
    """

    def __init__(self, emulator: "Emulator", server: _Outages | None, *, sign_copies: bool, remote_copies: bool) -> None:
        self.emulator = emulator
        self.server = server
        self.may_sign_copies = sign_copies or emulator.own_credentials
        self.remote_copies = remote_copies
        self.changes = 0
        """The number of commands so far that may have changed something."""
        self._state = emulator.snapshot()
        self._faults = tuple(emulator.faults)
        self._copy_faults = tuple(emulator.copy_faults)
        self._destination = emulator.copier.destination

    @property
    def control_url(self) -> str | None:
        """The URL of the control interface that an outage does not affect; None if the server has no outages."""
        return None if self.server is None else self.server.control_url

    @property
    def listening(self) -> bool:
        """Whether clients of the platform can connect now: always, if the server has no outages."""
        return self.server is None or self.server.listening

    def reset(self) -> None:
        """Set the emulator back to its initial state. Its clock does not change."""
        emulator, copier = self.emulator, self.emulator.copier
        emulator.restore(self._state)
        emulator.requests.clear()
        _replace_faults(emulator.faults, self._faults)
        _replace_faults(emulator.copy_faults, self._copy_faults)
        copier.destination = None  # drops waiting deliveries
        copier.destination = self._destination
        emulator.deliveries.clear()
        copier.reset_count()


@frozen
class DeferredAnswer:
    """An answer, and a function to call after it is written."""

    document: Any
    then: Close


# The bodies of commands: JSON objects.


@frozen(kw_only=True)
class _Advance:
    seconds: float = 0.0
    hours: float = 0.0


@frozen(kw_only=True)
class _Seconds:
    seconds: float


@frozen(kw_only=True)
class _Login:
    account: str


@frozen(kw_only=True)
class _Waiting:
    group_id: str
    account: str


@frozen(kw_only=True)
class _Copy:
    url: str
    mode: Mode = "normal"


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


@frozen(kw_only=True)
class _Number:
    number: int


Run = Callable[[ControlContext, Any], Any]


@frozen
class Command:
    """One command.

    ``reads`` is the class of its body, ``object`` for any JSON, or None if it has only its path. ``help`` is one line.
    """

    method: str
    path: str
    run: Run
    reads: type[Any] | None
    help: str


COMMANDS: list[Command] = []


def _command(method: str, path: str, reads: type[Any] | None = None) -> Callable[[Run], Run]:
    """Return a decorator that declares a function to be a command. The arguments are the fields of :class:`Command`."""

    def register(run: Run) -> Run:
        COMMANDS.append(Command(method, PREFIX + path, run, reads, run.__doc__ or ""))
        return run

    return register


@_command("GET", "")
def _index(context: ControlContext, _: str) -> Any:
    """List the commands, and return the address during an outage."""
    commands = {f"{each.method} {each.path}": each.help for each in COMMANDS}
    return {"about": ABOUT, "control": context.control_url, "commands": commands}


@_command("GET", "state")
def _state(context: ControlContext, _: str) -> Any:
    """Return groups, tasks and accounts, as one document."""
    return context.emulator.export()


@_command("PUT", "state", object)
def _load(context: ControlContext, document: object) -> Any:
    """Replace the state by such a document."""
    context.emulator.load(document)
    return _counts(context)


@_command("POST", "reset")
def _reset(context: ControlContext, _: str) -> Any:
    """Reset everything but the clock to the initial state, and clear requests and deliveries."""
    context.reset()
    return _counts(context)


def _counts(context: ControlContext) -> Any:
    state = context.emulator.state
    return {"groups": len(state.groups), "tasks": len(state.tasks)}


def _declare_plan(
    path: str,
    of: str,
    plan_of: Callable[["Emulator"], Plan[Any]],
    read: Callable[[Any], tuple[Any, ...]],
) -> None:
    """Declare the commands of a fault plan."""

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

    def clear(context: ControlContext, _: str) -> Any:
        plan_of(context.emulator).clear()
        return []

    def counts(context: ControlContext, _: object = None) -> Any:
        return [{"matched": matched, "happened": happened} for matched, happened in plan_of(context.emulator).counts]

    def remove(context: ControlContext, number: str) -> Any:
        plan_of(context.emulator).remove(_number_in(number))
        return counts(context)

    COMMANDS.extend(
        Command(method, PREFIX + path + rest, run, reads, text)
        for method, rest, run, reads, text in (
            ("GET", "", plan, None, f"Return the fault plan{of}, a list."),
            ("PUT", "", replace, object, f"Replace the fault plan{of}: its counts and its random numbers start again."),
            ("POST", "", add, object, f"Add a fault to the plan{of}."),
            ("DELETE", "", clear, None, f"Clear the fault plan{of}."),
            ("GET", "/counts", counts, None, f"Return how often each fault{of} matched, and how often it happened."),
            (
                "DELETE",
                "/{number}",
                remove,
                None,
                f"Remove one fault{of}, by its number from 1.",
            ),
        )
    )


_declare_plan("faults", "", lambda emulator: emulator.faults, faults_from)
_declare_plan("copy-faults", " of copies", lambda emulator: emulator.copy_faults, copy_faults_from)


def _replace_faults(plan: Plan[Any], faults: tuple[Any, ...]) -> None:
    plan.clear()
    plan.add(*faults)


def _as_document(fault: Any) -> dict[str, Any]:
    """Return a fault in the form of its file; a match by a function appears as ``a function``."""
    fields = {a.name: getattr(fault, a.name) for a in attrs.fields(fault.__class__) if getattr(fault, a.name) != a.default}
    fields["effect"] = {"kind": kind_of(fault.effect.__class__)} | attrs.asdict(fault.effect)
    if callable(fault.match):
        fields["match"] = "a function"
    return fields


def _number_in(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < DIGITS):
        raise InvalidRequest(f"must be a number, from 1, not {text[:50]!r}")
    return int(text)


@_command("GET", "requests")
def _requests(context: ControlContext, _: str) -> Any:
    """List the requests so far, each with its operation and its result."""
    return [json.loads(line) for line in context.emulator.requests.trace().splitlines()]


@_command("DELETE", "requests")
def _forget(context: ControlContext, _: str) -> Any:
    """Clear the log of requests."""
    context.emulator.requests.clear()
    return []


@_command("GET", "clock")
def _clock(context: ControlContext, _: str) -> Any:
    """Return the emulator's time, and whether it is emulated."""
    clock = context.emulator.clock
    return {
        "now": clock.now().isoformat(),
        "monotonic": clock.monotonic(),
        "emulated": isinstance(clock, EmulatedClock),
    }


@_command("POST", "clock/advance", _Advance)
async def _advance(context: ControlContext, body: _Advance) -> Any:
    """Advance an emulated clock: seconds, hours."""
    if not isinstance(context.emulator.clock, EmulatedClock):
        raise CommandError(
            "the emulator uses the system clock, which cannot be advanced: start it with rbim emulator --emulated-clock"
        )
    await context.emulator.advance(body.seconds, hours=body.hours)
    return _clock(context, "")


@_command("GET", "tasks/{id}/may-call")
def _may_call(context: ControlContext, task_id: str) -> Any:
    """Return whether a task may call now (emulator-only)."""
    may_call = context.emulator.may_call(task_id)
    return {"task_id": task_id, "at": context.emulator.clock.now().isoformat(), "may_call": may_call}


@_command("POST", "outage", _Seconds)
def _outage(context: ControlContext, body: _Seconds) -> Any:
    """Refuse the platform's connections for a time: seconds of the emulator's clock."""
    # Answer first: the outage closes this connection, unless it came through the control port.
    close = _server_of(context).begin_outage(body.seconds)
    return DeferredAnswer({"seconds": body.seconds, "control": context.control_url}, close)


@_command("DELETE", "outage")
async def _end_outage(context: ControlContext, _: str) -> Any:
    """End an outage at once, through the control port."""
    await _server_of(context).accept()
    return None


def _server_of(context: ControlContext) -> _Outages:
    if context.server is None:
        raise CommandError("this server cannot refuse connections: serve the emulator with rbim emulator")
    return context.server


@_command("POST", "logins", _Login)
def _log_in(context: ControlContext, body: _Login) -> Any:
    """Log an account in for the first time: account (emulator-only)."""
    context.emulator.log_in(body.account)
    return attrs.asdict(body)


def _declare_answer(path: str, text: str) -> None:
    """Declare the command of an answer to an invitation or a request to join, by the method of its last word."""

    def answer(context: ControlContext, body: _Waiting) -> Any:
        getattr(context.emulator, path.rpartition("/")[2])(body.group_id, body.account)
        return attrs.asdict(body)

    COMMANDS.append(Command("POST", PREFIX + path, answer, _Waiting, f"{text}: group_id, account (emulator-only)."))


_declare_answer("invitations/confirm", "Accept an invitation as the invited account")
_declare_answer("invitations/decline", "Decline an invitation as the invited account")
_declare_answer("applications/approve", "Approve a request to join as the group's owner")
_declare_answer("applications/reject", "Reject a request to join as the group's owner")


# Message copy: users of the platform talk through their own clients, and a copy address is set in a console.


@_command("GET", "copy")
def _copy(context: ControlContext, _: str) -> Any:
    """Return where messages are copied to."""
    destination = context.emulator.copier.destination
    if destination is None:
        return None
    url = destination.target if isinstance(destination.target, str) else None
    return {"url": url, "mode": "high-guarantee" if destination.high else "normal"}


@_command("PUT", "copy", _Copy)
def _copy_to(context: ControlContext, body: _Copy) -> Any:
    """Copy messages from now on: url, mode (normal or high-guarantee)."""
    split_url(body.url)
    if not is_loopback_url(body.url):
        if not context.remote_copies:
            raise CommandError(
                f"url: {body.url[:SHOWN]!r} is not of this machine (localhost or a literal loopback address): start rbim "
                "emulator with --remote-copies (in Python: serve(emulator, remote_copies=True))"
            )
        if not context.may_sign_copies:
            raise CommandError(
                "message copies to another machine would be signed with the configured RBIM_APP_TOKEN: start rbim emulator "
                "with --sign-copies (in Python: serve(emulator, sign_copies=True)), or without RBIM_APP_TOKEN"
            )
    context.emulator.copy_to(body.url, body.mode)
    return _copy(context, "")


@_command("DELETE", "copy")
def _stop_copying(context: ControlContext, _: str) -> Any:
    """Stop copying messages, and drop those that wait."""
    context.emulator.copy_to(None)
    return None


@_command("GET", "deliveries")
def _deliveries(context: ControlContext, _: str) -> Any:
    """List the attempts to deliver copies, each with its result."""
    return [each.to_dict() for each in context.emulator.deliveries]


@_command("DELETE", "deliveries")
def _forget_deliveries(context: ControlContext, _: str) -> Any:
    """Clear the log of deliveries."""
    context.emulator.deliveries.clear()
    return []


@_command("POST", "say", _Say)
def _say(context: ControlContext, body: _Say) -> Any:
    """Send a message to another account or to a group: sender, to, text (emulator-only)."""
    return {"message_id": context.emulator.say(**body)}


@_command("POST", "push", _Push)
def _push(context: ControlContext, body: _Push) -> Any:
    """Push a message to one account, several, or a group: to, text (emulator-only)."""
    return {"message_id": context.emulator.push(**body)}


@_command("POST", "notify", _Notify)
def _notify(context: ControlContext, body: _Notify) -> Any:
    """Notify a group without a change of it: group_id, notice (emulator-only)."""
    return {"message_id": context.emulator.notify(**body)}


# What the page in the browser shows.


@_command("GET", "requests/{number}")
def _request(context: ControlContext, number: str) -> Any:
    """Return one of the latest requests as it was sent and answered, and as a curl command."""
    emulator = context.emulator
    log = emulator.requests
    at = _number_in(number) - (log.count - len(log.records)) - 1
    if not 0 <= at < len(log.records):
        raise LookupError(f"the log has no request {number}")
    record = log.records[at]
    exchange = None if emulator.asgi.exchanges is None else emulator.asgi.exchanges.of(record)
    if exchange is None:
        return {"number": record.number, "exchange": None, "answer": None, "curl": None}
    own = emulator.own_credentials
    secret = () if own else ("authorization", "checksum")
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in exchange.headers]
    query = exchange.query.decode("latin-1")
    curl = as_curl(
        record.path,
        exchange.body,
        app_id=emulator.credentials.app_id,
        stamp=f"{emulator.clock.now().astimezone(emulator.dialect.zone):%Y%m%d%H%M%S}",
        method=exchange.method,
    )
    answer = None
    if exchange.response is not None:
        answer = {
            "status": exchange.response.status,
            "headers": list(exchange.response.headers.items()),
            "body": _content(exchange.response.body, exchange.answer_size),
            "sent": not any(name in ANSWERLESS for name in record.trouble),
        }
    shown = {
        "number": record.number,
        "exchange": {
            "method": exchange.method,
            "path": record.path,
            "query": query if own or not query else MASK,
            "headers": [(name, MASK if name.lower() in secret else value) for name, value in headers],
            "body": _content(exchange.body, exchange.size),
            "took": exchange.took,
        },
        "answer": answer,
        "curl": curl if exchange.size == len(exchange.body) else None,
    }
    return without_token(context, shown)


def _content(body: bytes, size: int) -> dict[str, Any]:
    """Return a body as text, or in Base64 if it is not UTF-8; ``size`` is that of the whole body."""
    cut = size > len(body)
    try:
        text = body.decode(errors="ignore" if cut else "strict")  # a cut may divide a character
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode(), "size": size, "cut": cut}
    return {"text": text, "size": size, "cut": cut}


def without_token(context: ControlContext, value: Any) -> Any:  # JSON
    """Return JSON without the emulator's token, wherever it stands in a text: also where a request has it by mistake.

    A token that is the application id, as in an experiment, is in every path and is no secret.
    """
    token = context.emulator.credentials.app_token.reveal()

    def masked(value: Any) -> Any:  # JSON
        if isinstance(value, str):
            return value.replace(token, MASK)
        if isinstance(value, dict):
            return {name: masked(each) for name, each in cast("dict[str, Any]", value).items()}
        return [masked(each) for each in cast("list[Any]", value)] if isinstance(value, (list, tuple)) else value

    return value if token == context.emulator.credentials.app_id else masked(value)


def as_curl(path: str, body: bytes, *, app_id: str, stamp: str, method: str = "POST") -> str:
    """Return a request as a command for a shell, which signs it for a day from ``stamp`` with ``RBIM_APP_TOKEN``."""
    segments = ["$RBIM_APP_ID" if segment == app_id else quote(segment, safe="~") for segment in path.lstrip("/").split("/")]
    text = body.decode(errors="replace")
    if text.encode() == body and all(each.isprintable() or each in "\n\t" for each in text):
        source, data = "", f"--data-raw {shlex.quote(text)}"
    else:
        source, data = f"printf %s {b64encode(body).decode()} | base64 -d | ", "--data-binary @-"
    verb = "" if method == "POST" else f" -X {shlex.quote(method)}"
    lines = [
        f"stamp={stamp}",
        "sig=$(printf %s \"$RBIM_APP_ID$RBIM_APP_TOKEN$stamp\" | md5sum | cut -d' ' -f1 | tr a-z A-Z)",
        f'{source}curl -sS{verb} "$RBIM_BASE_URL/{"/".join(segments)}?sig=$sig" \\',
        '    -H "Authorization: $(printf %s "$RBIM_APP_ID:$stamp" | base64 -w0)" \\',
        f"    -H 'Content-Type: application/json;charset=utf-8' {data}",
    ]
    return "\n".join(lines)


# Groups and accounts.


@_command("GET", "groups")
def _groups(context: ControlContext, _: str) -> Any:
    """List the newest groups, with the number of their members."""
    groups = context.emulator.state.groups
    return {"total": len(groups), "groups": [_summary(each) for each in islice(reversed(groups.values()), MOST)]}


@_command("GET", "groups/{group_id}")
def _group(context: ControlContext, group_id: str) -> Any:
    """Return one group with its members, their roles, and who waits to join."""
    group = context.emulator.state.groups.get(group_id)
    if group is None:
        raise LookupError(f"there is no group {group_id}")
    return _summary(group) | {
        "declared": group.declared,
        "group_domain": group.group_domain,
        "created": group.created.isoformat(),
        "accounts": [{"account": account, "role": str(role)} for account, role in group.members.items()],
        "invitations": list(group.invited),
        "applications": list(group.applied),
    }


@_command("GET", "groups/with/{text}")
def _groups_with(context: ControlContext, text: str) -> Any:
    """List the newest groups whose id or name contains a text."""
    wanted = text.strip().casefold()  # a browser cannot send ".." without a space
    groups = reversed(context.emulator.state.groups.values())
    found = [each for each in groups if wanted in each.group_id.casefold() or wanted in each.name.casefold()]
    return {"total": len(found), "groups": [_summary(each) for each in found[:MOST]]}


def _summary(group: Group) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "name": group.name,
        "type": str(group.type),
        "permission": str(group.permission),
        "target": str(group.target),
        "owner": group.owner,
        "members": len(group.members),
        "member_limit": group.type.member_limit,
        "invited": len(group.invited),
        "applied": len(group.applied),
    }


@_command("GET", "accounts")
def _accounts(context: ControlContext, _: str) -> Any:
    """List accounts, with their groups and whether they have logged in."""
    return _accounts_with(context, "")


@_command("GET", "accounts/with/{text}")
def _accounts_with(context: ControlContext, text: str) -> Any:
    """List accounts whose name contains a text."""
    state, wanted = context.emulator.state, text.strip().casefold()
    groups: Counter[str] = Counter()
    for group in state.groups.values():
        groups.update(group.members.keys())
        groups.update(dict.fromkeys([*group.invited, *group.applied], 0))
    groups.update(dict.fromkeys([*state.never_logged_in, *(state.known or ())], 0))
    found = [each for each in reversed(groups.items()) if wanted in each[0].casefold()]
    return {
        "total": len(found),
        "accounts": [
            {"account": account, "groups": count, "logged_in": state.has_logged_in(account)}
            for account, count in found[:MOST]
        ],
    }


@_command("GET", "tasks")
def _tasks(context: ControlContext, _: str) -> Any:
    """List the newest call tasks, with whether each may call now."""
    tasks = context.emulator.state.tasks
    return {"total": len(tasks), "tasks": [_shown_task(context, each) for each in islice(reversed(tasks.values()), MOST)]}


def _shown_task(context: ControlContext, task: Task) -> dict[str, Any]:
    request = task.request
    try:
        may_call = context.emulator.may_call(task.task_id)
    except DependsOnDialect:
        may_call = None
    return {
        "task_id": task.task_id,
        "name": request.task_name,
        "description": request.task_desc,
        "bot_id": request.bot_id,
        "caller": request.caller,
        "first_day": request.start_date.isoformat(),
        "last_day": request.end_date.isoformat(),
        "max_concurrent": request.max_concurrent,
        "policies": [policy.name for policy in request.no_call_policies],
        "created": task.created.isoformat(),
        "may_call": may_call,
    }


# Message copies.


@_command("GET", "messages")
def _messages(context: ControlContext, _: str) -> Any:
    """List the latest copied messages, each with its attempts."""
    copier = context.emulator.copier
    found: dict[int, list[DeliveryAttempt]] = {}
    for each in reversed(context.emulator.deliveries.records[-ATTEMPTS:]):
        found.setdefault(each.number, []).append(each)
    newest = [found[number] for number in sorted(found, reverse=True)[:MOST]]
    document = {
        "waiting": len(copier.queue),
        "messages": [_message(attempts[::-1], own=context.emulator.own_credentials) for attempts in newest],
    }
    return without_token(context, document)


def _message(attempts: list[DeliveryAttempt], *, own: bool) -> dict[str, Any]:
    """Return a message with its attempts, without their signatures if the token is not the emulator's own."""
    first, shown = attempts[0], list[dict[str, Any]]()
    for each in attempts:
        attempt = each.to_dict()
        if not own:
            attempt["headers"]["CheckSum"] = MASK
        shown.append({name: value for name, value in attempt.items() if name not in {"key", "number", "message_id", "body"}})
    return {
        "number": first.number,
        "message_id": first.message_id,
        "key": first.key,
        "event": first.document,
        "body": first.body.decode(errors="backslashreplace"),
        "attempts": shown,
    }


@_command("POST", "deliveries/again", _Number)
def _send_again(context: ControlContext, body: _Number) -> Any:
    """Deliver a copied message again, as a resend: number (emulator-only)."""
    if context.emulator.copier.destination is None:
        raise CommandError("messages are not copied now: set a target first (PUT /_emulator/copy)")
    context.emulator.send_again(body.number)
    return {"number": body.number}
