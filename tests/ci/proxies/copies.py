"""Message copies through a proxy: the emulator sends each once, ``rbim callback serve`` receives, and the proxy reloads.

Or it repeats what was not answered.
"""

import http.client
import json
import signal
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack

import anyio
from anyio import to_thread
from attrs import evolve, field, frozen

from helpers.callback_process import MINE, counts, serving
from helpers_ci.proxies import PROXIES
from rbim.emulator import Emulator
from rbim.testing.conformance.server import RawServer, reply

from .scenarios import REPEATING

CONVERSATIONS = 12


@frozen(kw_only=True)
class Copies:
    """The copies of a run, by their ids: those that were acknowledged or not, those in the log, those that were handled.

    ``received``: of ``repeated``, the receivers that acknowledged each, in order. ``inbox``: what the inbox has in the end.
    """

    sent: set[str]
    acknowledged: set[str]
    reasons: dict[str, str]
    sent_on: Counter[str]
    handled: Counter[str]
    received: dict[str, list[int]] = field(factory=dict)
    inbox: object = None

    @property
    def lost(self):
        return self.sent - self.acknowledged


async def copied(kind, folder, disturb, *, times=2, between=60):
    emulator = Emulator(credentials=MINE)
    printed = []
    with serving(folder / "events.db", "--print") as receiver:
        reader = _reader(receiver, printed)
        proxy = PROXIES[kind](folder, receiver.port)
        with proxy.running():
            emulator.copy_to(f"{proxy.origin}/")
            async with emulator.copying(), anyio.create_task_group() as tasks:
                over = anyio.Event()

                async def says():
                    number = 0
                    while not over.is_set():
                        number += 1
                        emulator.say(f"u{number % CONVERSATIONS}", "u99", f"{number}")
                        await anyio.sleep(0.002)

                async def goes_on(copies):
                    wanted = len(emulator.deliveries) + copies
                    with anyio.fail_after(60):
                        while len(emulator.deliveries) < wanted:
                            await anyio.sleep(0.005)

                tasks.start_soon(says)
                for _ in range(times):
                    await goes_on(between)
                    await to_thread.run_sync(disturb, proxy)
                await goes_on(between)
                over.set()
            await to_thread.run_sync(proxy.stop)
            acknowledged = {each.message_id for each in emulator.deliveries if each.ok}
            with anyio.fail_after(60):
                while len(printed) < len(acknowledged):
                    await anyio.sleep(0.01)
            receiver.popen.send_signal(signal.SIGTERM)
            await to_thread.run_sync(reader.join)
    return _copies(emulator, proxy, printed)


class _Losing:
    """What stands before a receiver and passes on what comes; of each fourth copy it loses the first answer."""

    def __init__(self):
        self.received = defaultdict(list)
        self._lock = threading.Lock()

    def before(self, port):
        def passes_on(peer, received):
            receiver = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            try:
                receiver.request("POST", "/", received.body, dict(received.headers))
                answer = receiver.getresponse()
                body, status = answer.read(), answer.status
            finally:
                receiver.close()
            name = str(json.loads(received.body)["msgId"])
            with self._lock:
                first = name not in self.received
                if status == 200:
                    self.received[name].append(port)
                lost = first and len(self.received) % 4 == 0
            if lost:
                peer.reset()
            else:
                peer.send(reply(body, f"{status} {answer.reason}"))

        return passes_on


async def repeated(kind, folder, *, copies=40):
    """Send copies through a proxy that repeats what was not answered, to two receivers that share an inbox."""
    emulator, losing = Emulator(credentials=MINE), _Losing()
    printed = []
    inbox = folder / "events.db"
    with ExitStack() as stack:
        receivers = [stack.enter_context(serving(inbox, "--print")) for _ in range(2)]
        readers = [_reader(receiver, printed) for receiver in receivers]
        before = [stack.enter_context(RawServer(losing.before(receiver.port))) for receiver in receivers]
        proxy = PROXIES[kind](folder, *(server.port for server in before), **REPEATING[kind, True])
        with proxy.running():
            emulator.copy_to(f"{proxy.origin}/")
            async with emulator.copying():
                for number in range(copies):
                    emulator.say(f"u{number % CONVERSATIONS}", "u99", f"{number}")
                with anyio.fail_after(60):
                    while len(emulator.deliveries) < copies or len(printed) < len(losing.received):
                        await anyio.sleep(0.005)
            await to_thread.run_sync(proxy.stop)  # it writes its last lines
        for receiver, reader in zip(receivers, readers, strict=True):
            receiver.popen.send_signal(signal.SIGTERM)
            await to_thread.run_sync(reader.join)
    stored = await to_thread.run_sync(counts, inbox)
    return evolve(_copies(emulator, proxy, printed), received=dict(losing.received), inbox=stored)


def _copies(emulator, proxy, printed):
    events = [json.loads(line) for line in printed]
    return Copies(
        sent={each.message_id for each in emulator.deliveries},
        acknowledged={each.message_id for each in emulator.deliveries if each.ok},
        reasons={each.message_id: each.reason for each in emulator.deliveries if not each.ok},
        sent_on=proxy.tries(),
        handled=Counter(str(event["msgId"]) for event in events),
    )


def _reader(receiver, printed):
    """Begin to collect the lines of a receiver in a thread of its own, which ends with it."""

    def reads():
        for line in receiver.popen.stdout:
            printed.append(line)  # others look at what has come

    reader = threading.Thread(target=reads, daemon=True)
    reader.start()
    return reader
