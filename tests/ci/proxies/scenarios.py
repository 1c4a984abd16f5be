"""What is done to a proxy while calls go through it, and what comes of the calls."""

import json
import random
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import trustme
from anyio import to_thread
from attrs import frozen

from helpers.serving import served
from helpers.transports import class_of
from helpers_ci.proxies import PROXIES
from rbim.emulator import Emulator
from rbim.testing.conformance.server import RawServer, reply

from .calls import Calls, Tally, load

LIMIT = 50  # requests a second
LIMITING = {
    ("nginx", 429): {
        "http": f"limit_req_zone $binary_remote_addr zone=z:1m rate={LIMIT}r/s;",
        "location": "limit_req zone=z burst=5 nodelay; limit_req_status 429;",
    },
    ("nginx", 503): {
        "http": f"limit_req_zone $binary_remote_addr zone=z:1m rate={LIMIT}r/s;",
        "location": "limit_req zone=z burst=5 nodelay;",  # 503 is its default
    },
    **{
        ("haproxy", status): {
            "frontend": "stick-table type ip size 10 expire 10s store http_req_rate(1s)\n"
            "http-request track-sc0 src\n"
            f"http-request deny deny_status {status} if {{ sc_http_req_rate(0) gt {LIMIT} }}"
        }
        for status in (429, 503)
    },
}
REPEATING = {
    ("nginx", False): {},
    ("nginx", True): {"location": "proxy_next_upstream error timeout non_idempotent;"},
    ("haproxy", False): {"defaults": "option redispatch"},
    ("haproxy", True): {"defaults": "option redispatch\nretry-on all-retryable-errors"},
}
KEPT = {
    "nginx": lambda time: {"http": f"keepalive_timeout {time};"},
    "haproxy": lambda time: {"frontend": f"timeout http-keep-alive {time}"},
}


@frozen(kw_only=True)
class Run:
    """A run: the tally of its calls, the calls, how often the platform has seen each, and how often the proxy sent it on."""

    tally: Tally
    calls: Calls
    seen: Counter[str]
    sent_on: Counter[str]


@contextmanager
def _in_front(kind, folder, *, certificate=None, **settings):
    emulator = Emulator()
    with served(emulator.asgi) as url:
        port = urlsplit(url).port
        assert port is not None
        with PROXIES[kind](folder, port, certificate=certificate, **settings).running() as proxy:
            yield proxy, emulator


async def _run(proxy, emulator, module, meanwhile, **options):
    transport = class_of(module)(trust_env=False, **options.pop("transport", {}))
    calls = await load(proxy.origin, emulator.credentials, transport, meanwhile, **options)
    seen = Counter(str(getattr(each.operation, "name", "")) for each in emulator.requests if each.operation is not None)
    await to_thread.run_sync(proxy.stop)  # it writes its last lines
    return Run(tally=calls.tally(seen), calls=calls, seen=seen, sent_on=proxy.tries())


def _trust(folder):
    """Return the file with a certificate and its key for a proxy, and the option with which a transport trusts it."""
    authority = trustme.CA()
    certificate, trusted = folder / "proxy.pem", folder / "ca.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(certificate))
    authority.cert_pem.write_to_path(str(trusted))
    return certificate, {"verify": str(trusted)}


async def reloads(kind, folder, module, *, times=2, between=40, tls=False):
    """Reload the proxy under load; with ``tls``, TLS ends there."""

    async def meanwhile(goes_on):
        for _ in range(times):
            await goes_on(between)
            await to_thread.run_sync(proxy.reload)
        await goes_on(between)

    certificate, trust = _trust(folder) if tls else (None, {})
    with _in_front(kind, folder, certificate=certificate) as (proxy, emulator):
        return await _run(proxy, emulator, module, meanwhile, transport=trust)


async def restarts(kind, folder, module, *, times=1, between=40):
    """Stop the proxy under load, with what is in flight, and start it again after a moment in which it refuses."""

    async def meanwhile(goes_on):
        for _ in range(times):
            await goes_on(between)
            await to_thread.run_sync(proxy.stop)
            await goes_on(10)  # refused, and sent again
            await to_thread.run_sync(proxy.start)
        await goes_on(between)

    with _in_front(kind, folder) as (proxy, emulator):
        return await _run(proxy, emulator, module, meanwhile)


async def idle(kind, folder, module, *, seconds=0.2, calls=200, workers=40):
    """Pause between calls for as long as the proxy keeps an idle connection: it closes while requests are written."""

    async def meanwhile(goes_on):
        await goes_on(calls)

    with _in_front(kind, folder, **KEPT[kind](f"{seconds * 1000:.0f}ms")) as (proxy, emulator):
        pause = partial(random.uniform, 0.97 * seconds, 1.01 * seconds)
        return await _run(proxy, emulator, module, meanwhile, workers=workers, pause=pause)


async def limited(kind, folder, module, *, status, calls=150):
    """Call faster than the proxy lets pass; it answers this status in place of the platform."""

    async def meanwhile(goes_on):
        await goes_on(calls)

    with _in_front(kind, folder, **LIMITING[kind, status]) as (proxy, emulator):
        return await _run(proxy, emulator, module, meanwhile, attempts=2)


class _Dying:
    """A platform that acts and then resets the connection, for each fourth name the first time that it sees it."""

    def __init__(self):
        self.seen = Counter()
        self._lock = threading.Lock()

    def __call__(self, peer, received):
        name = json.loads(received.body)["name"]
        with self._lock:
            self.seen[name] += 1
            first = self.seen[name] == 1
        if first and name.rpartition("-")[2].isdigit() and int(name.rpartition("-")[2]) % 4 == 0:
            peer.reset()
        else:
            peer.send(reply(json.dumps({"statusCode": "000000", "groupId": "g1", "groups": []}).encode()))


async def repeats(kind, folder, module, *, again, calls=150):
    """Let the platform reset connections after it has acted. ``again``: the proxy is set to send every request again."""

    async def meanwhile(goes_on):
        await goes_on(calls)

    platform, credentials = _Dying(), Emulator().credentials
    with (
        RawServer(platform) as server,
        PROXIES[kind](folder, server.port, server.port, **REPEATING[kind, again]).running() as proxy,
    ):
        made = await load(proxy.origin, credentials, class_of(module)(trust_env=False), meanwhile)
        await to_thread.run_sync(proxy.stop)
        return Run(tally=made.tally(platform.seen), calls=made, seen=platform.seen, sent_on=proxy.tries())
