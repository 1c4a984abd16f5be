"""The emulator of the demo, through its control interface."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    from rbim.cli.demo.machines.local_http import LocalHttp
    from rbim.cli.demo.rows import DemoRows

__all__ = ["LATENCY", "OWNER", "Platform"]

OWNER = "rbim-demo-owner"
LATENCY = 0.4  # seconds that the platform takes for a request, so that each death finds some on their way
CREATOR = "0"  # the role of the owner in a state document
CONTROL = "/_emulator/"


@define(eq=False)
class Platform:
    """The emulator at a URL. Times of its log become those of ``time.monotonic`` by ``later``, the seconds between both."""

    http: LocalHttp
    url: str
    later: float = 0.0

    async def begin(self, rows: DemoRows, copies: str) -> None:
        """Give it the groups, and the address to which it copies messages."""
        created = datetime.now(UTC).isoformat()
        groups: list[dict[str, Any]] = []
        for number, group in enumerate(rows.groups.values(), 1):
            group.group_id = f"g8{number:013d}"
            groups.append(
                {
                    "group_id": group.group_id,
                    "name": group.name,
                    "type": group.type.value,
                    "permission": "0",
                    "target": "1",
                    "declared": "",
                    "group_domain": None,
                    "created": created,
                    "members": {OWNER: CREATOR},
                }
            )
        strangers = sorted(rows.never_logged_in)
        await self._send("PUT", "state", {"version": 1, "groups": groups, "never_logged_in": strangers})
        await self._send("PUT", "faults", [{"effect": {"kind": "latency", "seconds": LATENCY}}])
        await self._send("PUT", "copy", {"url": copies, "mode": "high-guarantee"})
        before = time.monotonic()
        clock = await self._send("GET", "clock")
        self.later = (before + time.monotonic()) / 2 - clock["monotonic"]

    async def talk(self, per_second: float, conversations: int) -> int:
        """Send messages in turn in so many conversations, until cancelled."""
        number, began = 0, time.monotonic()
        while True:
            user = number % conversations
            message = {"sender": f"talker-{user:03}", "to": f"listener-{user:03}", "text": f"消息 {number}"}
            await self._send("POST", "say", message)
            number += 1
            await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))

    async def state(self) -> dict[str, Any]:
        """Return its state document."""
        document: dict[str, Any] = await self._send("GET", "state")
        return document

    async def requests(self) -> list[dict[str, Any]]:
        """Return all requests, with the times of this process."""
        return [each | {"at": each["at"] + self.later} for each in await self._send("GET", "requests")]

    async def deliveries(self) -> list[dict[str, Any]]:
        """Return all attempts to deliver a copy, with the times of this process."""
        return [each | {"at": each["at"] + self.later} for each in await self._send("GET", "deliveries")]

    async def _send(self, method: str, path: str, document: Any = None) -> Any:
        return await self.http.send(method, self.url, f"{CONTROL}{path}", document)
