"""All inboxes fit the protocols. Never executed: mypy and pyright read it, in strict mode, as they do ``api.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.callbacks import MemorySink, Receiver, SqliteInbox, Worker
from rbim.jetstream import JetStreamInbox, NatsSettings

if TYPE_CHECKING:
    from rbim.callbacks import Archive, Inbox, Router, Sink


def as_sinks(memory: MemorySink, file: SqliteInbox, stream: JetStreamInbox) -> list[Sink]:
    return [memory, file, stream]


def as_inboxes(memory: MemorySink, file: SqliteInbox, stream: JetStreamInbox) -> list[Inbox]:
    return [memory, file, stream]


def as_archives(memory: MemorySink, file: SqliteInbox, stream: JetStreamInbox) -> list[Archive]:
    return [memory, file, stream]


def used(router: Router) -> None:
    copies = JetStreamInbox(["nats://h1", "nats://h2"], name="copies", settings=NatsSettings.from_env(), takeover=5)
    Receiver.from_env(sink=copies, spool="copies.spool")
    Worker(copies, router, concurrency=32)


JetStreamInbox("h1", "copies")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
JetStreamInbox("h1", replicas="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
NatsSettings("user.creds")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
