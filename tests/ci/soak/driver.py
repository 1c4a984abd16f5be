"""The half that makes the faults: it starts the subject, reads its lines, and keeps the account of what must not be lost."""

import asyncio
import json
import os
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import attrs
from attrs import define, field

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0  # seconds for a subject to begin, and to end
LOOK = 0.2  # seconds
MOST = 100  # losses
LINE = 16 * 1024 * 1024


@define
class Account:
    """What was counted, and what was lost: each loss is a sentence."""

    counts: Counter[str] = field(factory=Counter)
    losses: list[str] = field(factory=list)

    def require(self, condition, loss):
        if not condition:
            self.lose(loss)

    def lose(self, loss):
        if len(self.losses) < MOST:
            self.losses.append(loss)


@define
class Subject:
    """The process under observation. ``said`` has the functions that take a line of it, by its key."""

    name: str
    process: asyncio.subprocess.Process
    said: object
    requests: int | None = None
    samples: list[dict[str, Any]] = field(factory=list)
    end: dict[str, int] | None = None

    async def read(self):
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            for key, value in json.loads(line).items():
                self.said[key](value)

    def ended(self, counts):
        self.end = counts

    async def at_work(self, seconds):
        """Wait for so many seconds from its first sample on, or until it has had all the requests of the plan."""
        async with asyncio.timeout(PATIENCE):
            while not self.samples and self.process.returncode is None:
                await asyncio.sleep(LOOK)
        end = monotonic() + seconds
        while monotonic() < end and self.process.returncode is None:
            had = self.samples[-1]["counts"].get("requests", 0) if self.samples else 0
            if self.requests is not None and had >= self.requests:
                return
            await asyncio.sleep(LOOK)

    async def stop(self):
        with suppress(ProcessLookupError):  # it has ended by itself: its exit code says how
            self.process.terminate()
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()


@asynccontextmanager
async def started(name, plan, said, environment, *words):
    """Run a subject while the block runs. It has ended when the block has, well or not."""
    told = json.dumps(
        attrs.asdict(plan, value_serializer=lambda _, __, value: str(value) if isinstance(value, Path) else value)
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RBIM_")}
    with (plan.folder / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.ci.soak", "subject", name, told, *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=kept | environment,
            cwd=ROOT,
            limit=LINE,
        )
    subject = Subject(name, process, said, plan.requests)
    said |= {"sample": subject.samples.append, "end": subject.ended}
    reading = asyncio.create_task(subject.read())
    try:
        yield subject
        await asyncio.wait_for(reading, PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        reading.cancel()


def platform_of(emulator, server):
    token = emulator.credentials.app_token.reveal()
    known = {"RBIM_APP_ID": emulator.credentials.app_id, "RBIM_APP_TOKEN": token, "RBIM_USER_NAME": "admin"}
    return known | {"RBIM_BASE_URL": server.url}


async def after(seconds, what):
    """Do something again and again, with a pause of so many seconds before each time."""
    while True:
        await asyncio.sleep(seconds)
        await what()
