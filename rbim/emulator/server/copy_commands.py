"""What the control interface can do about message copy: what is said, where it is copied to, what became of it.

All of it is emulator-only: users of the platform talk through their own clients, and a copy address is set in a console.
"""

from typing import Any

import attrs
from attrs import frozen

from rbim._support import json as jsontext
from rbim.emulator.faults.copies import COPY_KINDS, copy_faults_from
from rbim.emulator.server.commands import COMMANDS, ControlContext, command, plan, replace

__all__ = ["COMMANDS"]  # all of them, now that these are there


@frozen(kw_only=True)
class _Copy:
    """Where copies go, and how."""

    url: str
    mode: Any = "normal"


@frozen(kw_only=True)
class _Said:
    """What can be said of a message besides sender and receiver."""

    text: str | None = None
    msg_type: str | None = None
    attach: str | None = None
    ext: str | None = None
    at_user: tuple[str, ...] | None = None
    nick: str | None = None
    client_type: str | None = None
    device_id: str | None = None
    link_info: str | None = None
    antispam: bool | None = None


@frozen(kw_only=True)
class _Say(_Said):
    """What an account says to another, or in a group."""

    sender: str
    to: str


@frozen(kw_only=True)
class _Push(_Said):
    """What is pushed to one account or several, or to a group."""

    to: Any
    sender: str | None = None
    save: bool | None = None
    apns: bool | None = None
    apns_text: str | None = None


@frozen(kw_only=True)
class _Notify:
    """What the members of a group are told."""

    group_id: str
    notice: str
    members: tuple[str, ...] | None = None
    actor: str | None = None
    text: str | None = None


def _given(told: Any) -> dict[str, Any]:
    return {name: value for name, value in attrs.asdict(told, recurse=False).items() if value is not None}


@command("GET", "copy")
def _copy(desk: ControlContext, _: str) -> Any:
    """Tell where messages are copied to."""
    aim = desk.emulator.copier.dispatch.aim
    if aim is None:
        return None
    url = aim.target if isinstance(aim.target, str) else None
    return {"url": url, "mode": "high-guarantee" if aim.high else "normal"}


@command("PUT", "copy", _Copy)
def _copy_to(desk: ControlContext, told: _Copy) -> Any:
    """Copy messages from now on: url, mode (normal or high-guarantee)."""
    desk.emulator.copy_to(told.url, told.mode)
    return _copy(desk, "")


@command("DELETE", "copy")
def _copy_no_more(desk: ControlContext, _: str) -> Any:
    """Copy messages no more, and drop those that wait."""
    desk.emulator.copy_to(None)
    return None


@command("GET", "copy-faults")
def _copy_faults(desk: ControlContext, _: str) -> Any:
    """Tell the fault plan of copies, a list."""
    return plan(desk.emulator.copy_faults, COPY_KINDS)


@command("PUT", "copy-faults", object)
def _replace_copy_faults(desk: ControlContext, document: object) -> Any:
    """Replace the fault plan of copies."""
    replace(desk.emulator.copy_faults, copy_faults_from(document))
    return _copy_faults(desk, "")


@command("DELETE", "copy-faults")
def _empty_copy_faults(desk: ControlContext, _: str) -> Any:
    """Empty the fault plan of copies."""
    desk.emulator.copy_faults.clear()
    return []


@command("GET", "deliveries")
def _deliveries(desk: ControlContext, _: str) -> Any:
    """Tell each attempt to deliver a copy, and what became of it."""
    return [jsontext.loads(line) for line in desk.emulator.deliveries.trace().splitlines()]


@command("DELETE", "deliveries")
def _forget_deliveries(desk: ControlContext, _: str) -> Any:
    """Forget the deliveries."""
    desk.emulator.deliveries.clear()
    return []


@command("POST", "say", _Say)
def _say(desk: ControlContext, told: _Say) -> Any:
    """Let an account say something to another or a group: sender, to, text (emulator-only)."""
    return {"message_id": desk.emulator.say(**_given(told))}


@command("POST", "push", _Push)
def _push(desk: ControlContext, told: _Push) -> Any:
    """Push a message to one account, several, or a group: to, text (emulator-only)."""
    return {"message_id": desk.emulator.push(**_given(told))}


@command("POST", "notify", _Notify)
def _notify(desk: ControlContext, told: _Notify) -> Any:
    """Notify a group of what has not happened: group_id, notice (emulator-only)."""
    return {"message_id": desk.emulator.notify(**_given(told))}
