"""The commands of the control interface for message copy: messages, targets, faults and results.

All of them are emulator-only: users of the platform talk through their own clients, and a copy address is set in a console.
"""

from typing import Any

import attrs
from attrs import frozen

from rbim._support import json
from rbim._support.local_server import is_loopback_url
from rbim.callbacks.events.enums import ClientType, MsgType, Notice
from rbim.emulator.copies.targets import split_url
from rbim.emulator.faults.copies import COPY_KINDS, copy_faults_from
from rbim.emulator.messaging import Mode
from rbim.emulator.server.commands import CommandError, ControlContext, command, one, plan, replace
from rbim.emulator.server.view_commands import COMMANDS

__all__ = ["COMMANDS"]  # complete after this module is imported

SHOWN = 200  # characters of a URL in a message


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
    return plan(context.emulator.copy_faults, COPY_KINDS)


@command("PUT", "copy-faults", object)
def _replace_copy_faults(context: ControlContext, document: object) -> Any:
    """Replace the fault plan of copies."""
    replace(context.emulator.copy_faults, copy_faults_from(document))
    return _copy_faults(context, "")


@command("POST", "copy-faults", object)
def _add_copy_fault(context: ControlContext, document: object) -> Any:
    """Add a fault to the plan of copies; the counts of the others go on."""
    context.emulator.copy_faults.add(*one(copy_faults_from, document))
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
