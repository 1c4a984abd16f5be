"""Message copies through a proxy: the emulator sends each once, ``rbim callback serve`` receives, and the proxy reloads."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from attrs import frozen

from helpers.callback_process import MINE, serving
from helpers.proxies import PROXIES
from rbim.emulator import Emulator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from helpers.proxies import Proxy
    from rbim import Transport

__all__ = ["Copies", "copied"]

CONVERSATIONS = 12


@frozen(kw_only=True)
class Copies:
    """The copies of a run, by their ids: those that were acknowledged or not, those in the log, those that were handled."""

    sent: set[str]
    acknowledged: set[str]
    reasons: dict[str, str]
    sent_on: Counter[str]
    handled: Counter[str]

    @property
    def lost(self) -> set[str]:
        return self.sent - self.acknowledged


async def copied(  # the run, each part by keyword
    kind: str,
    folder: Path,
    disturb: Callable[[Proxy], object],
    *,
    times: int = 2,
    between: int = 60,
    transport: Callable[[], Transport] | None = None,
    certificate: Path | None = None,
    **settings: str,
) -> Copies:
    """Send copies through a proxy, and disturb it so often."""
    emulator = Emulator(credentials=MINE)
    with serving(folder / "events.db", "--print") as receiver:
        printed: list[str] = []
        reader = threading.Thread(target=lambda: _reads(receiver, printed), daemon=True)
        reader.start()
        proxy = PROXIES[kind](folder, receiver.port, certificate=certificate, **settings)
        with proxy.running():
            emulator.copy_to(f"{proxy.origin}/", transport=transport)
            async with emulator.copying(), anyio.create_task_group() as tasks:
                over = anyio.Event()

                async def says() -> None:
                    number = 0
                    while not over.is_set():
                        number += 1
                        emulator.say(f"u{number % CONVERSATIONS}", "u99", f"{number}")
                        await anyio.sleep(0.002)

                async def goes_on(copies: int) -> None:
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
    events: list[dict[str, Any]] = [json.loads(line) for line in printed]
    return Copies(
        sent={each.message_id for each in emulator.deliveries},
        acknowledged=acknowledged,
        reasons={each.message_id: each.reason for each in emulator.deliveries if not each.ok},
        sent_on=proxy.tries(),
        handled=Counter(str(event["msgId"]) for event in events),
    )


def _reads(receiver: Any, printed: list[str]) -> None:
    for line in receiver.popen.stdout:
        printed.append(line)  # noqa: PERF402  # others look at what has come
