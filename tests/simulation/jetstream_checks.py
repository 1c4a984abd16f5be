"""What must hold on several machines: judged by what was posted and sent, what was answered, and what handlers saw.

What is on the servers is read for what must be kept there: accepted messages and dead letters.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from . import broker_network as network
from .inbox_checks import IN_TIME, LONE_DEATHS
from .virtual_time import TIME

if TYPE_CHECKING:
    from rbim.callbacks import Receiver

    from .broker_network import Servers
    from .deliveries import Message
    from .jetstream_inbox import JetStreamInboxScenario
    from .process import Process

__all__ = ["check_answer", "check_begin", "check_disconnected", "check_inbox"]

STARTING = 10.0
"""Seconds after its start in which a receiver may have no connection yet."""


# While it runs.


def check_begin(inbox: JetStreamInboxScenario, process: Process, message: Message) -> str:
    """Check that a handler may begin: nothing before it waits, and no other one is at work. Return the conversation."""
    world = inbox.world
    world.check("only what was posted is handled", message.posts, lambda: f"{message}, on {process.name}")
    other, its = inbox.handling.get(message.sender, (None, None))
    if other is not None and its is not None:
        # it may still be at work when others take its partition over, because nothing was heard of it for that long
        silent = other is not process and its.begun[-1][0] <= TIME.now - inbox.sizes.lease and _troubled(inbox)
        told = f"{message.text} begins on {process.name} while {other.name} handles {its}"
        world.check("one handler at a time in a conversation", silent, told)
    return message.sender


def _troubled(inbox: JetStreamInboxScenario) -> bool:
    """Tell whether something happened for which a worker may be taken for dead that lives."""
    happened = inbox.world.happened
    return any(happened[name] for name in ("freeze", "disk-stall", *network.TROUBLES))


def check_answer(inbox: JetStreamInboxScenario, process: Process, receiver: Receiver, status: int, began: float) -> None:
    """Check that an answer comes in time, and that a delivery is turned away only where there is a reason."""
    world, happened = inbox.world, inbox.world.happened
    took, frozen = TIME.now - began, inbox.frozen.get(process, -1.0) >= began
    world.check("a delivery is answered in time", took <= IN_TIME or frozen, f"{process.name} took {took:.3f} s")
    (role,) = (each for each in inbox.roles if each.process is process)
    leaving = inbox.deliveries.doors.get(process) is not receiver or role.leave.is_set()
    troubles = ("disk-stall", "disk-error", "disk-full", *network.TROUBLES)
    reason = leaving or frozen or any(happened[name] for name in troubles) or _young(inbox, process)
    world.check("a delivery is accepted where nothing is wrong", status != 503 or reason, f"{process.name} answered 503")


def _young(inbox: JetStreamInboxScenario, process: Process) -> bool:
    return TIME.now - inbox.starts.setdefault(process, TIME.now) < STARTING


def check_disconnected(servers: Servers, process: Process) -> None:
    """Check that a process that has left has no connection any more."""
    up = [each.client for each in servers.connections if each.process is process and each.up]
    servers.world.check("nothing is left open", not up, f"{process.name} has {len(up)} connections")


# At the end.


def check_inbox(inbox: JetStreamInboxScenario) -> None:
    """Check everything that must hold once all processes have left."""
    world = inbox.world
    stored = {message.text for _, message in inbox.stored() if message is not None}
    foreign = [each.subject for each, message in inbox.stored() if message is None]
    world.check("only what was posted is stored", not foreign, f"{len(foreign)}, {foreign[:1]}")
    accepted = Counter(message.text for each, message in inbox.stored() if message is not None and _is_new(each.subject))
    twice = [text for text, count in accepted.items() if count > 1]
    world.check("an event is stored once", not twice, lambda: f"{len(twice)}, the first: {inbox.messages[twice[0]]}")
    letters = [message.text for _, message in inbox.stored("copies-dead") if message is not None]
    world.check("an event has one dead letter", len(letters) == len(set(letters)), f"{sorted(letters)}")
    for message in inbox.messages.values():
        _check_message(inbox, message, kept=message.text in stored, dead=message.text in letters)
    if inbox.sizes.receivers == 1 or not any(world.happened[name] for name in network.TROUBLES):
        _check_order(inbox)


def _is_new(subject: str) -> bool:
    return subject.split(".")[1] == "new"


def _check_message(inbox: JetStreamInboxScenario, message: Message, *, kept: bool, dead: bool) -> None:
    world = inbox.world
    accepted = message.accepted_at < math.inf
    world.check("what is acknowledged is kept", kept or not accepted, message.__str__)
    if not kept:
        world.check("only what is stored is handled", not message.begun, message.__str__)
        return
    world.check("what is acknowledged is handled", message.ended or dead, lambda: f"dead {dead}: {message}")
    unfinished = len(message.begun) - inbox.finished[message.text]  # of workers that died, or were taken for dead
    # a handler that fails twice is frozen for longer than its time-out in its last attempt: that counts, too
    frozen = world.happened["freeze"] and message.handler.startswith("fails") and len(message.begun) >= inbox.sizes.attempts
    guilty = message.handler in {"poison", "kills"} or unfinished >= LONE_DEATHS or frozen
    world.check("innocents are never buried", not dead or guilty, message.__str__)
    if message.handler in {"poison", "kills"}:
        world.check("what always fails is buried", dead, message.__str__)
    if message.handler == "poison" and dead and not (inbox.trouble or inbox.sizes.deploys):
        attempts = inbox.sizes.attempts
        world.check("a failing handler gets all its attempts", len(message.begun) == attempts, message.__str__)
    again = zip(message.ended, message.ended[1:], strict=False)
    in_vain = [second for (_, before), (second, after) in again if before == after]
    world.check("an event is handled again only after trouble", not in_vain, message.__str__)


def _check_order(inbox: JetStreamInboxScenario) -> None:
    """Check that what was acknowledged before the next was posted is handled before it."""
    by_sender: dict[str, list[Message]] = defaultdict(list)
    for message in inbox.messages.values():
        if message.posts and message.begun and message.accepted_at < math.inf:
            by_sender[message.sender].append(message)
    for messages in by_sender.values():
        messages.sort(key=lambda each: each.posts[0].left)
        for number, later in enumerate(messages):
            for earlier in messages[:number]:
                if earlier.accepted_at < later.posts[0].left:
                    in_order = earlier.begun[0][0] < later.begun[0][0]
                    inbox.world.check("a conversation is handled in order", in_order, f"{earlier}\n  and then {later}")
