"""The commands of the control interface; :mod:`rbim.emulator.server.control` serves them over HTTP.

A command is a function of the :class:`ControlContext` and of the body of the request, already read (or of the name in its
path). It returns JSON, and its docstring is its help text.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict

import attrs
from attrs import frozen

from rbim._support.local_server import is_loopback_url
from rbim.callbacks.events import Notice
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.messages import Extras, PushExtras
from rbim.emulator.copies.targets import split_url
from rbim.emulator.documents import kind_of
from rbim.emulator.emulator import Mode
from rbim.emulator.exchanges import ExchangeLog
from rbim.emulator.faults import Plan, copy_faults_from, faults_from
from rbim.emulator.server import page
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.emulator.emulator import Emulator

__all__ = [
    "ABOUT",
    "COMMANDS",
    "PREFIX",
    "Command",
    "CommandError",
    "ControlContext",
    "DeferredAnswer",
]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"
SHOWN = 200  # characters of a URL in a message

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
        if emulator.asgi.exchanges is None:
            emulator.asgi.exchanges = ExchangeLog()

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
        plan_of(context.emulator).remove(page.number_in(number))
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


@_command("GET", "requests")
def _requests(context: ControlContext, _: str) -> Any:
    """List the requests so far, each with its operation and its result."""
    return [each.to_dict() for each in context.emulator.requests]


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


@_command("POST", "deliveries/again", _Number)
def _send_again(context: ControlContext, body: _Number) -> Any:
    """Deliver a copied message again, as a resend: number (emulator-only)."""
    if context.emulator.copier.destination is None:
        raise CommandError("messages are not copied now: set a target first (PUT /_emulator/copy)")
    context.emulator.send_again(body.number)
    return {"number": body.number}


# What the page in the browser shows.


@_command("GET", "live/{position}")
def _live(context: ControlContext, position: str) -> Any:
    """Return the counters, and the requests after a position: 0, or that of the answer before."""
    emulator = context.emulator
    return {
        "counts": page.counts(emulator),
        "clock": _clock(context, ""),
        "copied": emulator.copier.destination is not None,
        "listening": context.listening,
        "control": context.control_url,
        "changes": [*page.changes(emulator), context.changes],
        "requests": page.latest(emulator, position),
    }


def _declare_view(path: str, show: Callable[["Emulator", str], Any], text: str = "") -> None:
    """Declare a command that shows a part of the emulator, by the name in its path. ``text`` is its help, if not its own."""

    def run(context: ControlContext, name: str) -> Any:
        return show(context.emulator, name)

    COMMANDS.append(Command("GET", PREFIX + path, run, None, text or show.__doc__ or ""))


_declare_view("requests/{number}", page.request)
_declare_view("groups", page.groups, "List the newest groups, with the number of their members.")
_declare_view("groups/{group_id}", page.group)
_declare_view("groups/with/{text}", page.groups)
_declare_view("accounts", page.accounts, "List accounts, with their groups and whether they have logged in.")
_declare_view("accounts/with/{text}", page.accounts)
_declare_view("tasks", page.tasks)
_declare_view("messages", page.messages)
