"""The streams of an inbox on the servers: created, compared with what is wanted, and the connection to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest
from rbim.jetstream.connection import Connection
from rbim.jetstream.nats_py import APIError, NotFoundError, add_bucket, add_stream, api
from rbim.jetstream.record import SCHEMA

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rbim.jetstream.messages import Subjects
    from rbim.jetstream.nats_py import JetStreamContext, KeyValue
    from rbim.jetstream.settings import NatsSettings

__all__ = ["MARGIN", "PARTITIONS_KEY", "Streams", "require_inbox"]

MARGIN = 300.0
"""Seconds for which events are kept longer than their keys are remembered: clocks of machines differ."""

NO_CLUSTER, OTHER_CONFIG = 10074, 10058  # error codes of the servers
DEAD_WINDOW = 3600.0  # seconds for which a dead letter that is written twice is recognised
SCHEMA_KEY, PARTITIONS_KEY = "rbim-schema", "rbim-partitions"


class Streams:
    """The streams of one inbox, over a connection for one event loop; an async context manager.

    A stream with the events, one with the dead letters, and a bucket with the records. The first has neither a greatest age
    nor a greatest size: an event that waits is never deleted. The worker that owns a partition deletes its old ones.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword
        self,
        servers: tuple[str, ...],
        settings: NatsSettings,
        subjects: Subjects,
        *,
        replicas: int,
        retention: float,
        label: str,
    ) -> None:
        self.subjects = subjects
        self.connection = Connection(servers, settings, name=label, prepare=self._prepare)
        self._replicas = replicas
        self._retention = retention
        self._bucket: KeyValue | None = None

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self.connection.close()

    async def jetstream(self) -> JetStreamContext:
        """Return the JetStream context as soon as it is ready."""
        return await self.connection.jetstream()

    async def at_hand(self) -> JetStreamContext:
        """Return the JetStream context for a question of people. Raises EngineAway if it is not ready within 5 seconds."""
        return await self.connection.at_hand()

    async def bucket(self) -> KeyValue:
        """Return the bucket of the records as soon as it is ready."""
        await self.connection.jetstream()
        assert self._bucket is not None  # noqa: S101  # prepared
        return self._bucket

    async def _prepare(self, jetstream: JetStreamContext) -> None:
        subjects = self.subjects
        metadata = {SCHEMA_KEY: str(SCHEMA), PARTITIONS_KEY: str(subjects.partitions)}
        for stream, listed in subjects.config().items():
            window = self._retention if stream == subjects.events else DEAD_WINDOW
            config = api.StreamConfig(
                name=stream,
                subjects=listed,
                num_replicas=self._replicas,
                storage=api.StorageType.FILE,
                retention=api.RetentionPolicy.LIMITS,  # a work queue forgets its keys at a restart
                duplicate_window=window,
                allow_direct=True,
                metadata=metadata,
            )
            found = await self._created(jetstream, config)
            self._check(found, config)
        try:
            self._bucket = await jetstream.key_value(subjects.state)
        except NotFoundError:
            self._bucket = await add_bucket(
                jetstream, api.KeyValueConfig(bucket=subjects.state, replicas=self._replicas, direct=True)
            )

    async def _created(self, jetstream: JetStreamContext, config: api.StreamConfig) -> api.StreamConfig:
        assert config.name is not None  # noqa: S101  # set above
        try:
            return (await jetstream.stream_info(config.name)).config
        except NotFoundError:
            pass
        try:
            return (await add_stream(jetstream, config)).config
        except APIError as error:
            if error.err_code == OTHER_CONFIG:  # created meanwhile
                return (await jetstream.stream_info(config.name)).config
            if error.err_code == NO_CLUSTER:
                raise InvalidRequest(
                    f"replicas: {self._replicas} copies need as many servers in a cluster; for one server pass replicas=1",
                    field="replicas",
                ) from error
            raise

    def _check(self, found: api.StreamConfig, wanted: api.StreamConfig) -> None:
        """Raise InvalidRequest if a stream is not what this inbox needs."""
        require_inbox(found)
        name, metadata = found.name, found.metadata or {}
        if metadata.get(PARTITIONS_KEY) != str(self.subjects.partitions):
            raise InvalidRequest(
                f"partitions: the inbox {name} has {metadata.get(PARTITIONS_KEY)}, not {self.subjects.partitions}: pass that"
                " number; it cannot be changed, because conversations would lose their order",
                field="partitions",
            )
        if found.duplicate_window != wanted.duplicate_window:
            raise InvalidRequest(
                f"retention: the stream {name} remembers keys for {found.duplicate_window:g} s, not"
                f" {wanted.duplicate_window:g}: pass retention={found.duplicate_window:g}, or change it: nats stream edit"
                f" {name} --dupe-window={wanted.duplicate_window:g}s",
                field="retention",
            )


def require_inbox(found: api.StreamConfig) -> None:
    """Raise InvalidRequest for a stream that is not an inbox of this version of rbim."""
    name, metadata = found.name, found.metadata or {}
    if SCHEMA_KEY not in metadata:
        raise InvalidRequest(f"name: the stream {name} is not an inbox of rbim: use another name", field="name")
    if metadata[SCHEMA_KEY] != str(SCHEMA):
        raise InvalidRequest(
            f"name: the inbox {name} was made by another version of rbim (schema {metadata[SCHEMA_KEY]}, this one has"
            f" {SCHEMA}): update rbim here, or use another name",
            field="name",
        )
