"""A client of plain sockets, which sees what a server does to a connection; it shares no code with rbim."""

import asyncio
import hashlib
import json
import socket
from base64 import b64encode
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

JSON = "Content-Type: application/json"  # the header that commands of the control interface need
PATIENCE = 10.0  # seconds after which whatever waits in here gives up


@dataclass(frozen=True)
class Answer:
    """One answer as it came; ``body`` may be shorter than its Content-Length."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def length(self):
        return int(self.headers["content-length"])

    @property
    def document(self):
        return json.loads(self.body)


class Raw:
    """One connection, in the running asyncio loop."""

    def __init__(self, sock):
        self.sock = sock
        self._buffer = b""

    async def send(self, data):
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def recv(self):
        async with asyncio.timeout(PATIENCE):
            return await asyncio.get_running_loop().sock_recv(self.sock, 65536)

    @property
    def silent(self):
        """Whether the peer has said nothing by now, and not hung up."""
        try:
            self._buffer += self.sock.recv(65536)
        except BlockingIOError:
            return not self._buffer
        return False

    async def head(self):
        while b"\r\n\r\n" not in self._buffer:
            part = await self.recv()
            if not part:
                reason = f"the connection ended after {self._buffer!r}"
                raise EOFError(reason)
            self._buffer += part
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        return int(first.split()[1]), {name.lower(): text for name, text in (line.split(": ", 1) for line in lines)}

    async def body(self, length):
        while len(self._buffer) < length and (part := await self.recv()):
            self._buffer += part
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return body

    async def answer(self):
        status, headers = await self.head()
        return Answer(status, headers, await self.body(int(headers.get("content-length", 0))))

    async def ask(self, data):
        await self.send(data)
        return await self.answer()


@asynccontextmanager
async def connected(server):
    """Give a connection to what has a ``host`` and a ``port``."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(0)
        await asyncio.get_running_loop().sock_connect(sock, (server.host, server.port))
        yield Raw(sock)


async def ask(server, data):
    async with connected(server) as raw:
        return await raw.ask(data)


def http(method, path, body=b"", *headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def signed(emulator, operation, **fields):
    app_id, token = emulator.credentials.app_id, emulator.credentials.app_token.reveal()
    stamp = (emulator.clock.now() + timedelta(hours=8)).strftime("%Y%m%d%H%M%S")
    sig = hashlib.md5(f"{app_id}{token}{stamp}".encode()).hexdigest().upper()
    authorization = b64encode(f"{app_id}:{stamp}".encode()).decode()
    path = f"/2013-12-26/Application/{app_id}/IM/Group/{operation}?sig={sig}"
    body = json.dumps(fields, ensure_ascii=False).encode()
    return http("POST", path, body, "Content-Type: application/json;charset=utf-8", f"Authorization: {authorization}")


def create(emulator):
    return signed(emulator, "CreateGroup", name="产品公告", type="1")


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def arrived(emulator, count=1):
    while len(emulator.requests) < count:
        await asyncio.sleep(0)
    await turns(5)
