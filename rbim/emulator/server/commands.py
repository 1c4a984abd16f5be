"""The commands of the control interface; :mod:`rbim.emulator.server.control` serves them over HTTP.

A command is a function of the :class:`ControlContext` and of the body of the request, already read (or of the name in its
path), which returns JSON. :data:`COMMANDS` has all of them.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, Required, TypedDict

import attrs
from attrs import field, frozen

from rbim._support.local_server import is_loopback_url
from rbim.callbacks.events import Notice
from rbim.emulator.clock import EmulatedClock
from rbim.emulator.copies.messages import Extras, PushExtras
from rbim.emulator.copies.targets import split_url
from rbim.emulator.documents import kind_of
from rbim.emulator.emulator import Mode
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
    """A command that is refused, with the HTTP status and headers of the answer (409: not possible in the present state)."""

    def __init__(self, message: str, status: int = 409, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


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
        emulator = self.emulator
        emulator.restore(self._state)
        emulator.requests.clear()
        _replace_faults(emulator.faults, self._faults)
        _replace_faults(emulator.copy_faults, self._copy_faults)
        emulator.copier.reset(self._destination)


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
    context.reset()
    return _counts(context)


def _counts(context: ControlContext) -> Any:
    state = context.emulator.state
    return {"groups": len(state.groups), "tasks": len(state.tasks)}


def _clock(context: ControlContext, _: object = None) -> Any:
    clock = context.emulator.clock
    return {
        "now": clock.now().isoformat(),
        "monotonic": clock.monotonic(),
        "emulated": isinstance(clock, EmulatedClock),
    }


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


def _end_outage(context: ControlContext, _: str) -> Any:
    return _server_of(context).accept()


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
        "listening": context.listening,
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


def _show(part: Callable[["Emulator", str], Any]) -> Run:
    """Return a command that shows a part of the emulator, by the name in the path."""
    return lambda context, name: part(context.emulator, name)


def _list(log: str) -> Run:
    return lambda context, _: [each.to_dict() for each in getattr(context.emulator, log)]


def _clear(log: str) -> Run:
    return lambda context, _: getattr(context.emulator, log).clear()


def _plan(
    path: str, of: str, plan_of: Callable[["Emulator"], Plan[Any]], read: Callable[[Any], tuple[Any, ...]]
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
    Command("GET", "requests", "List the requests so far, each with its operation and its result.", _list("requests")),
    Command("DELETE", "requests", "Clear the log of requests.", _clear("requests")),
    Command("GET", "clock", "Return the emulator's time, and whether it is emulated.", _clock),
    Command("POST", "clock/advance", "Advance an emulated clock: seconds, hours.", _advance, _Advance),
    Command("GET", "tasks/{id}/may-call", "Return whether a task may call now (emulator-only).", _may_call),
    Command(
        "POST", "outage", "Refuse the platform's connections for a time: seconds of the emulator's clock.", _outage, _Seconds
    ),
    Command("DELETE", "outage", "End an outage at once, through the control port.", _end_outage),
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
    Command("GET", "deliveries", "List the attempts to deliver copies, each with its result.", _list("deliveries")),
    Command("DELETE", "deliveries", "Clear the log of deliveries.", _clear("deliveries")),
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
