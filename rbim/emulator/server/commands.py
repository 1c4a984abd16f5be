"""The commands of the control interface; :mod:`rbim.emulator.server.control` serves them over HTTP.

A command is a function of the :class:`ControlContext` and of the body of the request, already read (or of the name in its
path). It returns JSON, and its docstring is its help text. The commands for message copy are in
:mod:`rbim.emulator.server.copy_commands`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
from attrs import frozen

from rbim._support import json
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.faults.requests import KINDS, faults_from
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
    "one",
    "plan",
    "replace",
]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"


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
        replace(emulator.faults, self._faults)
        replace(emulator.copy_faults, self._copy_faults)
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
    return plan(context.emulator.faults, KINDS)


@command("PUT", "faults", object)
def _replace(context: ControlContext, document: object) -> Any:
    """Replace the fault plan: its counts and its random numbers start again."""
    replace(context.emulator.faults, faults_from(document))
    return _faults(context, "")


@command("POST", "faults", object)
def _add(context: ControlContext, document: object) -> Any:
    """Add a fault to the plan; the counts of the others go on."""
    context.emulator.faults.add(*one(faults_from, document))
    return _faults(context, "")


@command("DELETE", "faults")
def _empty(context: ControlContext, _: str) -> Any:
    """Clear the fault plan."""
    context.emulator.faults.clear()
    return []


def one(read: Callable[[Any], tuple[Any, ...]], document: object) -> tuple[Any, ...]:
    """Return the only fault of a document. Raises InvalidRequest without the place in a list, which there is none."""
    try:
        return read([document])
    except InvalidRequest as error:
        raise InvalidRequest(error.message.replace("$[0]", "$"), field=error.field) from None


def replace(faults: Any, new: tuple[Any, ...]) -> None:  # Faults of Fault, or CopyFaults of CopyFault
    """Replace all faults of a plan."""
    faults.clear()
    faults.add(*new)


def plan(faults: Iterable[Any], kinds: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
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
