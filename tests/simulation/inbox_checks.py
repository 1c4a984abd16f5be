"""What must hold of a receiver and its workers: judged by what was posted, what was answered and what handlers saw.

The inbox's own file is read for what it says, and never as a proof that it is so.
"""

import json
import math
from collections import defaultdict
from itertools import pairwise

from .virtual_time import TIME

IN_TIME = 3.2
"""Seconds in which a receiver answers: 2 for body and inbox, 1 for the spool."""

SEEN_WITHIN = 0.4
"""Seconds until one receiver knows what another one put into their spool."""

LONGEST_FREEZE = 60.0
"""Seconds for which a process is frozen at most."""

NOTICED_IN = 3.0
"""Seconds in which a receiver knows that its inbox was deleted; until then, what it answers 200 may be lost."""

LONE_DEATHS = 3
"""Deaths of processes that handled only this message, after which it is buried: the default of ``Backoff.crashes``."""

WAITING, DONE, DEAD, QUARANTINED = range(4)


# While it runs.


def check_answer(inbox, process, receiver, status, began):
    """Check that an answer comes in time, and that a delivery is turned away only where there is a reason."""
    world, sizes = inbox.world, inbox.sizes
    took = TIME.now - began
    frozen = inbox.frozen.get(process, -1.0) >= began
    world.check("a delivery is answered in time", took <= IN_TIME or frozen, f"{process.name} took {took:.3f} s")
    leaving = inbox.deliveries.doors.get(process) is not receiver or any(
        role.process is process and role.leave.is_set() for role in inbox.roles
    )
    disk = world.happened["disk-stall"] + world.happened["disk-error"] + world.happened["disk-full"]
    reason = leaving or disk or frozen or inbox.lost_at < TIME.now or sizes.situation == "hot-conversation"
    world.check("a delivery is accepted where nothing is wrong", status != 503 or reason, f"{process.name} answered 503")


def check_forgery(inbox, status, *, recorded):
    """Check that a forged delivery is refused; a recorded one may be known, and is then not handled again."""
    allowed = {None, 401, 503, 200} if recorded else {None, 401}
    inbox.world.check("a forged delivery is refused", status in allowed, f"it was answered {status}")


def check_begin(inbox, process, message, handling):
    """Check that a handler may begin: it is the message's turn. Return the conversation."""
    world = inbox.world
    rows = inbox.look("SELECT conversation, number, state FROM event WHERE key = ?", (handling.key,))
    if inbox.lost_at < TIME.now:
        return message.sender
    known = bool(message.posts or inbox.sizes.situation == "hot-conversation")
    world.check("only what was posted is handled", known and len(rows) == 1, lambda: f"{message}, {len(rows)} rows")
    ((conversation, number, state),) = rows
    world.check("only what waits is handled", state == WAITING, lambda: f"state {state}: {message}")
    earlier = "SELECT body FROM event WHERE conversation = ? AND number < ? AND state = 0"
    before = [inbox.messages[json.loads(body)["body"]] for (body,) in inbox.look(earlier, (conversation, number))]
    waiting = [each for each in before if not _ended_beside(each, process)]
    world.check("a conversation is handled in order", not waiting, lambda: f"{waiting[0]} waits before {message}")
    ahead = f"{len(before)} results before {message} are not recorded"
    world.check("few results are not recorded", len(before) <= inbox.sizes.places or any(m.replays for m in before), ahead)
    other, its = inbox.handling.get(conversation, (None, None))
    paused = other is not None and other in inbox.frozen and its is not None and inbox.frozen[other] >= its.begun[-1][0]
    world.check(
        "one handler at a time in a conversation",
        other is None or paused,
        lambda: f"{message.text} begins on {process.name} while {other and other.name} handles {its}",
    )
    return str(conversation)


def _ended_beside(message, process):
    """Return whether a message was handled to its end by this process, though its result is not recorded yet."""
    if not message.begun or not message.ended:
        return False
    at, on, _ = message.begun[-1]
    return (on is process or bool(message.replays)) and message.ended[-1][0] >= at


def check_left(inbox, process):
    """Check that a process that has left leaves nothing behind."""
    files = [each.path for each in process.connections]
    inbox.world.check("nothing is left open", not files, lambda: f"{process.name}: {files}")
    running = [str(message) for its, message in inbox.handling.values() if its is process]
    inbox.world.check("nothing is left running", not running, lambda: f"{process.name}: {running}")


# At the end.


def check_all(inbox):
    """Check everything that must hold once all processes have left."""
    if inbox.sizes.situation == "short-retention":
        return
    rows = inbox.look("SELECT body, state, attempts, error FROM event")
    stored = {json.loads(body)["body"]: (state, attempts, error or "") for body, state, attempts, error in rows}
    foreign = set(stored) - set(inbox.messages)
    inbox.world.check("only what was posted is handled", not foreign, f"stored: {foreign}")
    for message in inbox.messages.values():
        if inbox.sizes.situation != "lost-inbox" or inbox.lost_at + NOTICED_IN < message.accepted_at < math.inf:
            _check_message(inbox, message, stored.get(message.text))
    if inbox.sizes.situation != "lost-inbox":
        _check_order(inbox)


def _check_message(inbox, message, row):
    world, sizes = inbox.world, inbox.sizes
    accepted = message.accepted_at < math.inf
    world.check("what is acknowledged is kept", row is not None or not accepted, message.__str__)
    if row is None:
        world.check("only what is stored is handled", not message.begun, message.__str__)
        return
    state, attempts, error = row
    told = f"state {state}, {attempts} attempts, {error.strip()[-120:]!r}: {message}"
    world.check("what is acknowledged is handled", state != WAITING, told)
    world.check("done is handled", state != DONE or message.ended, told)
    world.check("only what cannot be read is in quarantine", state != QUARANTINED, told)
    guilty = message.handler in {"poison", "kills"} or message.deaths >= LONE_DEATHS
    world.check("innocents are never buried", state != DEAD or guilty, told)
    world.check("a message that kills its process is buried", state == DEAD or message.handler != "kills", told)
    if message.handler == "poison" and state == DEAD and not (inbox.trouble or message.replays or sizes.deploys):
        world.check("a failing handler gets all its attempts", len(message.begun) == sizes.attempts, told)
    in_vain = [
        second
        for (_, before), (second, after) in zip(message.ended, message.ended[1:], strict=False)
        if before == after and sizes.situation == "storm"
    ]
    world.check("an event is handled again only after trouble", len(in_vain) <= message.replays, told)


def _check_order(inbox):
    """Check that what was acknowledged before the next was posted is handled before it."""
    patience = SEEN_WITHIN if inbox.sizes.receivers > 1 else 0.0
    by_sender = defaultdict(list)
    for message in inbox.messages.values():
        if message.posts and message.begun and message.accepted_at < math.inf:
            by_sender[message.sender].append(message)
    for messages in by_sender.values():
        messages.sort(key=lambda each: each.posts[0].left)
        for number, later in enumerate(messages):
            for earlier in messages[:number]:
                if earlier.accepted_at + patience < later.posts[0].left:
                    in_order = earlier.begun[0][0] < later.begun[0][0]
                    inbox.world.check("a conversation is handled in order", in_order, f"{earlier}\n  and then {later}")


def check_arrivals(inbox, messages):
    """Check that messages of one conversation, posted at once to one receiver, are stored as they arrived there."""
    rows = inbox.look("SELECT body, number FROM event")
    numbers = {json.loads(body)["body"]: number for body, number in rows}
    stored = sorted((each for each in messages if each.text in numbers), key=lambda each: each.arrived)
    for earlier, later in pairwise(stored):
        in_order = numbers[earlier.text] < numbers[later.text]
        inbox.world.check("a conversation is handled in order", in_order, f"{earlier}\n  and then {later}")


def check_accepted(inbox):
    """Check that everything is accepted that is sent when all is well again."""
    if inbox.sizes.situation != "storm":
        return
    well_from = max(inbox.sizes.fair_from, inbox.last_end) + LONGEST_FREEZE + 5.0
    for message in inbox.messages.values():
        accepted = message.at < well_from or message.accepted_at < math.inf
        inbox.world.check("what is sent when all is well is accepted", accepted, str(message))
