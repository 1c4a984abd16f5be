"""Waiting, in tests, for something that somebody else does."""

import anyio
from anyio.lowlevel import checkpoint

__all__ = ["settle", "until"]

STEP = 0.05  # emulated seconds at a time: a disk that is slow must not cost a lease, which is 600 of them


async def until(true, clock=None, *, most=20, step=STEP):
    with anyio.fail_after(most):
        while not true():
            if clock is not None:
                await clock.advance(step)
            await anyio.sleep(0.001)


async def settle():
    """Let all tasks go as far as they can, but fewer turns than an emulated clock waits before it jumps."""
    for _ in range(20):
        await checkpoint()
