"""A receiver as an ASGI application: signed bodies, a sink, and a server of messages by hand."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio
from anyio.lowlevel import checkpoint

from helpers.credentials import CREDENTIALS
from helpers.receiving import body
from rbim.callbacks import Event, sign

LIMIT = 1024 * 1024
TINY = b"refused\n"
SOON = 0.05  # a budget of real time


def content(number="1", **fields):
    return body(msgId=str(number), **fields)


def signed(content, now=None):
    return sign(content, credentials=CREDENTIALS, now=now or datetime.now(UTC))


class Sink:
    """Keeps what it takes."""

    durable = False
    retention = 0.0

    def __init__(self):
        self.bodies = []
        self.entered = 0

    async def __aenter__(self):
        self.entered += 1
        return self

    async def __aexit__(self, *_):
        self.entered -= 1

    async def accept(self, delivery):
        await checkpoint()
        self.bodies.append(delivery.body)
        return True


class Peer:
    """What a server is to an application: gives the parts of a body, then hangs or leaves, and keeps what is sent."""

    def __init__(self, *parts, then="leave", whole=True):
        parts = parts or (b"",)
        more = [True] * (len(parts) - 1) + [not whole]
        self.messages = [{"type": "http.request", "body": p, "more_body": m} for p, m in zip(parts, more, strict=True)]
        self.then = then
        self.sent = []
        self.taken = 0

    async def receive(self):
        await checkpoint()
        if self.messages:
            message = self.messages.pop(0)
            self.taken += len(message["body"])
            return message
        if self.then == "hang":
            await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await checkpoint()
        self.sent.append(message)

    @property
    def answer(self):
        """Status, headers and body; None where nothing was sent."""
        if not self.sent:
            return None
        start, *parts = self.sent
        assert start["type"] == "http.response.start"
        assert [part["type"] for part in parts] == ["http.response.body"] * len(parts)
        names = [name for name, _ in start["headers"]]
        assert all(name == name.lower() for name in names)
        assert len(set(names)) == len(names)
        body = b"".join(part.get("body", b"") for part in parts)
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert headers["content-length"] == str(len(body))
        return start["status"], headers, body


def scope_of(method="POST", path="/", headers=()):
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"here"), *((name.lower().encode(), value.encode()) for name, value in pairs)],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


async def call(app, *parts, method="POST", path="/", headers=None, then="leave", whole=True, now=None):
    peer = Peer(*parts, then=then, whole=whole)
    headers = signed(b"".join(parts), now) if headers is None else headers
    await app(scope_of(method, path, headers), peer.receive, peer.send)
    return peer


class Server:
    """The lifespan half of a server."""

    def __init__(self, app):
        self.app = app
        self.told = []
        self.error = None
        self._to, self._events = anyio.create_memory_object_stream(2)
        self._answers = anyio.create_memory_object_stream(2)

    async def say(self, event):
        await self._to.send({"type": f"lifespan.{event}"})
        with anyio.fail_after(10):
            return await self._answers[1].receive()

    async def run(self):
        try:
            await self.app({"type": "lifespan", "state": {}}, self._events.receive, self._answers[0].send)
        except Exception as error:
            self.error = error

    @classmethod
    @asynccontextmanager
    async def of(cls, app):
        server = cls(app)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            yield server
            tasks.cancel_scope.cancel()
        for stream in (server._to, server._events, *server._answers):
            stream.close()


async def nothing(_: Event) -> None:
    pass
