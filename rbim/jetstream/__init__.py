"""Several machines: inboxes and operations on servers of NATS JetStream. For asyncio; needs ``rbim[nats]``."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.jetstream.inbox import JetStreamInbox as JetStreamInbox
    from rbim.jetstream.observers import (
        ClaimEnded as ClaimEnded,
        ClaimGivenUp as ClaimGivenUp,
        ClaimStarted as ClaimStarted,
        RequestEnded as RequestEnded,
        RequestStarted as RequestStarted,
        RequestWithdrawn as RequestWithdrawn,
    )
    from rbim.jetstream.sender import QueueState as QueueState, RemoteSender as RemoteSender, WorkerState as WorkerState
    from rbim.jetstream.settings import NatsSettings as NatsSettings
    from rbim.jetstream.worker import serve as serve
else:
    __getattr__, __dir__ = lazy_names(__name__)
