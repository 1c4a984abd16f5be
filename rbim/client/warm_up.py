"""What a first call would import and compile, in advance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.operations import catalogue

if TYPE_CHECKING:
    from rbim.client.shared import SharedState

__all__ = ["warm_up"]


async def warm_up(shared: SharedState) -> None:
    """Prepare each operation's conversions and the transport; other tasks run between the steps."""
    from anyio.lowlevel import checkpoint

    for entry in catalogue.entries():
        shared.codec.prepare(entry.operation)
        await checkpoint()
    prepare = getattr(shared.transport, "warm_up", None)
    if prepare is not None:
        await prepare(*dict.fromkeys(shared.codec.origins.values()))
