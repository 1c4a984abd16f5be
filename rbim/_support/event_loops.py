"""Call into an event loop from any thread, on asyncio and trio."""

from __future__ import annotations

import sys
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from trio.lowlevel import TrioToken

__all__ = ["backend", "current_loop", "later", "spawn", "waker"]


def backend() -> Literal["asyncio", "trio"]:
    """Return the caller's async backend, as the ``backend`` argument of ``anyio.run``."""
    return "asyncio" if _trio_token() is None else "trio"


def current_loop() -> object:
    """Return an object that stands for the caller's event loop: asyncio's loop, or trio's token.

    Raises RuntimeError without a running event loop.
    """
    token = _trio_token()
    if token is not None:
        return token
    from asyncio import get_running_loop

    return get_running_loop()


def waker() -> Callable[[Callable[[], object]], None]:
    """Return a function that schedules a callback in the caller's event loop, from any thread.

    After that loop has ended it does nothing.
    """
    token = _trio_token()
    if token is not None:
        from trio import RunFinishedError

        return _quiet(token.run_sync_soon, RunFinishedError)
    from asyncio import get_running_loop

    return _quiet(get_running_loop().call_soon_threadsafe, RuntimeError)


def spawn(run: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> object:
    """Run a function in a task that no block waits for, with the caller's context variables.

    Returns the task: keep it until it has ended. ``run`` must raise nothing.
    """
    if _trio_token() is not None:
        from trio.lowlevel import spawn_system_task

        return spawn_system_task(run, context=copy_context(), name=name)
    from asyncio import get_running_loop

    return get_running_loop().create_task(run(), name=name)


def later(seconds: float, call: Callable[[], object]) -> Callable[[], object]:
    """Call a function in the caller's event loop after some seconds, with the caller's context variables.

    Returns a function that cancels it. If the loop ends before, the function is not called.
    """
    if _trio_token() is not None:
        from trio import CancelScope, sleep
        from trio.lowlevel import spawn_system_task

        scope = CancelScope()

        async def wait() -> None:
            with scope:
                await sleep(seconds)
                call()

        spawn_system_task(wait, context=copy_context(), name="rbim-later")
        return scope.cancel
    from asyncio import get_running_loop

    return get_running_loop().call_later(seconds, call).cancel


def _trio_token() -> TrioToken | None:
    # Not imported, so nothing runs on it. Another thread may be importing it now: then nothing in this one does.
    current_trio_token = getattr(sys.modules.get("trio.lowlevel"), "current_trio_token", None)
    try:
        return None if current_trio_token is None else current_trio_token()
    except RuntimeError:
        return None


def _quiet(
    call_soon: Callable[[Callable[[], object]], object], ended: type[Exception]
) -> Callable[[Callable[[], object]], None]:
    def schedule(callback: Callable[[], object]) -> None:
        with suppress(ended):
            call_soon(callback)

    return schedule
