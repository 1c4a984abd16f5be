"""What several processes share on a PostgreSQL server. For asyncio and trio; needs ``rbim[postgres]``."""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.postgres.inbox import PostgresInbox as PostgresInbox
else:
    __getattr__, __dir__ = lazy_names(__name__)
