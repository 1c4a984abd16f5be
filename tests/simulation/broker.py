"""A model of NATS servers with JetStream: streams and consumers, at the level of the requests that nats-py sends.

Only what rbim uses is here, and it answers as the servers do: ``test_broker.py`` runs one script of requests against both.
What goes wrong between clients and servers is in ``broker_network``.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, insort
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attrs import define, field

from .virtual_time import EPOCH, TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Broker", "Consumer", "Reply", "Stored", "Stream", "matches"]

NANO = 1_000_000_000
DEFAULT_WINDOW = 120.0  # seconds
KEPT = 10.0  # seconds for which what was removed is known to a follower that is behind

Headers = dict[str, str]


def matches(pattern: str, subject: str) -> bool:
    """Tell whether a subject matches a pattern with wildcards."""
    head, wildcard, _ = pattern.partition("*")
    if not subject.startswith(head.rstrip(">")):  # most do not
        return False
    if not wildcard and not head.endswith(">"):
        return pattern == subject
    wanted, given = pattern.split("."), subject.split(".")
    for place, token in enumerate(wanted):
        if token == ">":
            return len(given) > place
        if place >= len(given) or token not in {"*", given[place]}:
            return False
    return len(wanted) == len(given)


def _rfc3339(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


@define(eq=False)
class Stored:
    """A message of a stream. ``time`` is what its leader's clock said, ``at`` is the time of the world."""

    seq: int
    subject: str
    headers: Headers
    data: bytes
    time: float
    at: float
    removed_at: float = float("inf")


@define(eq=False)
class Reply:
    """What a server sends to a subject: content, or a status in its headers."""

    subject: str
    data: bytes = b""
    headers: Headers = field(factory=dict[str, str])
    reply: str = ""


class ApiError(Exception):
    """An answer that is an error."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.document = {"code": code, "err_code": err_code, "description": description}


@define(eq=False)
class Asked:
    """A request for the next messages of a consumer."""

    reply: str
    left: int
    expires: float
    heartbeat: float
    last: float  # when something was sent for it


class Stream:
    """A stream: its messages, the ids that it remembers, and its consumers."""

    def __init__(self, broker: Broker, config: dict[str, Any]) -> None:
        self._broker = broker
        self.config = config
        self.name: str = config["name"]
        self.messages: dict[int, Stored] = {}
        self.last_seq = 0
        self.subjects: dict[str, list[int]] = {}
        self.ids: dict[str, tuple[int, float]] = {}
        self.consumers: dict[str, Consumer] = {}
        self.removed: deque[Stored] = deque()
        self.created = TIME.now

    @property
    def first_seq(self) -> int:
        return next(iter(self.messages), self.last_seq + 1)

    @property
    def window(self) -> float:
        return (self.config.get("duplicate_window") or DEFAULT_WINDOW * NANO) / NANO

    def takes(self, subject: str) -> bool:
        return any(matches(each, subject) for each in self.config["subjects"])

    def expire(self) -> None:
        """Forget ids that are older than the window."""
        now = self._broker.clock(self.name)
        while self.ids:
            identity, (_, noted) = next(iter(self.ids.items()))
            if noted >= now - self.window:
                break
            del self.ids[identity]
        while self.removed and self.removed[0].removed_at < TIME.now - KEPT:
            self.removed.popleft()

    def remove(self, message: Stored) -> None:
        del self.messages[message.seq]
        numbers = self.subjects[message.subject]
        del numbers[bisect_left(numbers, message.seq)]
        if not numbers:
            del self.subjects[message.subject]
        message.removed_at = TIME.now
        self.removed.append(message)

    def store(self, subject: str, headers: Headers, data: bytes) -> dict[str, Any]:
        """Store a message and return the acknowledgement. Raises ApiError."""
        self.expire()
        identity = headers.get("Nats-Msg-Id")
        if identity in self.ids:
            return {"stream": self.name, "seq": self.ids[identity][0], "duplicate": True}
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        numbers = self.subjects.get(subject, [])
        if expected is not None and int(expected) != (last := numbers[-1] if numbers else 0):
            raise ApiError(400, 10071, f"wrong last sequence: {last}")
        self.last_seq += 1
        kept = {name: value.strip() for name, value in headers.items()}
        message = Stored(self.last_seq, subject, kept, data, self._broker.clock(self.name), TIME.now)
        self.messages[message.seq] = message
        insort(self.subjects.setdefault(subject, []), message.seq)
        most = self.config.get("max_msgs_per_subject") or 0
        while most > 0 and len(self.subjects[subject]) > most:
            self.remove(self.messages[self.subjects[subject][0]])
        if identity:
            self.ids[identity] = message.seq, message.time
        for consumer in tuple(self.consumers.values()):
            consumer.deliver()
        return {"stream": self.name, "seq": message.seq}

    def seen_at(self, at: float) -> Iterator[Stored]:
        """Yield the messages that there were at a time, in order."""
        found = [each for each in self.removed if each.at <= at < each.removed_at]
        found += [each for each in self.messages.values() if each.at <= at]
        yield from sorted(found, key=lambda each: each.seq)

    def find(self, wanted: dict[str, Any], at: float | None) -> Stored:
        """Return a message by its number, the last of a subject, or the next of it; as it was at a time. Raises ApiError."""
        self.expire()
        if at is None and "seq" in wanted and "next_by_subj" not in wanted:
            message = self.messages.get(wanted["seq"])
        elif at is None and wanted.get("last_by_subj") in self.subjects:
            message = self.messages[self.subjects[wanted["last_by_subj"]][-1]]
        else:
            message = self._search(wanted, TIME.now if at is None else at)
        if message is None:
            raise ApiError(404, 10037, "no message found")
        return message

    def _search(self, wanted: dict[str, Any], at: float) -> Stored | None:
        if "next_by_subj" in wanted:
            first = wanted.get("seq") or 0
            found = (
                each for each in self.seen_at(at) if each.seq >= first and matches(wanted["next_by_subj"], each.subject)
            )
            return next(found, None)
        if "last_by_subj" in wanted:
            fitting = [each for each in self.seen_at(at) if matches(wanted["last_by_subj"], each.subject)]
            return fitting[-1] if fitting else None
        return next((each for each in self.seen_at(at) if each.seq == wanted["seq"]), None)

    def info(self, asked: dict[str, Any]) -> dict[str, Any]:
        self.expire()
        state: dict[str, Any] = {
            "messages": len(self.messages),
            "bytes": sum(len(each.data) for each in self.messages.values()),
            "first_seq": self.first_seq if self.messages else 0 if not self.last_seq else self.last_seq + 1,
            "last_seq": self.last_seq,
            "consumer_count": len(self.consumers),
            "num_subjects": len(self.subjects),
        }
        wanted = asked.get("subjects_filter")
        document: dict[str, Any] = {"config": self.config, "created": _rfc3339(EPOCH + self.created), "state": state}
        if wanted:
            chosen = sorted(each for each in self.subjects if matches(wanted, each))
            page = chosen[asked.get("offset", 0) :]
            state["subjects"] = {each: len(self.subjects[each]) for each in page}
            document |= {"total": len(chosen), "offset": asked.get("offset", 0), "limit": 100_000}
        return {**document, "ts": _rfc3339(self._broker.clock(self.name))}


class Consumer:
    """A pull consumer without acknowledgements. It is on one server only, in memory."""

    def __init__(self, broker: Broker, stream: Stream, config: dict[str, Any]) -> None:
        self._broker, self._stream, self.config = broker, stream, config
        self.name: str = config["name"]
        self.filter: str = config.get("filter_subject", "")
        self.next = config.get("opt_start_seq", 1) if config.get("deliver_policy") == "by_start_sequence" else 1
        self.delivered = 0  # the consumer's last number
        self.last_stream = 0
        self.asked: deque[Asked] = deque()
        self.used = TIME.now
        self.gone = False
        self._timer = float("inf")
        self._tick_soon(config.get("inactive_threshold", 0) / NANO or float("inf"))

    def _fits(self, message: Stored) -> bool:
        return not self.filter or matches(self.filter, message.subject)

    @property
    def pending(self) -> int:
        return sum(1 for each in self._ahead())

    def _ahead(self) -> Iterator[Stored]:
        stream = self._stream
        for number in range(max(self.next, stream.first_seq), stream.last_seq + 1):
            message = stream.messages.get(number)
            if message is not None and self._fits(message):
                yield message

    def info(self) -> dict[str, Any]:
        self._stream.expire()
        return {
            "stream_name": self._stream.name,
            "name": self.name,
            "config": self.config,
            "created": _rfc3339(EPOCH + self.used),
            "delivered": {"consumer_seq": self.delivered, "stream_seq": self.last_stream},
            "ack_floor": {"consumer_seq": 0, "stream_seq": 0},
            "num_ack_pending": 0,
            "num_redelivered": 0,
            "num_waiting": len(self.asked),
            "num_pending": self.pending,
            "ts": _rfc3339(self._broker.clock(self._stream.name)),
        }

    def ask(self, reply: str, document: dict[str, Any]) -> None:
        """Take a request for messages."""
        self.used = TIME.now
        expires = document.get("expires", 0) / NANO
        heartbeat = document.get("idle_heartbeat", 0) / NANO
        self.asked.append(
            Asked(
                reply,
                document.get("batch", 1),
                TIME.now + expires if expires else float("inf"),
                heartbeat,
                TIME.now,
            )
        )
        self.deliver()
        self._tick_soon(min(expires or float("inf"), heartbeat or float("inf")))

    def deliver(self) -> None:
        """Send what can be sent."""
        self._forget_deaf()
        while self.asked and not self.gone:
            message = next(self._ahead(), None)
            if message is None:
                return
            asked, self.next = self.asked[0], message.seq + 1
            self.delivered += 1
            self.last_stream = max(self.last_stream, message.seq)
            reply = f"$JS.ACK.{self._stream.name}.{self.name}.1.{message.seq}.{self.delivered}"
            reply += f".{int(message.time * NANO)}.{self.pending}"
            asked.left -= 1
            asked.last = self.used = TIME.now
            if not asked.left:
                self.asked.popleft()
            self._broker.send(Reply(asked.reply, message.data, message.headers, reply), message.subject)

    def _forget_deaf(self) -> None:
        """Drop requests whose sender does not listen any more, as far as the server knows."""
        while self.asked and not self._broker.hears(self.asked[0].reply):
            self.asked.popleft()

    def delete(self) -> None:
        """Delete it."""
        self.gone = True
        self._stream.consumers.pop(self.name, None)
        for each in tuple(self.asked):
            self._end(each, "409", "Consumer Deleted")

    def _end(self, asked: Asked, status: str, description: str) -> None:
        self.asked.remove(asked)
        headers = {"Status": status, "Description": description}
        if status == "408":
            headers |= {"Nats-Pending-Messages": str(asked.left), "Nats-Pending-Bytes": "0"}
        self._broker.send(Reply(asked.reply, b"", headers), asked.reply)

    def _tick_soon(self, seconds: float) -> None:
        when = TIME.now + seconds
        if when < self._timer:
            self._timer = when
            self._broker.at(when, self._tick)

    def _tick(self) -> None:
        if self.gone:
            return
        if self._timer > TIME.now:
            return
        self._timer, now = float("inf"), TIME.now
        self._forget_deaf()
        self.deliver()
        ended = False
        for each in tuple(self.asked):
            if each.expires <= now:
                self._end(each, "408", "Request Timeout")
                ended = True  # its sender has a moment to ask again
            elif each.heartbeat and each.last + each.heartbeat <= now + 1e-9:
                each.last = now
                headers = {"Status": "100", "Description": "Idle Heartbeat"}
                headers |= {"Nats-Last-Consumer": str(self.delivered), "Nats-Last-Stream": str(self.last_stream)}
                self._broker.send(Reply(each.reply, b"", headers), each.reply)
        threshold = self.config.get("inactive_threshold", 0) / NANO
        if threshold and not self.asked and not ended and self.used + threshold <= now:
            self.delete()
            return
        moments = [each.expires for each in self.asked]
        moments += [each.last + each.heartbeat for each in self.asked if each.heartbeat]
        moments += [max(self.used + threshold, now + 1.0)] if threshold else []
        if moments:
            self._tick_soon(max(1e-6, min(moments) - now))


def _nothing(*_: object) -> None: ...


class Broker:
    """The servers as one: what they have agreed on. ``send`` and ``hears`` belong to the network before them.

    ``clock`` gives the time of the server that leads a stream. ``step_down`` is called with the name of a stream that is to
    have another leader.
    """

    def __init__(
        self,
        send: Callable[[Reply, str], None],
        hears: Callable[[str], bool],
        clock: Callable[[str], float],
        at: Callable[[float, Callable[[], object]], object],
    ) -> None:
        self.streams: dict[str, Stream] = {}
        self.send, self.hears, self.clock, self.at = send, hears, clock, at
        self.step_down: Callable[[str], object] = _nothing

    def stream_of(self, subject: str) -> str | None:
        """Return the name of the stream that a request or a message is for; None if it is for none."""
        tokens = subject.split(".")
        if subject.startswith("$JS.API.") and len(tokens) > 4:
            at = 5 if tokens[2] == "STREAM" and tokens[3] in {"MSG", "LEADER"} else 4
            at = 5 if tokens[2:4] == ["CONSUMER", "MSG"] else at
            return tokens[at] if len(tokens) > at else None
        return next((name for name, each in self.streams.items() if each.takes(subject)), None)

    def handle(self, subject: str, headers: Headers, data: bytes, reply: str, *, seen_at: float | None = None) -> bool:
        """Do what a message asks for, and answer; return False if no server is interested in it.

        ``seen_at``: the time up to which the server that answers knows what happened; for reads that any server answers.
        """
        if subject.startswith("$JS.API."):
            return self._api(subject.split(".")[2:], data, reply, seen_at)
        name = self.stream_of(subject)
        if name is None:
            return False
        try:
            answer = self.streams[name].store(subject, headers, data)
        except ApiError as error:
            answer = {"error": error.document, "stream": name, "seq": 0}
        if reply:
            self.send(Reply(reply, json.dumps(answer).encode()), reply)
        return True

    def _api(self, tokens: list[str], data: bytes, reply: str, seen_at: float | None) -> bool:
        if tokens[:3] == ["CONSUMER", "MSG", "NEXT"]:
            stream = self.streams.get(tokens[3])
            consumer = None if stream is None else stream.consumers.get(tokens[4])
            if consumer is not None:
                consumer.ask(reply, json.loads(data or b"{}"))
            return consumer is not None
        if tokens[0] == "DIRECT":
            return self._direct(tokens, data, reply, seen_at)
        try:
            answer = self._answer(tokens, json.loads(data or b"{}"))
        except ApiError as error:
            answer = {"error": error.document}
        self.send(Reply(reply, json.dumps(answer).encode()), reply)
        return True

    def _direct(self, tokens: list[str], data: bytes, reply: str, seen_at: float | None) -> bool:
        stream = self.streams.get(tokens[2])
        if stream is None or not stream.config.get("allow_direct"):
            return False
        wanted = json.loads(data) if data else {"last_by_subj": ".".join(tokens[3:])}
        try:
            message = stream.find(wanted, seen_at)
        except ApiError:
            self.send(Reply(reply, b"", {"Status": "404", "Description": "Message Not Found"}), reply)
            return True
        headers = {
            **message.headers,
            "Nats-Stream": stream.name,
            "Nats-Subject": message.subject,
            "Nats-Sequence": str(message.seq),
            "Nats-Time-Stamp": _rfc3339(message.time),
        }
        self.send(Reply(reply, message.data, headers), reply)
        return True

    def _answer(self, tokens: list[str], asked: dict[str, Any]) -> dict[str, Any]:
        kind, what = tokens[0], tokens[1]
        if (kind, what) == ("STREAM", "CREATE"):
            return self._create(asked)
        name = tokens[3] if what in {"MSG", "LEADER"} else tokens[2]
        stream = self.streams.get(name)
        if stream is None:
            raise ApiError(404, 10059, "stream not found")
        if kind == "STREAM":
            return self._of_stream(stream, tokens, asked)
        if what == "CREATE":
            return self._create_consumer(stream, asked["config"])
        consumer = stream.consumers.get(tokens[3])
        if consumer is None:
            raise ApiError(404, 10014, "consumer not found")
        if what == "DELETE":
            consumer.delete()
            return {"success": True}
        return consumer.info()

    def _create(self, config: dict[str, Any]) -> dict[str, Any]:
        known = self.streams.get(config["name"])
        wanted = {**config, "duplicate_window": config.get("duplicate_window") or int(DEFAULT_WINDOW * NANO)}
        if known is not None:
            if {name: value for name, value in known.config.items() if name in wanted} != wanted:
                raise ApiError(400, 10058, "stream name already in use with a different configuration")
            return known.info({})
        for other in self.streams.values():
            if any(matches(each, mine) for each in other.config["subjects"] for mine in config["subjects"]):
                raise ApiError(400, 10065, "subjects overlap with an existing stream")
        self.streams[config["name"]] = stream = Stream(self, wanted)
        return stream.info({})

    def _of_stream(self, stream: Stream, tokens: list[str], asked: dict[str, Any]) -> dict[str, Any]:
        match tokens[1:3]:
            case ["INFO", _]:
                return {"total": 0, "offset": 0, "limit": 0} | stream.info(asked)
            case ["PURGE", _]:
                first, wanted = asked.get("seq") or float("inf"), asked.get("filter", ">")
                gone = [each for each in stream.messages.values() if each.seq < first and matches(wanted, each.subject)]
                for message in gone:
                    stream.remove(message)
                return {"success": True, "purged": len(gone)}
            case ["LEADER", "STEPDOWN"]:
                self.step_down(stream.name)
                return {"success": True}
            case ["MSG", "GET"]:
                message = stream.find(asked, None)
                lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
                document: dict[str, Any] = {"subject": message.subject, "seq": message.seq, "time": _rfc3339(message.time)}
                if lines:
                    document["hdrs"] = base64.b64encode(f"NATS/1.0\r\n{lines}\r\n".encode()).decode()
                if message.data:
                    document["data"] = base64.b64encode(message.data).decode()
                return {"message": document}
            case _:  # MSG DELETE
                if stream.config.get("deny_delete"):
                    raise ApiError(500, 10057, "message delete not permitted")
                message = stream.messages.get(asked["seq"])
                if message is None:
                    raise ApiError(400, 10043, f"no message found for sequence [{asked['seq']}]")
                stream.remove(message)
                return {"success": True}

    def _create_consumer(self, stream: Stream, config: dict[str, Any]) -> dict[str, Any]:
        known = stream.consumers.get(config["name"])
        if known is not None:  # the one that asks last decides what may be changed
            known.config = config
            return known.info()
        consumer = stream.consumers[config["name"]] = Consumer(self, stream, config)
        return consumer.info()

    # What happens to servers.

    def lose_unsynced(self, since: float) -> None:
        """Lose what was stored after a time, on all servers."""
        for stream in self.streams.values():
            for message in [each for each in stream.messages.values() if each.at > since]:
                stream.remove(message)
            stream.last_seq = max(stream.messages, default=0)
            stream.ids = {name: noted for name, noted in stream.ids.items() if noted[0] <= stream.last_seq}
