"""Callbacks: verify, store, answer and handle the platform's deliveries.

The platform posts users' messages and group notifications, signed, to the developer's server (its own name for that is
message copy). :class:`Receiver` verifies each delivery, stores it in a sink (:class:`SqliteInbox`, durable; or
:class:`MemorySink`), answers in time, and runs handlers afterwards. Its parts also work alone: :func:`verify`,
:func:`parse`, :class:`Worker`. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.callbacks.delivery import Delivery as Delivery, delivery_of as delivery_of
    from rbim.callbacks.diagnosis import Finding as Finding, explain as explain
    from rbim.callbacks.events import (
        Account as Account,
        At as At,
        Audio as Audio,
        ClientType as ClientType,
        ConvType as ConvType,
        Event as Event,
        File as File,
        FileCompress as FileCompress,
        Link as Link,
        Location as Location,
        Message as Message,
        MsgType as MsgType,
        Notice as Notice,
        Notification as Notification,
        Picture as Picture,
        TeamAddAdmin as TeamAddAdmin,
        TeamApply as TeamApply,
        TeamApplyAccept as TeamApplyAccept,
        TeamApplyReject as TeamApplyReject,
        TeamDismiss as TeamDismiss,
        TeamInvite as TeamInvite,
        TeamInviteAccept as TeamInviteAccept,
        TeamInviteReject as TeamInviteReject,
        TeamJoin as TeamJoin,
        TeamKick as TeamKick,
        TeamMemberUpdate as TeamMemberUpdate,
        TeamQuit as TeamQuit,
        TeamRoleUpdate as TeamRoleUpdate,
        TeamUpdate as TeamUpdate,
        Text as Text,
        UnknownEvent as UnknownEvent,
        Video as Video,
        parse as parse,
    )
    from rbim.callbacks.inbox.memory import MemorySink as MemorySink
    from rbim.callbacks.inbox.protocols import (
        Backlog as Backlog,
        Claim as Claim,
        Counts as Counts,
        Inbox as Inbox,
        LeaseLost as LeaseLost,
        OtherContent as OtherContent,
        Sink as Sink,
        StoredEvent as StoredEvent,
    )
    from rbim.callbacks.inbox.sqlite import SqliteInbox as SqliteInbox
    from rbim.callbacks.inbox.stored import Archive as Archive
    from rbim.callbacks.observers import (
        Accepted as Accepted,
        DeadLettered as DeadLettered,
        DeliveryEnded as DeliveryEnded,
        DeliveryStarted as DeliveryStarted,
        Handled as Handled,
        HandlingEnded as HandlingEnded,
        HandlingFailed as HandlingFailed,
        HandlingStarted as HandlingStarted,
        HungHandler as HungHandler,
        LoopBlocked as LoopBlocked,
        NotEntered as NotEntered,
        OldToken as OldToken,
        PartEnded as PartEnded,
        PartRestarted as PartRestarted,
        Quarantined as Quarantined,
        Refused as Refused,
        RetriedAlone as RetriedAlone,
        Skewed as Skewed,
        Spooled as Spooled,
    )
    from rbim.callbacks.receiver.key_ring import (
        CallbackCredentials as CallbackCredentials,
        CallbackCredentialsProvider as CallbackCredentialsProvider,
    )
    from rbim.callbacks.receiver.receiver import Receiver as Receiver, ReceiverOptions as ReceiverOptions
    from rbim.callbacks.receiver.replies import Health as Health, Reply as Reply
    from rbim.callbacks.signature import (
        Key as Key,
        Keys as Keys,
        Policy as Policy,
        Reason as Reason,
        Rejected as Rejected,
        Verified as Verified,
        sign as sign,
        verify as verify,
    )
    from rbim.callbacks.worker.backoff import Backoff as Backoff
    from rbim.callbacks.worker.router import CallNext as CallNext, HandlerContext as HandlerContext, Router as Router
    from rbim.callbacks.worker.worker import Worker as Worker
else:
    __getattr__, __dir__ = lazy_names(__name__)
