"""Deliveries and routers for a worker."""

import json
from datetime import UTC, datetime

import anyio

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.worker.router import Router

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def text(said, group="g1", number=None):
    """A delivery of a message in a group; each is another one."""
    fields = {"convType": "TEAM", "msgType": "TEXT", "to": group, "fromAccount": "app#1001", "body": str(said)}
    body = json.dumps({"eventType": "1", "msgId": f"{group}-{said}-{number}", **fields}).encode()
    return delivery_of(body, app_id="app", received=NOON)


def router_of(handler):
    router = Router()
    router.fallback(handler)
    return router


async def moment():
    for _ in range(10):
        await anyio.sleep(0.002)


class Panic(BaseException):
    """What bindings to other languages raise."""
