"""``rbim callback work``: handles an inbox's events with the handlers of an application, apart from the receiver."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from logging import CRITICAL
from threading import Thread
from time import monotonic
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, cast

from rbim.callbacks.observers import Observers
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.worker import Worker
from rbim.cli.callback.inboxes import inbox_of, shown_inbox
from rbim.cli.callback.log import receiver_log
from rbim.cli.callback.signals import stopped_by_signals, stopping_signals
from rbim.cli.context import telemetry
from rbim.cli.exit_codes import Exit
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from rbim.cli.callback.options import WorkOptions

__all__ = ["run"]

END_WITHIN = 7.0
"""Seconds after the drain in which a worker ends, unless a handler blocks its event loop."""


def run(handlers: str, options: WorkOptions) -> int:  # noqa: C901  # in order
    """Handle events until Ctrl-C or SIGTERM, and return the exit code. Call it in the main thread. Raises InvalidRequest.

    The event loop runs in a thread that ends with the process: a handler that hangs or blocks holds up no exit.
    """
    sys.path.insert(0, str(options.app_dir.absolute()))
    router: Router[Any] = _found(handlers, "HANDLERS", options.app_dir)
    if not isinstance(cast("object", router), Router):
        raise _unusable("HANDLERS", handlers, f"it is {_kind(router)}, not a rbim.callbacks.Router")
    around: Any = None if options.around is None else _found(options.around, "--around", options.app_dir)
    if options.around is not None and not callable(cast("object", around)):
        cause = f"it is {_kind(around)}, not a function that returns an async context manager"
        raise _unusable("--around", options.around, cause)

    @asynccontextmanager
    async def entered() -> AsyncGenerator[object]:
        async with AsyncExitStack() as stack:
            try:
                resource = await stack.enter_async_context(around())
            except Exception as error:
                raise _unusable("--around", str(options.around), f"it raises {_failure(error)}") from error
            yield resource

    inbox, otel = inbox_of(options.inbox), telemetry()
    worker = Worker(
        inbox,
        router,
        concurrency=options.concurrency,
        timeout=options.timeout,
        observers=Observers(() if otel is None else (otel,)),
        drain=options.drain,
        around=None if around is None else entered,
    )
    failures: list[BaseException] = []
    deadlines: list[float] = []

    async def work() -> None:
        async with worker:
            log.log_text(f"handling the events of {shown_inbox(options.inbox)} with {handlers}", CRITICAL)
            await worker.wait()

    def run_loop() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failures.append(error)

    def stop() -> None:
        deadlines.append(monotonic() + options.drain + END_WITHIN)
        worker.stop()

    thread = Thread(target=run_loop, name="rbim-worker", daemon=True)
    with receiver_log() as log, stopped_by_signals(stop, stopping_signals()):
        thread.start()
        while thread.is_alive() and not (deadlines and monotonic() > deadlines[0]):
            thread.join(0.1)
        if thread.is_alive():
            seconds = options.drain + END_WITHIN
            log.log_text(f"a handler has not ended after {seconds:g} s: it blocks, and is left running", CRITICAL)
        for error in failures:
            if isinstance(error, sqlite3.Error):
                log.log_text(f"{shown_inbox(options.inbox)}: {error}", CRITICAL)
                return Exit.USAGE
            raise error
    return Exit.DONE


def _found(target: str, argument: str, folder: Path) -> Any:  # an object of the application
    """Return the object that ``MODULE:NAME`` names. Raises InvalidRequest, which names the argument and the cause."""
    name, colon, path = target.partition(":")
    if not (colon and all(part.isidentifier() for part in (*name.split("."), *path.split(".")))):
        raise InvalidRequest(f"{argument}: use MODULE:NAME such as app.handlers:router, not {target!r}", field=argument)
    try:
        found: Any = import_module(name)
    except (Exception, SystemExit) as error:  # whatever the application's code raises
        if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
            cause = f"there is no module {error.name} below {folder.absolute()}: run it elsewhere, or use --app-dir"
        else:
            cause = f"{name} cannot be imported: {_failure(error)}; --debug shows the traceback"
        raise InvalidRequest(f"{argument}: {cause}", field=argument) from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = (key for key, value in vars(import_module(name)).items() if isinstance(value, Router))
            others = ", ".join(f"{name}:{key}" for key in names)
            cause = f"there is no {part}" + (f"; routers there: {others}" if others else "")
            raise _unusable(argument, target, cause) from None
        except Exception as error:  # any error of the application's code
            raise _unusable(argument, target, f"{part} raises {_failure(error)}") from error
    return found


def _failure(error: BaseException) -> str:
    last = extract_tb(error.__traceback__)[-1]
    where = "" if last.filename.startswith("<frozen") else f" ({last.filename}, line {last.lineno})"
    return f"{type(error).__name__}: {error}{where}"


def _unusable(argument: str, target: str, cause: str) -> InvalidRequest:
    return InvalidRequest(f"{argument}: {target} cannot be used: {cause}", field=argument)


def _kind(found: Any) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a value of {type(found).__name__}"
