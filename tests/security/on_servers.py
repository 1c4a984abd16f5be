"""Everything that rbim leaves on NATS servers, or sends over them: planted secrets are looked for there, too.

One run of an inbox and of a queue, with handlers that fail, a platform that quotes the signed request, observers that trace,
and all that people do with letters. ``SUBJECTS``, ``STREAMS``, ``CONSUMERS`` and ``KEYS`` are the kinds of names that it may
use: a test fails for a name of no kind, and for a kind that does not occur.
"""

import asyncio
import json
import re
import urllib.request
from datetime import UTC, datetime
from functools import cache

import nats as nats_py
from attrs import define, field
from security.world import APP_ID, CREDENTIALS, SECRETS, all_logs, shown

from helpers.nats_servers import own_servers
from helpers.sockets import free_port
from helpers.telemetry import Telemetry
from rbim import AsyncClient, Credentials, InviteJoinGroup, QueryGroupDetail, Rate, Retry, errors
from rbim.bulk import InviteJob
from rbim.callbacks import Backoff, Receiver, Router, Worker, sign
from rbim.callbacks.observers import Observers
from rbim.jetstream import JetStreamInbox, RemoteSender, serve
from rbim.transports.auto import transport_named

__all__ = ["CONSUMERS", "INBOX", "KEYS", "STREAMS", "SUBJECTS", "Seen", "kind_of", "seen"]

INBOX, QUEUE = "copies", "bulk"
PATIENCE = 30.0
OLD = Credentials(app_id=APP_ID, app_token=SECRETS["older callback token"])

_ID, _KEY = r"[\w-]+", r"[\w=-]+"
SUBJECTS = {
    "inbox, new events": rf"{INBOX}\.new\.\d+",
    "inbox, replayed events": rf"{INBOX}\.again\.\d+",
    "inbox, quarantine": rf"{INBOX}\.quarantine",
    "inbox, dead letters": rf"{INBOX}-dead\.\d+",
    "inbox, owners": rf"{INBOX}\.owners",
    "inbox, records": rf"\$KV\.{INBOX}-state\.{_KEY}(\.{_KEY})*",
    "queue, operations": rf"rbim\.operations\.{QUEUE}",
    "queue, workers": rf"rbim\.workers\.{QUEUE}(\.{_ID})*",
    "queue, records": rf"\$KV\.rbim-requests-{QUEUE}\.{_KEY}(\.{_KEY})*",
    "answers": r"_INBOX\..+",
    "commands of the servers": r"\$JS\.(API|ACK|FC)\..+",
    "events of the servers": r"\$JS\.EVENT\..+|\$SYS\..+",
}
STREAMS = {
    "inbox, events": INBOX,
    "inbox, dead letters": f"{INBOX}-dead",
    "inbox, records": f"KV_{INBOX}-state",
    "queue, operations": f"rbim-operations-{QUEUE}",
    "queue, records": f"KV_rbim-requests-{QUEUE}",
}
CONSUMERS = {"queue, workers": "workers", "inbox, a reader": r"r[0-9a-f]{16}"}
KEYS = {
    "inbox, a partition": r"p\.\d+",
    "inbox, proof of writes": "proof",
    "queue, a request": r"[0-9a-f]{16}\.\d+",
    "queue, pace": "pace",
}


@define
class Seen:
    """What passed, with subjects, headers and contents, and what is left: streams, consumers, keys, and other texts."""

    passed: list = field(factory=list)
    streams: dict = field(factory=dict)
    consumers: set = field(factory=set)
    keys: dict = field(factory=dict)
    texts: list = field(factory=list)

    def parts(self):
        """Return everything as texts."""
        return [repr(each) for each in self.passed] + [repr(self.streams), repr(self.keys), *self.texts]


_MONITORED = ("connz?subs=1", "subsz?subs=1", "jsz?streams=1&consumers=1&config=1", "varz", "accountz")


@cache
def seen(world):
    """Run an inbox and a queue on servers of their own, once, and return what was seen of it."""
    monitor = free_port()
    with own_servers(world.path("seen"), more=f'http: "127.0.0.1:{monitor}"') as servers:
        found = asyncio.run(_everything(world, servers.urls, monitor))
    found.texts += [file.read_bytes().decode("latin-1") for file in servers.folder.rglob("*") if file.is_file()]
    return found


async def _everything(world, urls, monitor):
    seen = Seen()
    listener = await nats_py.connect(urls)

    async def keep(message):
        seen.passed.append((message.subject, dict(message.headers or {}), message.data))
        if message.reply:
            seen.passed.append((message.reply, {}, b""))

    await listener.subscribe(">", cb=keep)
    await listener.flush()
    with all_logs() as lines:
        await _inbox(world, urls, seen, monitor)
        await _queue(world, urls, seen, monitor)
    seen.texts += lines
    await listener.flush()
    await _left(listener.jetstream(), seen)
    await listener.drain()
    return seen


async def _monitored(monitor, seen):
    """Keep what the servers tell about streams, consumers, subscriptions and connections now."""

    def asked(path):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{monitor}/{path}", timeout=PATIENCE) as answer:
            return answer.read().decode()

    found = [await asyncio.to_thread(asked, path) for path in _MONITORED]
    seen.texts += found
    for account in json.loads(found[2]).get("account_details") or ():
        for stream in account.get("stream_detail") or ():
            seen.consumers |= {each["name"] for each in stream.get("consumer_detail") or ()}


async def _until(true):
    async with asyncio.timeout(PATIENCE):
        while not await true():
            await asyncio.sleep(0.02)


def _event(number, **fields):
    document = {"eventType": "1", "convType": "TEAM", "to": "g1", "fromAccount": f"{APP_ID}#1", "msgType": "TEXT"}
    return json.dumps(document | {"msgId": f"m{number}", "body": "b"} | fields).encode()


async def _inbox(world, urls, seen, monitor):
    """Accept, quarantine, fail, replay, requeue, discard, purge."""
    near, far = Telemetry(), Telemetry()
    router = Router()

    @router.fallback
    async def fails(event, handling):
        raise ValueError(f"no room for {event} {handling}")

    options = {"name": INBOX, "partitions": 4, "replicas": 1, "takeover": 0.6, "retention": 3600.0}
    copies = JetStreamInbox(urls, inject=near.observer.inject, **options)
    worker = Worker(
        JetStreamInbox(urls, **options),
        router,
        observers=Observers([far.observer.on_callback]),
        backoff=Backoff(attempts=2, first=0.05),
    )
    spool = world.path("spool")
    receiver = Receiver(credentials=[CREDENTIALS, OLD], sink=copies, spool=spool, observers=[near.observer.on_callback])
    async with receiver, near.observer.observe_inbox(copies, every=0.1):
        now = datetime.now(UTC)
        for number, signer in enumerate((CREDENTIALS, CREDENTIALS, OLD)):
            body = _event(number)
            assert (await receiver.receive(sign(body, credentials=signer, now=now), body)).status == 200
        for body in (b"not JSON", _event(0, body="other content")):
            assert (await receiver.receive(sign(body, credentials=CREDENTIALS, now=now), body)).status == 200
        assert (await receiver.receive({"CheckSum": "x"}, b"{}")).status == 401
        running = asyncio.create_task(worker.run())

        async def dead():
            return (await copies.counts()).dead == 3

        await _until(dead)
        await _monitored(monitor, seen)
        letters = await copies.dead_letters()
        seen.texts += [repr(letters), repr(await copies.quarantined())]
        await copies.requeue([letters[0].number], quarantined=False)
        await copies.replay(dead_only=True)
        await _until(dead)
        await copies.discard([(await copies.dead_letters())[0].number])
        await copies.purge(quarantined=True, dead=False)
        worker.stop()
        await running
    seen.texts += [near.text(), far.text(), repr(copies), repr(worker), repr(receiver)]
    seen.texts += [file.read_bytes().decode("latin-1") for file in spool.parent.iterdir()]


async def _queue(world, urls, seen, monitor):
    """Send operations and a job by a worker whose platform quotes the signed request, and by none."""
    near, far = Telemetry(), Telemetry()
    for place in ("", "/echo"):
        stop = asyncio.Event()
        client = AsyncClient(
            base_url=f"{world.url}{place}",
            credentials=CREDENTIALS,
            transport=transport_named("asyncio"),
            user_name="admin",
            observers=[far.observer],
            retry=Retry(attempts=1),
        )
        async with client, RemoteSender(urls, name=QUEUE, observers=[near.observer.on_operation]) as sender:
            task = asyncio.create_task(
                serve(
                    client,
                    urls,
                    name=QUEUE,
                    stop=stop,
                    takeover=1.0,
                    rates=[Rate(100)],
                    observers=[far.observer.on_operation],
                )
            )
            for operation in (QueryGroupDetail(group_id="none"), InviteJoinGroup(group_id="none", members=["1", "2"])):
                try:
                    seen.texts.append(repr(await sender.send(operation)))
                except errors.RbimError as error:
                    seen.texts.append(shown(error))
            journal = world.path("journal")
            report = await InviteJob(sender, journal=journal, chunk=2).run([("none", "1"), ("none", "2")])
            seen.texts.append(json.dumps(report.as_json()))
            seen.texts += [file.read_bytes().decode("latin-1") for file in journal.parent.iterdir()]
            seen.texts.append(repr(await sender.state()))
            await _monitored(monitor, seen)
            stop.set()
            await task
        seen.texts += [repr(sender), repr(client)]
    seen.texts += [near.text(), far.text()]


async def _left(jetstream, seen):
    """Keep what the streams hold: their configuration with metadata, and each message; and the keys of buckets."""
    for info in await jetstream.streams_info():
        name = info.config.name
        seen.streams[name] = repr(info)
        seen.consumers |= {each.name for each in await jetstream.consumers_info(name)}
        for number in range(info.state.first_seq, info.state.last_seq + 1):
            try:
                message = await jetstream.get_msg(name, number)
            except nats_py.js.errors.NotFoundError:
                continue
            seen.passed.append((message.subject, dict(message.headers or {}), message.data))
            if name.startswith("KV_"):
                seen.keys.setdefault(name, set()).add(message.subject.split(".", 2)[2])


def kind_of(name, kinds):
    """Return the kind of a name, None if there is none."""
    return next((kind for kind, form in kinds.items() if re.fullmatch(form, name)), None)
