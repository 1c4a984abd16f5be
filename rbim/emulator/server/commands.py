"""The commands of the control interface; :mod:`rbim.emulator.server.control` serves them over HTTP.

A command is a function of the :class:`ControlContext` and of the body of the request, already read (or of the name in its
path). It returns JSON, and its docstring is its help text. Those that show parts of the emulator are in
:mod:`rbim.emulator.server.view_commands`, which has the whole table.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from attrs import frozen

from rbim._support import json
from rbim._support.local_server import is_loopback_url
from rbim.callbacks.events import ClientType, MsgType, Notice
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.targets import split_url
from rbim.emulator.faults.copies import COPY_KINDS, copy_faults_from
from rbim.emulator.faults.requests import KINDS, faults_from
from rbim.emulator.messaging import Mode
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
    "Outages",
    "command",
]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"
SHOWN = 200  # characters of a URL in a message


Close = Callable[[], Awaitable[None]]


class Outages(Protocol):
    """A server that can refuse the connections of the platform's clients."""

    @property
    def listening(self) -> bool:
        """Whether clients of the platform can connect now."""
        ...

    @property
    def control_url(self) -> str | None:
        """The URL of the control interface that an outage does not affect."""

    def begin_outage(self, seconds: float) -> Close:
        """Refuse connections for some seconds from now on, and return a function that closes the existing ones."""
        ...

    async def accept(self) -> None:
        """End the outage."""


class CommandError(Exception):
    """A command that this emulator, or its server, cannot carry out; the text is the reason."""


class ControlContext:
    """The context of commands: the emulator, its initial state, its server if that has outages, and what is allowed.

    ``sign_copies`` and ``remote_copies`` are as for :func:`rbim.emulator.server.serve`.
    """

    def __init__(self, emulator: "Emulator", server: Outages | None, *, sign_copies: bool, remote_copies: bool) -> None:
        self.emulator = emulator
        self.server = server
        self.may_sign_copies = sign_copies or emulator.own_credentials
        self.remote_copies = remote_copies
        self.changes = 0
        """The number of commands so far that may have changed something."""
        self._state = emulator.snapshot()
        self._faults = tuple(emulator.faults)
        self._copy_faults = tuple(emulator.copy_faults)
        self._destination = emulator.copier.dispatch.destination

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
        emulator, dispatch = self.emulator, self.emulator.copier.dispatch
        emulator.restore(self._state)
        emulator.requests.clear()
        _replace_faults(emulator.faults, self._faults)
        _replace_faults(emulator.copy_faults, self._copy_faults)
        dispatch.destination = None  # drops waiting deliveries
        dispatch.destination = self._destination
        emulator.deliveries.clear()
        emulator.copier.reset_count()


@frozen
class DeferredAnswer:
    """An answer, and a function to call after it is written."""

    document: Any
    then: Close


# The bodies of commands: JSON objects.


@frozen(kw_only=True)
class _Advance:
    """The time by which the clock is advanced."""

    seconds: float = 0.0
    hours: float = 0.0


@frozen(kw_only=True)
class _Seconds:
    """The duration of an outage."""

    seconds: float


@frozen(kw_only=True)
class _Login:
    """The account that logs in."""

    account: str


@frozen(kw_only=True)
class _Waiting:
    """An invitation or a request to join."""

    group_id: str
    account: str


@frozen(kw_only=True)
class _Copy:
    """The target of copies, and the mode."""

    url: str
    mode: Mode = "normal"


@frozen(kw_only=True)
class _MessageFields:
    """The optional fields of a message, besides sender and receiver."""

    text: str | None = None
    msg_type: MsgType | None = None
    attach: str | None = None
    ext: str | None = None
    at_user: tuple[str, ...] | None = None
    nick: str | None = None
    client_type: ClientType | None = None
    device_id: str | None = None
    link_info: str | None = None
    antispam: bool | None = None


@frozen(kw_only=True)
class _Say(_MessageFields):
    """A message of an account to another, or in a group."""

    sender: str
    to: str


@frozen(kw_only=True)
class _Push(_MessageFields):
    """A message that is pushed to one account or several, or to a group."""

    to: str | tuple[str, ...]
    sender: str | None = None
    save: bool | None = None
    apns: bool | None = None
    apns_text: str | None = None


@frozen(kw_only=True)
class _Notify:
    """A notification to the members of a group."""

    group_id: str
    notice: Notice
    members: tuple[str, ...] | None = None
    actor: str | None = None
    text: str | None = None


Run = Callable[[ControlContext, Any], Any]


@frozen(kw_only=True)
class Command:
    """One command.

    ``reads`` is the class of its body, ``object`` for any JSON, or None if it has only its path.
    """

    method: str
    path: str
    run: Run
    reads: type[Any] | None

    @property
    def help(self) -> str:
        """The help text, in one line."""
        return self.run.__doc__ or ""


COMMANDS: list[Command] = []


def command(method: str, path: str, reads: type[Any] | None = None) -> Callable[[Run], Run]:
    """Return a decorator that declares a function to be a command. The arguments are the fields of :class:`Command`."""

    def register(run: Run) -> Run:
        COMMANDS.append(Command(method=method, path=PREFIX + path, run=run, reads=reads))
        return run

    return register


@command("GET", "")
def _index(context: ControlContext, _: str) -> Any:
    """Describe the emulator, list the commands, and return the address during an outage."""
    commands = {f"{each.method} {each.path}": each.help for each in COMMANDS}
    return {"about": ABOUT, "control": context.control_url, "commands": commands}


@command("GET", "state")
def _state(context: ControlContext, _: str) -> Any:
    """Return groups, tasks and accounts, as one document."""
    return context.emulator.export()


@command("PUT", "state", object)
def _load(context: ControlContext, document: object) -> Any:
    """Replace the state by such a document."""
    context.emulator.load(document)
    return _counts(context)


@command("POST", "reset")
def _reset(context: ControlContext, _: str) -> Any:
    """Reset everything but the clock to the initial state, and clear requests and deliveries."""
    context.reset()
    return _counts(context)


def _counts(context: ControlContext) -> Any:
    state = context.emulator.state
    return {"groups": len(state.groups), "tasks": len(state.tasks)}


@command("GET", "faults")
def _faults(context: ControlContext, _: str) -> Any:
    """Return the fault plan, a list."""
    return _plan(context.emulator.faults, KINDS)


@command("PUT", "faults", object)
def _replace(context: ControlContext, document: object) -> Any:
    """Replace the fault plan: its counts and its random numbers start again."""
    _replace_faults(context.emulator.faults, faults_from(document))
    return _faults(context, "")


@command("POST", "faults", object)
def _add(context: ControlContext, document: object) -> Any:
    """Add a fault to the plan; the counts of the others go on."""
    context.emulator.faults.add(*_one(faults_from, document))
    return _faults(context, "")


@command("DELETE", "faults")
def _empty(context: ControlContext, _: str) -> Any:
    """Clear the fault plan."""
    context.emulator.faults.clear()
    return []


def _one(read: Callable[[Any], tuple[Any, ...]], document: object) -> tuple[Any, ...]:
    """Return the only fault of a document. Raises InvalidRequest without the place in a list, which there is none."""
    try:
        return read([document])
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("$[0]", "$"), field=error.field) from None


def _replace_faults(faults: Any, new: tuple[Any, ...]) -> None:  # Faults of Fault, or CopyFaults of CopyFault
    """Replace all faults of a plan."""
    faults.clear()
    faults.add(*new)


def _plan(faults: Iterable[Any], kinds: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
    """Return a plan in the form of its file; a match by a function appears as ``a function``."""
    return [_plain(fault, kinds) for fault in faults]


def _plain(fault: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    fields = {a.name: getattr(fault, a.name) for a in attrs.fields(fault.__class__) if getattr(fault, a.name) != a.default}
    kind = next(name for name, kind in kinds.items() if isinstance(fault.effect, kind))
    fields["effect"] = {"kind": kind} | attrs.asdict(fault.effect)
    if callable(fault.match):
        fields["match"] = "a function"
    return fields


@command("GET", "requests")
def _requests(context: ControlContext, _: str) -> Any:
    """List the requests so far, each with its operation and its result."""
    return [json.loads(line) for line in context.emulator.requests.trace().splitlines()]


@command("DELETE", "requests")
def _forget(context: ControlContext, _: str) -> Any:
    """Clear the log of requests."""
    context.emulator.requests.clear()
    return []


@command("GET", "clock")
def _clock(context: ControlContext, _: str) -> Any:
    """Return the emulator's time, and whether it is emulated."""
    clock = context.emulator.clock
    return {
        "now": clock.now().isoformat(),
        "monotonic": clock.monotonic(),
        "emulated": isinstance(clock, EmulatedClock),
    }


@command("POST", "clock/advance", _Advance)
async def _advance(context: ControlContext, body: _Advance) -> Any:
    """Advance an emulated clock: seconds, hours."""
    if not isinstance(context.emulator.clock, EmulatedClock):
        raise CommandError(
            "the emulator uses the system clock, which cannot be advanced: start it with rbim emulator --emulated-clock"
        )
    await context.emulator.advance(body.seconds, hours=body.hours)
    return _clock(context, "")


@command("GET", "tasks")
def _tasks(context: ControlContext, _: str) -> Any:
    """List the call tasks."""
    return context.emulator.export()["tasks"]


@command("GET", "tasks/{id}/may-call")
def _may_call(context: ControlContext, task_id: str) -> Any:
    """Return whether a task may call now (emulator-only)."""
    may_call = context.emulator.may_call(task_id)
    return {"task_id": task_id, "at": context.emulator.clock.now().isoformat(), "may_call": may_call}


@command("POST", "outage", _Seconds)
def _outage(context: ControlContext, body: _Seconds) -> Any:
    """Refuse the platform's connections for a time: seconds of the emulator's clock."""
    # Answer first: the outage closes this connection, unless it came through the control port.
    close = _outages(context).begin_outage(body.seconds)
    return DeferredAnswer({"seconds": body.seconds, "control": context.control_url}, close)


@command("DELETE", "outage")
async def _end_outage(context: ControlContext, _: str) -> Any:
    """End an outage at once, through the control port."""
    try:
        await _outages(context).accept()
    except OSError as error:
        raise CommandError(f"cannot listen again ({error.strerror}): the outage ends when the other process ends") from None
    return None


def _outages(context: ControlContext) -> Outages:
    if context.server is None:
        raise CommandError("this server cannot refuse connections: serve the emulator with rbim emulator")
    return context.server


@command("POST", "logins", _Login)
def _log_in(context: ControlContext, body: _Login) -> Any:
    """Log an account in for the first time: account (emulator-only)."""
    context.emulator.log_in(body.account)
    return attrs.asdict(body)


@command("POST", "invitations/confirm", _Waiting)
def _confirm(context: ControlContext, body: _Waiting) -> Any:
    """Accept an invitation as the invited account: group_id, account (emulator-only)."""
    context.emulator.confirm(body.group_id, body.account)
    return attrs.asdict(body)


@command("POST", "invitations/decline", _Waiting)
def _decline(context: ControlContext, body: _Waiting) -> Any:
    """Decline an invitation as the invited account: group_id, account (emulator-only)."""
    context.emulator.decline(body.group_id, body.account)
    return attrs.asdict(body)


@command("POST", "applications/approve", _Waiting)
def _approve(context: ControlContext, body: _Waiting) -> Any:
    """Approve a request to join as the group's owner: group_id, account (emulator-only)."""
    context.emulator.approve(body.group_id, body.account)
    return attrs.asdict(body)


@command("POST", "applications/reject", _Waiting)
def _reject(context: ControlContext, body: _Waiting) -> Any:
    """Reject a request to join as the group's owner: group_id, account (emulator-only)."""
    context.emulator.reject(body.group_id, body.account)
    return attrs.asdict(body)


# Message copy: users of the platform talk through their own clients, and a copy address is set in a console.


def _given(body: Any) -> dict[str, Any]:
    return {name: value for name, value in attrs.asdict(body, recurse=False).items() if value is not None}


@command("GET", "copy")
def _copy(context: ControlContext, _: str) -> Any:
    """Return where messages are copied to."""
    destination = context.emulator.copier.dispatch.destination
    if destination is None:
        return None
    url = destination.target if isinstance(destination.target, str) else None
    return {"url": url, "mode": "high-guarantee" if destination.high else "normal"}


@command("PUT", "copy", _Copy)
def _copy_to(context: ControlContext, body: _Copy) -> Any:
    """Copy messages from now on: url, mode (normal or high-guarantee)."""
    split_url(body.url)
    if not context.may_sign_copies:
        raise CommandError(
            "message copies would be signed with the configured RBIM_APP_TOKEN: start rbim emulator with --sign-copies (in "
            "Python: serve(emulator, sign_copies=True)), or without RBIM_APP_TOKEN: then it makes new credentials"
        )
    if not (context.remote_copies or is_loopback_url(body.url)):
        raise CommandError(
            f"url: {body.url[:SHOWN]!r} is not of this machine (localhost or a literal loopback address): start rbim "
            "emulator with --remote-copies (in Python: serve(emulator, remote_copies=True))"
        )
    context.emulator.copy_to(body.url, body.mode)
    return _copy(context, "")


@command("DELETE", "copy")
def _stop_copying(context: ControlContext, _: str) -> Any:
    """Stop copying messages, and drop those that wait."""
    context.emulator.copy_to(None)
    return None


@command("GET", "copy-faults")
def _copy_faults(context: ControlContext, _: str) -> Any:
    """Return the fault plan of copies, a list."""
    return _plan(context.emulator.copy_faults, COPY_KINDS)


@command("PUT", "copy-faults", object)
def _replace_copy_faults(context: ControlContext, document: object) -> Any:
    """Replace the fault plan of copies."""
    _replace_faults(context.emulator.copy_faults, copy_faults_from(document))
    return _copy_faults(context, "")


@command("POST", "copy-faults", object)
def _add_copy_fault(context: ControlContext, document: object) -> Any:
    """Add a fault to the plan of copies; the counts of the others go on."""
    context.emulator.copy_faults.add(*_one(copy_faults_from, document))
    return _copy_faults(context, "")


@command("DELETE", "copy-faults")
def _empty_copy_faults(context: ControlContext, _: str) -> Any:
    """Clear the fault plan of copies."""
    context.emulator.copy_faults.clear()
    return []


@command("GET", "deliveries")
def _deliveries(context: ControlContext, _: str) -> Any:
    """List the attempts to deliver copies, each with its result."""
    return [json.loads(line) for line in context.emulator.deliveries.trace().splitlines()]


@command("DELETE", "deliveries")
def _forget_deliveries(context: ControlContext, _: str) -> Any:
    """Clear the log of deliveries."""
    context.emulator.deliveries.clear()
    return []


@command("POST", "say", _Say)
def _say(context: ControlContext, body: _Say) -> Any:
    """Send a message to another account or to a group: sender, to, text (emulator-only)."""
    return {"message_id": context.emulator.say(**_given(body))}


@command("POST", "push", _Push)
def _push(context: ControlContext, body: _Push) -> Any:
    """Push a message to one account, several, or a group: to, text (emulator-only)."""
    return {"message_id": context.emulator.push(**_given(body))}


@command("POST", "notify", _Notify)
def _notify(context: ControlContext, body: _Notify) -> Any:
    """Notify a group without a change of it: group_id, notice (emulator-only)."""
    return {"message_id": context.emulator.notify(**_given(body))}
