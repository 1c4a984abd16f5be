"""Into an event loop from any thread, on asyncio and trio."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.lowlevel import TrioToken

__all__ = ["backend", "waker"]


def backend() -> Literal["asyncio", "trio"]:
    """Return the name of what runs the event loop of the caller, as ``anyio.run`` takes it."""
    return "asyncio" if _trio_token() is None else "trio"


def waker() -> Callable[[Callable[[], object]], None]:
    """Return what calls a function soon in the event loop of the caller, from any thread.

    Does nothing once that loop has ended.
    """
    token = _trio_token()
    if token is not None:
        from trio import RunFinishedError

        return _quiet(token.run_sync_soon, RunFinishedError)
    from asyncio import get_running_loop

    return _quiet(get_running_loop().call_soon_threadsafe, RuntimeError)


def _trio_token() -> TrioToken | None:
    if "trio" not in sys.modules:  # then nothing runs on it
        return None
    from trio.lowlevel import current_trio_token

    try:
        return current_trio_token()
    except RuntimeError:
        return None


def _quiet(
    call_soon: Callable[[Callable[[], object]], object], ended: type[Exception]
) -> Callable[[Callable[[], object]], None]:
    def wake(do: Callable[[], object]) -> None:
        with suppress(ended):
            call_soon(do)

    return wake
