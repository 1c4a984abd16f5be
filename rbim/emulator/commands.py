"""What the control interface can do, one function per command; :mod:`rbim.emulator.control` serves them over HTTP.

A command takes the :class:`Desk` and what it reads from the request's body (or the name in its path) and returns JSON. Its
docstring is its help.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

from rbim import jsontext
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.faults import KINDS, Fault, faults_from

if TYPE_CHECKING:
    from rbim.emulator.emulator import Emulator
    from rbim.emulator.snapshot import Snapshot

__all__ = ["ABOUT", "COMMANDS", "PREFIX", "Command", "Desk", "Later", "Unable"]

ABOUT = "An emulator of the written interface description, never of the service."
PREFIX = "/_emulator/"


class Unable(Exception):
    """A command that this emulator, or the server around it, cannot carry out; the text says why."""


@frozen
class Desk:
    """What commands work with: the emulator, what it was at first, and the server's way to refuse connections."""

    emulator: "Emulator"
    state: "Snapshot"
    faults: tuple[Fault, ...]
    outage: Callable[[float], Awaitable[None]] | None


@frozen
class Later:
    """An answer, and what is done once it is written."""

    said: Any
    then: Callable[[], Awaitable[None]]


# What commands read from JSON objects.


@frozen(kw_only=True)
class Advance:
    """How much time is to pass."""

    seconds: float = 0.0
    hours: float = 0.0


@frozen(kw_only=True)
class Outage:
    """How long connections are to be refused."""

    seconds: float


@frozen(kw_only=True)
class Login:
    """Who logs in."""

    account: str


@frozen(kw_only=True)
class Waiting:
    """What waits: an invitation or a request to join."""

    group_id: str
    account: str


Run = Callable[[Desk, Any], Any]


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


def _command(method: str, path: str, reads: type[Any] | None = None) -> Callable[[Run], Run]:
    def keep(run: Run) -> Run:
        COMMANDS.append(Command(method=method, path=PREFIX + path, run=run, reads=reads))
        return run

    return keep


@_command("GET", "")
def _index(_: Desk, __: str) -> Any:
    """Tell what this is, and its commands."""
    return {"about": ABOUT, "commands": {f"{each.method} {each.path}": each.does for each in COMMANDS}}


@_command("GET", "state")
def _state(desk: Desk, _: str) -> Any:
    """Tell groups, tasks and accounts, as one document."""
    return desk.emulator.export()


@_command("PUT", "state", object)
def _load(desk: Desk, document: object) -> Any:
    """Make the state what such a document says."""
    desk.emulator.load(document)
    return _counts(desk)


@_command("POST", "reset")
def _reset(desk: Desk, _: str) -> Any:
    """Make state and faults what they were at first, and forget the requests."""
    desk.emulator.restore(desk.state)
    desk.emulator.requests.clear()
    _plan(desk, desk.faults)
    return _counts(desk)


def _counts(desk: Desk) -> Any:
    state = desk.emulator.state
    return {"groups": len(state.groups), "tasks": len(state.tasks)}


@_command("GET", "faults")
def _faults(desk: Desk, _: str) -> Any:
    """Tell the fault plan, a list."""
    return [_plain(fault) for fault in desk.emulator.faults]


@_command("PUT", "faults", object)
def _replace(desk: Desk, document: object) -> Any:
    """Replace the fault plan: its counts and its chance begin anew."""
    return _plan(desk, faults_from(document))


@_command("DELETE", "faults")
def _empty(desk: Desk, _: str) -> Any:
    """Empty the fault plan."""
    return _plan(desk, ())


def _plan(desk: Desk, faults: tuple[Fault, ...]) -> Any:
    desk.emulator.faults.clear()
    desk.emulator.faults.add(*faults)
    return _faults(desk, "")


def _plain(fault: Fault) -> dict[str, Any]:
    """Return a fault as the plan's file has it; a match that is a function cannot be told in JSON."""
    plain = {a.name: getattr(fault, a.name) for a in attrs.fields(Fault) if getattr(fault, a.name) != a.default}
    kind = next(name for name, kind in KINDS.items() if isinstance(fault.effect, kind))
    plain["effect"] = {"kind": kind} | attrs.asdict(fault.effect)
    if callable(fault.match):
        plain["match"] = "a function"
    return plain


@_command("GET", "requests")
def _requests(desk: Desk, _: str) -> Any:
    """Tell each request so far, what it asked for and what became of it."""
    return [jsontext.loads(line) for line in desk.emulator.requests.trace().splitlines()]


@_command("DELETE", "requests")
def _forget(desk: Desk, _: str) -> Any:
    """Forget the requests."""
    desk.emulator.requests.clear()
    return []


@_command("GET", "clock")
def _clock(desk: Desk, _: str) -> Any:
    """Tell the emulator's time, and whether it is emulated."""
    clock = desk.emulator.clock
    return {
        "now": clock.now().isoformat(),
        "monotonic": clock.monotonic(),
        "emulated": isinstance(clock, EmulatedClock),
    }


@_command("POST", "clock/advance", Advance)
async def _advance(desk: Desk, told: Advance) -> Any:
    """Let an emulated clock's time pass: seconds, hours."""
    clock = desk.emulator.clock
    if not isinstance(clock, EmulatedClock):
        reason = "the emulator runs on this machine's clock, which nobody can advance"
        raise Unable(reason)
    await clock.advance(told.seconds, hours=told.hours)
    return _clock(desk, "")


@_command("GET", "tasks")
def _tasks(desk: Desk, _: str) -> Any:
    """Tell the call tasks."""
    return desk.emulator.export()["tasks"]


@_command("GET", "tasks/{id}/may-call")
def _may_call(desk: Desk, task_id: str) -> Any:
    """Tell whether a task may call at this moment (emulator-only)."""
    may_call = desk.emulator.may_call(task_id)
    return {"task_id": task_id, "at": desk.emulator.clock.now().isoformat(), "may_call": may_call}


@_command("POST", "outage", Outage)
def _outage(desk: Desk, told: Outage) -> Any:
    """Refuse all connections for so many seconds of the emulator's clock."""
    if desk.outage is None:
        reason = "this server has no way to refuse connections: serve the emulator with rbim emulator"
        raise Unable(reason)
    return Later({"seconds": told.seconds}, partial(desk.outage, told.seconds))


@_command("POST", "logins", Login)
def _log_in(desk: Desk, told: Login) -> Any:
    """Let an account log in for the first time: account (emulator-only)."""
    desk.emulator.log_in(told.account)
    return attrs.asdict(told)


@_command("POST", "invitations/confirm", Waiting)
def _confirm(desk: Desk, told: Waiting) -> Any:
    """Let an account accept an invitation: group_id, account (emulator-only)."""
    desk.emulator.confirm(told.group_id, told.account)
    return attrs.asdict(told)


@_command("POST", "invitations/decline", Waiting)
def _decline(desk: Desk, told: Waiting) -> Any:
    """Let an account turn an invitation down: group_id, account (emulator-only)."""
    desk.emulator.decline(told.group_id, told.account)
    return attrs.asdict(told)


@_command("POST", "applications/approve", Waiting)
def _approve(desk: Desk, told: Waiting) -> Any:
    """Let a group's owner accept a request to join: group_id, account (emulator-only)."""
    desk.emulator.approve(told.group_id, told.account)
    return attrs.asdict(told)


@_command("POST", "applications/reject", Waiting)
def _reject(desk: Desk, told: Waiting) -> Any:
    """Let a group's owner turn a request to join down: group_id, account (emulator-only)."""
    desk.emulator.reject(told.group_id, told.account)
    return attrs.asdict(told)
