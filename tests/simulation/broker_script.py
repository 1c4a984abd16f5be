"""Scripts of requests, for the model of the servers and for the servers: ``test_broker.py`` compares the answers.

``python -m tests.simulation.broker_script`` plays one on the model of one server and prints the answers as JSON, one for
each step; with ``cluster`` on that of three servers, and then :func:`play_troubles`.

What is not compared, because servers may answer it either way: requests while a stream has no leader; reads that any server
answers, before all have what was written; consumers in the memory of a server that dies.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["ONE", "THREE", "Cluster", "play", "play_troubles"]

NANO = 1_000_000_000
HOUR = 3600 * NANO
PAUSE = 0.25  # seconds in which everything that was asked for comes
KNOWN = 0.2  # seconds in which all servers know of a write, a consumer or a subscription
ONE, THREE = 1, 3
"""Servers, and copies of each stream."""

LOG = {"name": "log", "subjects": ["log.new.*", "log.again.*"], "retention": "limits", "duplicate_window": HOUR}
LOG |= {"storage": "file", "num_replicas": 1, "allow_direct": True, "metadata": {"schema": "1"}}
KEYS = {"name": "KV_keys", "subjects": ["$KV.keys.>"], "max_msgs_per_subject": 1, "allow_direct": True, "deny_delete": True}
KEYS |= {"allow_rollup_hdrs": True, "duplicate_window": 120 * NANO, "discard": "new", "num_replicas": 1}

API, LAST = "$JS.API.", "Nats-Expected-Last-Subject-Sequence"

REQUESTS: tuple[tuple[str, Any, dict[str, str]], ...] = (
    # what is not there
    (f"{API}STREAM.INFO.log", "", {}),
    (f"{API}CONSUMER.CREATE.log.c", {"stream_name": "log", "config": {"name": "c"}}, {}),
    ("log.new.1", b"too early", {}),
    # streams
    (f"{API}STREAM.CREATE.log", LOG, {}),
    (f"{API}STREAM.CREATE.log", LOG, {}),
    (f"{API}STREAM.CREATE.log", {**LOG, "duplicate_window": 2 * HOUR}, {}),
    (f"{API}STREAM.CREATE.other", {**LOG, "name": "other"}, {}),
    (f"{API}STREAM.CREATE.KV_keys", KEYS, {}),
    (f"{API}STREAM.INFO.log", "", {}),
    (f"{API}STREAM.INFO.KV_keys", "", {}),
    # messages, and ids that are known
    ("log.new.1", b"a", {"Nats-Msg-Id": "1"}),
    ("log.new.1", b"b", {"Nats-Msg-Id": "2", "Rbim": '["x", 1]'}),
    ("log.new.2", b"a again", {"Nats-Msg-Id": "1"}),
    ("log.again.1", b"c", {}),
    ("log.other.1", b"no stream takes it", {}),
    ("log.new.2", b"", {"Nats-Msg-Id": "3"}),
    # reads
    (f"{API}STREAM.MSG.GET.log", {"seq": 2}, {}),
    (f"{API}STREAM.MSG.GET.log", {"seq": 9}, {}),
    (f"{API}STREAM.MSG.GET.log", {"last_by_subj": "log.new.1"}, {}),
    (f"{API}STREAM.MSG.GET.log", {"last_by_subj": "log.*.1"}, {}),
    (f"{API}STREAM.MSG.GET.log", {"last_by_subj": "log.new.7"}, {}),
    (f"{API}STREAM.MSG.GET.log", {"seq": 2, "next_by_subj": "log.again.*"}, {}),
    (f"{API}DIRECT.GET.log", {"seq": 2}, {}),
    (f"{API}DIRECT.GET.log", {"seq": 9}, {}),
    (f"{API}DIRECT.GET.log", {"seq": 1, "next_by_subj": "log.*.2"}, {}),
    (f"{API}DIRECT.GET.log", {"seq": 5, "next_by_subj": "log.*.2"}, {}),
    (f"{API}DIRECT.GET.log.log.new.1", "", {}),
    (f"{API}DIRECT.GET.nothing", {"seq": 1}, {}),
    (f"{API}STREAM.INFO.log", {"subjects_filter": ">"}, {}),
    (f"{API}STREAM.INFO.log", {"subjects_filter": ">", "offset": 2}, {}),
    # keys, written by compare-and-set
    ("$KV.keys.p", b"1", {LAST: "0"}),
    ("$KV.keys.p", b"2", {LAST: "0"}),
    ("$KV.keys.p", b"2", {LAST: "1"}),
    ("$KV.keys.p", b"3", {LAST: "1"}),
    ("$KV.keys.q", b"1", {LAST: "0"}),
    ("$KV.keys.p", b"3", {LAST: "2"}),
    (f"{API}DIRECT.GET.KV_keys.$KV.keys.p", "", {}),
    (f"{API}DIRECT.GET.KV_keys.$KV.keys.none", "", {}),
    (f"{API}STREAM.MSG.GET.KV_keys", {"last_by_subj": "$KV.keys.p"}, {}),
    (f"{API}STREAM.MSG.GET.KV_keys", {"seq": 1}, {}),
    (f"{API}STREAM.INFO.KV_keys", "", {}),
    # deletion
    (f"{API}STREAM.MSG.DELETE.log", {"seq": 3}, {}),
    (f"{API}STREAM.MSG.DELETE.log", {"seq": 3}, {}),
    (f"{API}STREAM.MSG.DELETE.KV_keys", {"seq": 3}, {}),
    (f"{API}STREAM.PURGE.log", {"seq": 2, "filter": "log.*.1"}, {}),
    (f"{API}STREAM.INFO.log", "", {}),
    ("log.new.1", b"d", {"Nats-Msg-Id": "1"}),
    ("log.new.1", b"d", {"Nats-Msg-Id": "4"}),
    (f"{API}CONSUMER.INFO.log.none", "", {}),
    (f"{API}CONSUMER.DELETE.log.none", "", {}),
)


class Cluster(Protocol):
    """Three servers. Each method returns once another server leads the stream."""

    async def step_down(self, stream: str) -> None:
        """Have the leader of a stream step down."""

    async def kill_leader(self, stream: str) -> None:
        """Kill the server that leads a stream."""


async def play(client: Any, servers: int = ONE) -> AsyncIterator[Any]:
    """Yield the answers of servers to each step."""
    for subject, body, headers in REQUESTS:
        if servers > ONE and ".DIRECT." in subject:
            await asyncio.sleep(KNOWN)
        document = {**body, "num_replicas": servers} if isinstance(body, dict) and "num_replicas" in body else body
        yield await _asked(client, subject, _encoded(document), headers)
    async for each in _read(client):
        yield each


def _encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()


TROUBLED: tuple[tuple[str, Any, dict[str, str]], ...] = (
    # ids, revisions and contents are known to every leader
    ("log.new.1", b"again", {"Nats-Msg-Id": "{last}"}),
    ("log.new.1", b"x", {"Nats-Msg-Id": "{next}"}),
    ("log.new.1", b"x", {"Nats-Msg-Id": "{next}"}),
    ("$KV.keys.p", b"stale", {LAST: "1"}),
    ("$KV.keys.p", b"{next}", {LAST: "{revision}"}),
    ("$KV.keys.p", b"{next}", {LAST: "{revision}"}),
    (f"{API}STREAM.MSG.GET.KV_keys", {"last_by_subj": "$KV.keys.p"}, {}),
    (f"{API}STREAM.MSG.GET.log", {"last_by_subj": "log.new.1"}, {}),
    (f"{API}STREAM.INFO.log", "", {}),
    (f"{API}STREAM.INFO.KV_keys", "", {}),
)
"""What is asked after each trouble; ``{last}`` is the id of the last message before it, ``{revision}`` that of the key."""


async def play_troubles(client: Any, cluster: Cluster) -> AsyncIterator[Any]:
    """Yield the answers of servers to each step, where leaders step down, and servers die; after :func:`play`."""
    got: list[Any] = []
    heard = await _listens(client, "_INBOX.steady", got)
    config = {"name": "s", "deliver_policy": "by_start_sequence", "opt_start_seq": 1, "ack_policy": "none"}
    config |= {"filter_subject": "log.new.1", "inactive_threshold": 300 * NANO, "mem_storage": True, "num_replicas": 1}
    document = json.dumps({"stream_name": "log", "config": config}).encode()
    yield await _asked(client, f"{API}CONSUMER.CREATE.log.s.log.new.1", document, {})
    yield await _asked(client, f"{API}STREAM.LEADER.STEPDOWN.none", b"", {})
    yield await _asked(client, "log.new.1", b"x", {"Nats-Msg-Id": "trouble 0"})
    revision = await _revision(client)
    await asyncio.sleep(KNOWN)
    yield await _pulled(client, "s", "_INBOX.steady", got, batch=50, expires=60.0)
    for number, (trouble, stream) in enumerate(
        ((cluster.step_down, "log"), (cluster.step_down, "KV_keys"), (cluster.kill_leader, "log")), 1
    ):
        await trouble(stream)
        names = {"last": f"trouble {number - 1}", "next": f"trouble {number}", "revision": str(revision)}
        for subject, body, headers in TROUBLED:
            data = _encoded(body)
            filled = {name: value.format_map(names) for name, value in headers.items()}
            yield await _asked(client, subject, data.replace(b"{next}", names["next"].encode()), filled)
        revision = await _revision(client)
        if trouble == cluster.step_down:  # the reader is in the memory of one server, and goes on where it was
            yield await _after(PAUSE, got)
    await heard.unsubscribe()


async def _revision(client: Any) -> int:
    found = await _asked(client, f"{API}STREAM.MSG.GET.KV_keys", b'{"last_by_subj": "$KV.keys.p"}', {})
    return int(found[1])


async def _read(client: Any) -> AsyncIterator[Any]:
    """Read in order from a sequence on, as the owner of a partition does."""
    got: list[Any] = []
    heard = await _listens(client, "_INBOX.reader", got)
    config = {"name": "r", "deliver_policy": "by_start_sequence", "opt_start_seq": 2, "ack_policy": "none"}
    config |= {"filter_subject": "log.*.1", "inactive_threshold": 30 * NANO, "mem_storage": True, "num_replicas": 1}
    document = json.dumps({"stream_name": "log", "config": config}).encode()
    yield await _asked(client, f"{API}CONSUMER.CREATE.log.r.log.*.1", document, {})
    yield await _pulled(client, "r", "_INBOX.reader", got, batch=1, expires=1.0)
    yield await _pulled(client, "r", "_INBOX.reader", got, batch=5, expires=1.2, heartbeat=0.5, pause=0.8)
    yield await _asked(client, "log.new.1", b"e", {"Nats-Msg-Id": "5"})
    yield await _asked(client, "log.new.2", b"not read", {"Nats-Msg-Id": "6"})
    yield await _after(1.0, got)  # what was left is told at the end of the request
    yield await _asked(client, f"{API}CONSUMER.INFO.log.r", b"", {})
    await client.publish(f"{API}CONSUMER.MSG.NEXT.log.r", b'{"batch": 1, "expires": 30000000000}', reply="_INBOX.reader")
    await asyncio.sleep(0.05)
    yield await _asked(client, f"{API}CONSUMER.DELETE.log.r", b"", {})
    yield await _after(PAUSE, got)
    yield await _pulled(client, "r", "_INBOX.reader", got, batch=1, expires=1.0)  # there is none any more
    await heard.unsubscribe()


async def _listens(client: Any, subject: str, got: list[Any]) -> Any:
    async def heard(message: Any) -> None:
        got.append(message)

    subscription = await client.subscribe(subject, cb=heard)
    await asyncio.sleep(KNOWN)
    return subscription


async def _pulled(  # a request, by keyword
    client: Any,
    consumer: str,
    inbox: str,
    got: list[Any],
    *,
    batch: int,
    expires: float,
    heartbeat: float = 0,
    pause: float = PAUSE,
) -> Any:
    request = {"batch": batch, "expires": int(expires * NANO), "idle_heartbeat": int(heartbeat * NANO)}
    await client.publish(f"{API}CONSUMER.MSG.NEXT.log.{consumer}", json.dumps(request).encode(), reply=inbox)
    return await _after(pause, got)


async def _after(seconds: float, got: list[Any]) -> Any:
    """Return what has come after a while."""
    await asyncio.sleep(seconds)
    told = [_told(each) for each in got]
    got.clear()
    return told


def _told(message: Any) -> Any:
    headers = {name: value for name, value in (message.headers or {}).items() if name != "Description"}
    if "Status" in headers:
        return {name: value for name, value in headers.items() if name != "Nats-Pending-Bytes"}
    about = message.metadata
    place = [about.sequence.stream, about.sequence.consumer, about.num_delivered, about.num_pending]
    return [message.subject, message.data.decode(), headers, *place]


async def _asked(client: Any, subject: str, data: bytes, headers: dict[str, str]) -> Any:
    """Return the answer to a request, without what differs from run to run."""
    try:
        message = await client.request(subject, data, timeout=2, headers=headers or None)
    except Exception as error:
        return type(error).__name__
    if not message.data or "Nats-Sequence" in (message.headers or {}):
        kept = {name: value for name, value in message.headers.items() if name not in {"Description", "Nats-Time-Stamp"}}
        return [kept, message.data.decode()]
    return _kept(json.loads(message.data))


CONFIG = ("name", "subjects", "max_msgs_per_subject", "allow_direct", "duplicate_window", "metadata")
STATE = ("messages", "first_seq", "last_seq", "num_subjects", "subjects", "consumer_count")
CONSUMER = ("name", "num_pending", "num_waiting")


def _kept(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        return [answer["error"]["code"], answer["error"].get("err_code")]
    if "message" in answer:
        message = answer["message"]
        lines = base64.b64decode(message.get("hdrs", "")).decode()
        return [message["subject"], message["seq"], base64.b64decode(message.get("data", "")).decode(), lines]
    if "state" in answer:
        config = {name: answer["config"].get(name) or None for name in CONFIG}
        config["metadata"] = {name: each for name, each in (config["metadata"] or {}).items() if not name.startswith("_")}
        if (config["max_msgs_per_subject"] or 0) < 1:
            config["max_msgs_per_subject"] = None
        state = {name: answer["state"].get(name) or None for name in STATE}
        return [config, state, answer.get("total"), answer.get("offset")]
    if "num_pending" in answer:
        return {name: answer.get(name) for name in CONSUMER} | {"delivered": answer["delivered"]["consumer_seq"]}
    return {name: value for name, value in answer.items() if name != "type"}


def _main(servers: int) -> None:
    from . import virtual_time

    virtual_time.install()
    from .broker_network import Client, Servers
    from .world import World

    world = World(1)
    found: list[Any] = []

    async def main() -> None:
        model = Servers(world, nodes=servers, latency=0.0001)
        client = Client()
        await client.connect(["h"] * servers, reconnect_time_wait=0.1)
        found.extend([each async for each in play(client, servers)])
        if servers > ONE:
            found.extend([each async for each in play_troubles(client, _ModelOfCluster(client, model))])

    result = world.run(main())
    if result["broken"]:
        raise SystemExit(f"{result['broken'][0]}")
    print(json.dumps(found))  # noqa: T201  # what was asked for


class _ModelOfCluster:
    def __init__(self, client: Any, model: Any) -> None:
        self._client, self._model = client, model

    async def step_down(self, stream: str) -> None:
        await self._client.request(f"{API}STREAM.LEADER.STEPDOWN.{stream}", b"", timeout=2)
        await asyncio.sleep(2.0)

    async def kill_leader(self, stream: str) -> None:
        self._model.kill_node(1000.0, self._model.leader(stream))
        await asyncio.sleep(20.0)


if __name__ == "__main__":
    _main(THREE if sys.argv[1:] == ["cluster"] else ONE)
