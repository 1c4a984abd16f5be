"""A receiver with handlers, good and bad ones, over HTTP; a second process that handles events of the same inbox is killed.

The server and the receiver end and begin again in the same process, the token changes, and a program locks the file of the
inbox, so that deliveries go into the overflow file. The account: what was answered 200 is handled, or has had its attempts;
what was not authentic is never answered 200. The inbox forgets what was handled after half a minute, not after a week.
"""

import asyncio
import json
import random
import socket
import sqlite3
import time
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from itertools import count, repeat
from typing import Any
from unittest import mock

import uvicorn
from attrs import define, field

from rbim import Credentials
from rbim.callbacks import Backoff, Event, HandlerContext, Receiver, SqliteInbox, sign
from rbim.callbacks.inbox import store
from rbim.config import callback_credentials_from_env

from .driver import Account, after, started
from .raw import closed, exchange
from .verdict import LOG, Bound

BOUNDS = {"inbox": Bound("KiB", 512, per_thousand=20), "wal": LOG, "spool": Bound("KiB", 512), "spool's wal": LOG}
RETENTION = 20.0  # seconds; the inbox adds MARGIN, an hour otherwise
MARGIN = 10.0
LEASE, TIMEOUT, ATTEMPTS = 4.0, 1.0, 3
APP, TOKEN = "soak", "soak-token-"
HELD = 2.5  # seconds for which another program locks the inbox
DRAINED = 60.0  # seconds for the last events
ATTACKS = ["checksum", "body", "token", "header", "method", "encoding", "large", "quarantine"]
ATTACKS += ["half", "reset", "junk", "idle"]
TRIES = 40  # of a delivery that is not answered 200


def handlers(receiver, said):
    @receiver.fallback
    async def anything(event: Event, handling: HandlerContext[Any]) -> None:
        number, what = (event.body or " ").split(" ", 1)
        said(number, handling.attempt)
        if what == "poison" or (what == "fails once" and handling.attempt == 1):
            raise ValueError(f"cannot handle {number}")
        if what == "hangs":
            await asyncio.sleep(3 * TIMEOUT)
        elif what == "blocks":
            time.sleep(0.06)
        else:
            await asyncio.sleep(random.random() * 0.005)


def _made(probe, said):
    inbox = SqliteInbox(probe.plan.folder / "inbox.db", retention=RETENTION, dead_retention=RETENTION, lease=LEASE)
    receiver = Receiver(
        credentials=callback_credentials_from_env,
        sink=inbox,
        grace=5.0,
        policy=None,
        timeout=TIMEOUT,
        backoff=Backoff(attempts=ATTEMPTS, first=0.1, most=0.3, crashes=50),
        drain=2.0,
    )
    handlers(receiver, said)
    return receiver


async def subject(probe, port=""):
    """Serve at the port; without one, only handle events."""
    folder = probe.plan.folder
    if port:
        for name, file in (("inbox", "inbox.db"), ("spool", "inbox.db-spool")):
            probe.files |= {name: folder / file, "wal" if name == "inbox" else "spool's wal": folder / f"{file}-wal"}

    def handled(number, attempt):
        probe.counts["handlers called"] += 1
        probe.say(handled=[number, attempt])

    with mock.patch.object(store, "MARGIN", MARGIN):
        async with probe.running(), aclosing(probe.lives(repeat(None))) as lives:
            async for _ in lives:
                receiver = _made(probe, handled)
                async with receiver, _serving(receiver, probe, int(port)) if port else nullcontext():
                    with suppress(TimeoutError):
                        await asyncio.wait_for(probe.stopping.wait(), probe.plan.life)


class _Server(uvicorn.Server):
    """Leaves signals to the probe."""

    @asynccontextmanager
    async def running(self, listener):
        task = asyncio.create_task(self._serve([listener]))
        try:
            yield
        finally:
            self.should_exit = True
            await task


@asynccontextmanager
async def _serving(receiver, probe, port):
    async def app(scope, receive, send):
        probe.work()
        await receiver.asgi(scope, receive, send)

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
        options = {"lifespan": "off", "log_config": None, "access_log": False, "ws": "none"}
        server = _Server(uvicorn.Config(app, timeout_graceful_shutdown=2, **options))
        async with server.running(listener):
            yield


@define
class _Sender:
    """Sends deliveries as the platform does, and others as it does not; remembers what was acknowledged."""

    port: int
    account: Account
    token_file: object
    keys_file: object
    token: str = TOKEN
    numbers: Any = field(factory=count)
    acknowledged: dict[str, str] = field(factory=dict)
    handled: dict[str, int] = field(factory=dict)  # the latest attempt
    draw: random.Random = field(factory=lambda: random.Random(3))
    tasks: set[asyncio.Task[None]] = field(factory=set)
    stopping: bool = False

    async def rotate(self):
        """Change the token: first where the receiver finds it, and with it the old one, then on the platform."""
        token = f"{TOKEN}{next(self.numbers)}"
        keys = json.dumps(
            [{"app_id": APP, "app_token": self.token}]
        )  # for a receiver that begins before the platform changes
        for file, text in ((self.keys_file, keys), (self.token_file, token)):
            temporary = file.with_suffix(".new")
            temporary.write_text(text, encoding="utf-8")
            temporary.chmod(0o600)
            temporary.replace(file)
        await asyncio.sleep(0.2)
        self.token = token

    def signed(self, body):
        return dict(sign(body, credentials=Credentials(app_id=APP, app_token=self.token), now=datetime.now(UTC)))

    def spawn(self, what):
        task = asyncio.ensure_future(what)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def deliver(self):
        number = str(next(self.numbers))
        what = self.draw.choices(["is fine", "fails once", "poison", "blocks", "hangs"], weights=[93, 3, 2, 1.7, 0.3])[0]
        event = {"eventType": "1", "convType": "TEAM", "to": f"g{self.draw.randrange(40)}", "fromAccount": f"{APP}#1001"}
        body = json.dumps(event | {"msgType": "TEXT", "msgId": number, "body": f"{number} {what}"}).encode()
        for _ in range(TRIES):
            status = await exchange(self.port, self.signed(body), body)
            if status == 200:
                self.acknowledged[number] = what
                self.account.counts["deliveries acknowledged"] += 1
                if self.draw.random() < 0.03:
                    await exchange(self.port, self.signed(body), body)  # a resend
                return
            self.account.require(status != 401, f"{number} is authentic, and was answered 401")
            self.account.counts[f"deliveries tried again ({status or 'no answer'})"] += 1
            await asyncio.sleep(0.3)
        self.account.counts["deliveries given up"] += 1

    async def attack(self):
        body = json.dumps({"eventType": "1", "msgId": str(next(self.numbers)), "body": "0 forged"}).encode()
        kind = self.draw.choice(ATTACKS)
        headers, options = self.signed(body), {}
        if kind == "checksum":
            headers["CheckSum"] = "0" * 32
        elif kind == "body":
            body += b" "
        elif kind == "token":
            headers = dict(sign(body, credentials=Credentials(app_id=APP, app_token="other"), now=datetime.now(UTC)))
        elif kind == "header":
            del headers["CurTime"]
        elif kind == "method":
            options = {"method": "GET"}
        elif kind == "encoding":
            headers["Content-Encoding"] = "gzip"
        elif kind == "large":
            body = bytes(2 * 1024 * 1024)
            headers = self.signed(body)
        elif kind in {"half", "reset", "junk", "idle"}:
            await closed(self.port, kind, headers, body)
            return
        elif kind == "quarantine":
            body = b"[not an object %d]" % next(self.numbers)
            status = await exchange(self.port, self.signed(body), body)
            self.account.counts[f"to quarantine ({status or 'no answer'})"] += 1
            return
        status = await exchange(self.port, headers, body, **options)
        self.account.counts[f"not authentic ({status or 'no answer'})"] += 1
        self.account.require(status != 200, f"a delivery that is not authentic ({kind}) was answered 200")

    async def run(self, plan):
        while not self.stopping:
            self.spawn(self.deliver())
            if self.draw.random() < 0.2:
                self.spawn(self.attack())
            await asyncio.sleep(1 / plan.rate)

    def missing(self):
        attempts = {"poison": ATTEMPTS, "hangs": ATTEMPTS, "fails once": 2}
        return [each for each, what in self.acknowledged.items() if self.handled.get(each, 0) < attempts.get(what, 1)]


def _lock(file, account):
    connection = sqlite3.connect(file, isolation_level=None, timeout=5)
    try:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(HELD)
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:  # busy
        pass
    finally:
        connection.close()
    account.counts["times that the file was locked"] += 1


async def drive(plan, seconds, account):
    token_file = plan.folder / "token"
    keys_file = plan.folder / "keys.json"
    token_file.write_text(TOKEN, encoding="utf-8")
    keys_file.write_text(json.dumps([{"app_id": APP, "app_token": TOKEN}]), encoding="utf-8")
    environment = {"RBIM_APP_ID": APP, "RBIM_APP_TOKEN_FILE": str(token_file)}
    environment["RBIM_CALLBACK_CREDENTIALS_FILE"] = str(keys_file)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sender = _Sender(port, account, token_file, keys_file)

    def handled(event):
        number, attempt = event
        sender.handled[number] = max(attempt, sender.handled.get(number, 0))
        account.require(number != "0", "a forged event was handled")

    async def other_worker():
        while True:
            said = {"handled": handled}
            with suppress(asyncio.TimeoutError, json.JSONDecodeError):
                async with started("receiver", plan, said, environment) as worker:
                    await asyncio.sleep(plan.life * 0.7)
                    worker.process.kill()
                    await worker.process.wait()
                    account.counts["kills"] += 1

    async with started("receiver", plan, {"handled": handled}, environment, str(port)) as subject:
        next(sender.numbers)  # 0 is of no delivery
        beside = [
            asyncio.create_task(each)
            for each in (
                sender.run(plan),
                after(plan.life * 1.1, lambda: asyncio.to_thread(_lock, plan.folder / "inbox.db", account)),
                after(plan.life * 1.7, sender.rotate),
                other_worker(),
            )
        ]
        try:
            await subject.at_work(seconds)
            sender.stopping = True
            beside[-1].cancel()
            for _ in range(int(DRAINED / 0.1)):
                if not sender.tasks and not sender.missing():
                    break
                await asyncio.sleep(0.1)
        finally:
            for each in beside:
                each.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        await subject.stop()
    account.require(account.counts["deliveries acknowledged"], "no delivery was acknowledged")
    for each in sender.missing():
        attempts = sender.handled.get(each, 0)
        account.lose(f"{each} ({sender.acknowledged[each]}) was acknowledged, and has {attempts} attempts")
    account.counts["events handled"] = len(sender.handled)
    return subject
