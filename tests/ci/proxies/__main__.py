"""``python -m tests.ci.proxies``: run the long forms, and record them for the page on reliability. Some minutes."""

import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import anyio  # the path to the helpers comes first
from attrs import fields

from helpers.transports import TRANSPORTS
from helpers_ci.proof import about, write_proof
from helpers_ci.proxies import PROXIES, versions_of

from .calls import Tally
from .copies import copied
from .scenarios import idle, limited, reloads, repeats, restarts

ALL = [module for module in TRANSPORTS if module != "auto"]
COUNTED = [each.name for each in fields(Tally) if each.name != "wrong"]

CALLS = [
    ("20 reloads", reloads, {"times": 20, "between": 100}, ALL),
    ("20 reloads, TLS ends at the proxy", reloads, {"times": 20, "between": 100, "tls": True}, ALL),
    ("5 restarts", restarts, {"times": 5}, ALL),
    ("pauses of its keep-alive time, 1 s", idle, {"seconds": 1, "calls": 800}, ALL),
    ("pauses of its keep-alive time, 0.2 s", idle, {"seconds": 0.2, "calls": 3000}, ALL),
    ("rate limit, answered 429", limited, {"status": 429, "calls": 300}, ALL),
    ("rate limit, answered 503", limited, {"status": 503, "calls": 300}, ALL),
    ("platform resets after it has acted", repeats, {"again": False, "calls": 1000}, ALL),
    ("the same; the proxy repeats every request", repeats, {"again": True, "calls": 1000}, ALL),
]
COPIES = [("40 reloads", lambda proxy: proxy.reload(), 40), ("5 restarts", lambda proxy: (proxy.stop(), proxy.start()), 5)]


async def _calls(what, scenario, options, kind, modules):
    total = Counter()
    wrong = []
    for module in modules:
        with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/dev/shm")) as folder:
            tally = (await scenario(kind, Path(folder), module, **options)).tally
        total.update({name: getattr(tally, name) for name in COUNTED})
        wrong += tally.wrong
    return {"what": what, "proxy": kind, "transports": modules, **{name: total[name] for name in COUNTED}, "wrong": wrong}


async def _copies(what, disturb, times, kind):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/dev/shm")) as folder:
        run = await copied(kind, Path(folder), disturb, times=times)
    return {
        "what": what,
        "proxy": kind,
        "copies": len(run.sent),
        "acknowledged": len(run.acknowledged),
        "handled": len(run.handled),
        "lost": len(run.acknowledged - set(run.handled)),
        "twice": sum(times > 1 for times in run.handled.values()),
    }


def main():
    told = about(**versions_of(list(PROXIES)))
    rows = []
    for what, scenario, options, modules in CALLS:
        for kind in PROXIES:
            rows.append(anyio.run(_calls, what, scenario, options, kind, modules))
            sys.stdout.write(f"{rows[-1]}\n")
    for what, disturb, times in COPIES:
        for kind in PROXIES:
            rows.append(anyio.run(_copies, what, disturb, times, kind))
            sys.stdout.write(f"{rows[-1]}\n")
    broken = [row for row in rows if row["lost"] or row.get("wrong") or row.get("twice")]
    if not broken:
        write_proof("proxies", told, "runs", [{key: value for key, value in row.items() if key != "wrong"} for row in rows])
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
