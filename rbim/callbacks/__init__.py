"""Message copy: the platform posts users' messages and group notifications to the developer's server, signed.

:class:`Receiver` verifies each delivery, puts it into a sink (:class:`SqliteInbox`, durable; :class:`MemorySink`), answers
in time, and has it handled afterwards. Its parts stand alone as well: :func:`verify`, :func:`parse`, :class:`Worker`. The
public names are resolved when they are first used.
"""

from typing import TYPE_CHECKING

from rbim.lazy import homes, resolve

if TYPE_CHECKING:
    from rbim.callbacks.backoff import Backoff
    from rbim.callbacks.delivery import Backlog, Claim, Delivery, Inbox, LeaseLost, Sink, delivery_of
    from rbim.callbacks.events import (
        At,
        Audio,
        Event,
        File,
        FileCompress,
        Link,
        Location,
        Message,
        Notification,
        Picture,
        TeamAddAdmin,
        TeamApply,
        TeamApplyAccept,
        TeamApplyReject,
        TeamDismiss,
        TeamInvite,
        TeamInviteAccept,
        TeamInviteReject,
        TeamJoin,
        TeamKick,
        TeamMemberUpdate,
        TeamQuit,
        TeamRoleUpdate,
        TeamUpdate,
        Text,
        UnknownEvent,
        Video,
    )
    from rbim.callbacks.explanation import Finding, explain
    from rbim.callbacks.inbox import SqliteInbox
    from rbim.callbacks.kinds import ClientType, ConvType, MsgType, Notice
    from rbim.callbacks.memory import MemorySink
    from rbim.callbacks.parsing import parse
    from rbim.callbacks.quirks import Account
    from rbim.callbacks.receiver import Receiver
    from rbim.callbacks.reply import Reply
    from rbim.callbacks.router import Handling, Router
    from rbim.callbacks.signature import Key, Keys, Policy, Reason, Rejected, Verified, sign, verify
    from rbim.callbacks.store import Counts, Letter
    from rbim.callbacks.watch import (
        Accepted,
        Buried,
        Fact,
        Handled,
        HandlingFailed,
        OldToken,
        Quarantined,
        Refused,
        Spooled,
    )
    from rbim.callbacks.worker import Worker

_HOME = {
    "rbim.callbacks.backoff": "Backoff",
    "rbim.callbacks.delivery": "Backlog Claim Delivery Inbox LeaseLost Sink delivery_of",
    "rbim.callbacks.events": "At Audio Event File FileCompress Link Location Message Notification Picture"
    " TeamAddAdmin TeamApply TeamApplyAccept TeamApplyReject TeamDismiss TeamInvite TeamInviteAccept TeamInviteReject"
    " TeamJoin TeamKick TeamMemberUpdate TeamQuit TeamRoleUpdate TeamUpdate Text UnknownEvent Video",
    "rbim.callbacks.explanation": "Finding explain",
    "rbim.callbacks.inbox": "SqliteInbox",
    "rbim.callbacks.kinds": "ClientType ConvType MsgType Notice",
    "rbim.callbacks.memory": "MemorySink",
    "rbim.callbacks.parsing": "parse",
    "rbim.callbacks.quirks": "Account",
    "rbim.callbacks.receiver": "Receiver",
    "rbim.callbacks.reply": "Reply",
    "rbim.callbacks.router": "Handling Router",
    "rbim.callbacks.signature": "Key Keys Policy Reason Rejected Verified sign verify",
    "rbim.callbacks.store": "Counts Letter",
    "rbim.callbacks.watch": "Accepted Buried Fact Handled HandlingFailed OldToken Quarantined Refused Spooled",
    "rbim.callbacks.worker": "Worker",
}
_WHERE = homes(_HOME)

__all__ = [
    "Accepted",
    "Account",
    "At",
    "Audio",
    "Backlog",
    "Backoff",
    "Buried",
    "Claim",
    "ClientType",
    "ConvType",
    "Counts",
    "Delivery",
    "Event",
    "Fact",
    "File",
    "FileCompress",
    "Finding",
    "Handled",
    "Handling",
    "HandlingFailed",
    "Inbox",
    "Key",
    "Keys",
    "LeaseLost",
    "Letter",
    "Link",
    "Location",
    "MemorySink",
    "Message",
    "MsgType",
    "Notice",
    "Notification",
    "OldToken",
    "Picture",
    "Policy",
    "Quarantined",
    "Reason",
    "Receiver",
    "Refused",
    "Rejected",
    "Reply",
    "Router",
    "Sink",
    "Spooled",
    "SqliteInbox",
    "TeamAddAdmin",
    "TeamApply",
    "TeamApplyAccept",
    "TeamApplyReject",
    "TeamDismiss",
    "TeamInvite",
    "TeamInviteAccept",
    "TeamInviteReject",
    "TeamJoin",
    "TeamKick",
    "TeamMemberUpdate",
    "TeamQuit",
    "TeamRoleUpdate",
    "TeamUpdate",
    "Text",
    "UnknownEvent",
    "Verified",
    "Video",
    "Worker",
    "delivery_of",
    "explain",
    "parse",
    "sign",
    "verify",
]


def __getattr__(name: str) -> object:
    return resolve(globals(), _WHERE, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
