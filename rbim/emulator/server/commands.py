"""What the control interface can do to the platform; :mod:`rbim.emulator.server.control` serves it over HTTP.

A command is a function of the :class:`ControlContext` and of what it reads from the request's body (or of the name in its
path). It returns JSON, and its docstring is its help. The commands on message copies are in
:mod:`rbim.emulator.server.copy_commands`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from rbim._support import json as jsontext
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.faults.requests import KINDS, faults_from

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
    "Outage",
    "command",
    "plan",
    "replace",
]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"


Close = Callable[[], Awaitable[None]]
Outage = Callable[[float], Close]
"""What begins to refuse connections for so many seconds; it returns what closes those that exist."""


class CommandError(Exception):
    """A command that this emulator, or the server around it, cannot carry out; the text says why."""


class ControlContext:
    """What commands work with: the emulator, what it was at first, and the server's way to refuse connections."""

    def __init__(self, emulator: "Emulator", outage: Outage | None) -> None:
        self.emulator = emulator
        self.outage = outage
        self._state = emulator.snapshot()
        self._faults = tuple(emulator.faults)
        self._copy_faults = tuple(emulator.copy_faults)
        self._aim = emulator.copier.dispatch.aim

    def reset(self) -> None:
        """Make the emulator what it was at first. Its clock goes on."""
        box, copying = self.emulator, self.emulator.copier.dispatch
        box.restore(self._state)
        box.requests.clear()
        replace(box.faults, self._faults)
        replace(box.copy_faults, self._copy_faults)
        copying.aim = None  # drops what waits
        copying.aim = self._aim
        box.deliveries.clear()
        box.copier.count_anew()


@frozen
class DeferredAnswer:
    """An answer, and what is done once it is written."""

    said: Any
    then: Close


# What commands read from JSON objects.


@frozen(kw_only=True)
class _Advance:
    """How much time is to pass."""

    seconds: float = 0.0
    hours: float = 0.0


@frozen(kw_only=True)
class _Seconds:
    """How long connections are to be refused."""

    seconds: float


@frozen(kw_only=True)
class _Login:
    """Who logs in."""

    account: str


@frozen(kw_only=True)
class _Waiting:
    """What waits: an invitation or a request to join."""

    group_id: str
    account: str


Run = Callable[[ControlContext, Any], Any]


@frozen(kw_only=True)
class Command:
    """One command. It ``reads`` an object of that class, any JSON (``object``), or nothing but what its path names."""

    method: str
    path: str
    run: Run
    reads: type[Any] | None

    @property
    def does(self) -> str:
        """What it does, in one line."""
        return self.run.__doc__ or ""


COMMANDS: list[Command] = []


def command(method: str, path: str, reads: type[Any] | None = None) -> Callable[[Run], Run]:
    """Declare a function to be a command."""

    def keep(run: Run) -> Run:
        COMMANDS.append(Command(method=method, path=PREFIX + path, run=run, reads=reads))
        return run

    return keep


@command("GET", "")
def _index(_: ControlContext, __: str) -> Any:
    """Tell what this is, and its commands."""
    return {"about": ABOUT, "commands": {f"{each.method} {each.path}": each.does for each in COMMANDS}}


@command("GET", "state")
def _state(desk: ControlContext, _: str) -> Any:
    """Tell groups, tasks and accounts, as one document."""
    return desk.emulator.export()


@command("PUT", "state", object)
def _load(desk: ControlContext, document: object) -> Any:
    """Make the state what such a document says."""
    desk.emulator.load(document)
    return _counts(desk)


@command("POST", "reset")
def _reset(desk: ControlContext, _: str) -> Any:
    """Make everything but the clock what it was at first, and forget requests and deliveries."""
    desk.reset()
    return _counts(desk)


def _counts(desk: ControlContext) -> Any:
    state = desk.emulator.state
    return {"groups": len(state.groups), "tasks": len(state.tasks)}


@command("GET", "faults")
def _faults(desk: ControlContext, _: str) -> Any:
    """Tell the fault plan, a list."""
    return plan(desk.emulator.faults, KINDS)


@command("PUT", "faults", object)
def _replace(desk: ControlContext, document: object) -> Any:
    """Replace the fault plan: its counts and its chance begin anew."""
    replace(desk.emulator.faults, faults_from(document))
    return _faults(desk, "")


@command("DELETE", "faults")
def _empty(desk: ControlContext, _: str) -> Any:
    """Empty the fault plan."""
    desk.emulator.faults.clear()
    return []


def replace(faults: Any, new: tuple[Any, ...]) -> None:  # Faults of Fault, or CopyFaults of CopyFault
    """Give a plan other faults."""
    faults.clear()
    faults.add(*new)


def plan(faults: Iterable[Any], kinds: Mapping[str, type[Any]]) -> list[dict[str, Any]]:
    """Return a plan as its file has it; that a match is a function is all that JSON can tell of it."""
    return [_plain(fault, kinds) for fault in faults]


def _plain(fault: Any, kinds: Mapping[str, type[Any]]) -> dict[str, Any]:
    told = {a.name: getattr(fault, a.name) for a in attrs.fields(fault.__class__) if getattr(fault, a.name) != a.default}
    kind = next(name for name, kind in kinds.items() if isinstance(fault.effect, kind))
    told["effect"] = {"kind": kind} | attrs.asdict(fault.effect)
    if callable(fault.match):
        told["match"] = "a function"
    return told


@command("GET", "requests")
def _requests(desk: ControlContext, _: str) -> Any:
    """Tell each request so far, what it asked for and what became of it."""
    return [jsontext.loads(line) for line in desk.emulator.requests.trace().splitlines()]


@command("DELETE", "requests")
def _forget(desk: ControlContext, _: str) -> Any:
    """Forget the requests."""
    desk.emulator.requests.clear()
    return []


@command("GET", "clock")
def _clock(desk: ControlContext, _: str) -> Any:
    """Tell the emulator's time, and whether it is emulated."""
    clock = desk.emulator.clock
    return {
        "now": clock.now().isoformat(),
        "monotonic": clock.monotonic(),
        "emulated": isinstance(clock, EmulatedClock),
    }


@command("POST", "clock/advance", _Advance)
async def _advance(desk: ControlContext, told: _Advance) -> Any:
    """Let an emulated clock's time pass: seconds, hours."""
    if not isinstance(desk.emulator.clock, EmulatedClock):
        raise CommandError(
            "the emulator runs on this machine's clock, which nobody can advance (rbim emulator --emulated-clock)"
        )
    await desk.emulator.advance(told.seconds, hours=told.hours)
    return _clock(desk, "")


@command("GET", "tasks")
def _tasks(desk: ControlContext, _: str) -> Any:
    """Tell the call tasks."""
    return desk.emulator.export()["tasks"]


@command("GET", "tasks/{id}/may-call")
def _may_call(desk: ControlContext, task_id: str) -> Any:
    """Tell whether a task may call at this moment (emulator-only)."""
    may_call = desk.emulator.may_call(task_id)
    return {"task_id": task_id, "at": desk.emulator.clock.now().isoformat(), "may_call": may_call}


@command("POST", "outage", _Seconds)
def _outage(desk: ControlContext, told: _Seconds) -> Any:
    """Refuse all connections for so many seconds of the emulator's clock."""
    if desk.outage is None:
        raise CommandError("this server has no way to refuse connections: serve the emulator with rbim emulator")
    return DeferredAnswer({"seconds": told.seconds}, desk.outage(told.seconds))  # over a connection that the outage closes


@command("POST", "logins", _Login)
def _log_in(desk: ControlContext, told: _Login) -> Any:
    """Let an account log in for the first time: account (emulator-only)."""
    desk.emulator.log_in(told.account)
    return attrs.asdict(told)


@command("POST", "invitations/confirm", _Waiting)
def _confirm(desk: ControlContext, told: _Waiting) -> Any:
    """Let an account accept an invitation: group_id, account (emulator-only)."""
    desk.emulator.confirm(told.group_id, told.account)
    return attrs.asdict(told)


@command("POST", "invitations/decline", _Waiting)
def _decline(desk: ControlContext, told: _Waiting) -> Any:
    """Let an account turn an invitation down: group_id, account (emulator-only)."""
    desk.emulator.decline(told.group_id, told.account)
    return attrs.asdict(told)


@command("POST", "applications/approve", _Waiting)
def _approve(desk: ControlContext, told: _Waiting) -> Any:
    """Let a group's owner accept a request to join: group_id, account (emulator-only)."""
    desk.emulator.approve(told.group_id, told.account)
    return attrs.asdict(told)


@command("POST", "applications/reject", _Waiting)
def _reject(desk: ControlContext, told: _Waiting) -> Any:
    """Let a group's owner turn a request to join down: group_id, account (emulator-only)."""
    desk.emulator.reject(told.group_id, told.account)
    return attrs.asdict(told)
