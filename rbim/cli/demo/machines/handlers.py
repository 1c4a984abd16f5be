"""The handlers of the demo: each event becomes a line of a file, with the process that handled it and when."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from rbim.callbacks.events.types import Event  # noqa: TC001  # the router reads it
from rbim.callbacks.worker.router import Router

if TYPE_CHECKING:
    from rbim.callbacks.worker.router import HandlerContext

__all__ = ["FILE", "record", "router"]

FILE = "RBIM_DEMO_HANDLED"
"""The variable with the path of the file."""

router: Router[None] = Router()


@router.fallback
async def record(_event: Event, context: HandlerContext[None]) -> None:
    """Append one line; one write, which the kernel does not mix with those of other processes."""
    line = json.dumps({"id": context.document.get("msgId"), "at": time.monotonic(), "process": os.getpid()})
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)
