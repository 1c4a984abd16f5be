"""A task of its own in which an async context manager is entered and left, whichever tasks ask for it."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, cast

import anyio

from rbim._support.event_loops import backend, spawn

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.observers import ReceiverLog

__all__ = ["HostTask"]


class HostTask:
    """Enters and leaves ``hosted`` in a task of its own, with the context variables of the task that enters.

    Task groups in ``hosted`` may be left in any order and by any task, and what ends them does not cancel the ``async with``
    block: it is logged at once and raised on leaving. If entering or leaving is cancelled, ``hosted`` is cancelled too.
    Raises what ``hosted`` raises; RuntimeError for a cancellation that came from elsewhere.
    """

    def __init__(self, hosted: AbstractAsyncContextManager[object], log: ReceiverLog) -> None:
        self._hosted = hosted
        self._log = log
        self._scope = anyio.CancelScope()
        self._begun, self._leaving, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._block: tuple[type[BaseException] | None, BaseException | None, TracebackType | None] = (None, None, None)
        self._error: BaseException | None = None
        self._task: object = None  # asyncio keeps no strong reference

    async def __aenter__(self) -> Self:
        self._task = spawn(self._run, name="rbim-receiver")
        await self._wait(self._begun)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._block = (kind, error, trace)
        self._leaving.set()
        await self._wait(self._ended)

    async def _wait(self, event: anyio.Event) -> None:
        try:
            await event.wait()
        except BaseException:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
            raise
        if self._error is not None:
            raise self._error

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._hosted.__aenter__()
                self._begun.set()
                try:
                    await self._leaving.wait()
                except BaseException:
                    await self._hosted.__aexit__(*sys.exc_info())
                    raise
                await self._hosted.__aexit__(*self._block)
        except BaseException as error:  # for the task that enters or leaves
            self._failed(error)
        finally:
            self._ended.set()
            self._begun.set()

    def _failed(self, error: BaseException) -> None:
        self._error = error
        if isinstance(error, (anyio.get_cancelled_exc_class(), GeneratorExit)):
            self._error = RuntimeError(f"the receiver was ended by {error!r}")
            self._error.__cause__ = error
        if self._begun.is_set() and not self._leaving.is_set():
            self._log.error("the receiver ended with an error: no more events are handled", exc_info=error)
            if _interrupted(error) and backend() == "trio":  # asyncio has ended its loop already
                signal.raise_signal(signal.SIGINT)  # trio raises it in its main task


def _interrupted(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)
