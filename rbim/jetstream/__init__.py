"""Several machines: inboxes on servers of NATS JetStream. For asyncio; needs ``rbim[nats]``."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.jetstream.inbox import JetStreamInbox as JetStreamInbox
    from rbim.jetstream.settings import NatsSettings as NatsSettings
else:
    __getattr__, __dir__ = lazy_names(__name__)
