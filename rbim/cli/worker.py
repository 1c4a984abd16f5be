"""``rbim worker``: send the requests of jobs that run on other machines. Heavy imports happen when it is called."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rbim.cli.errors import report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.jobs.flags import Count  # noqa: TC001  # cyclopts reads it
from rbim.errors import RbimError

if TYPE_CHECKING:
    import asyncio

    from rbim.client.client import AsyncClient
    from rbim.client.limits import Rate
    from rbim.config.config import Config

__all__ = ["worker"]

CONCURRENCY = 50

Several = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]


def worker(*, via: str, concurrency: Count = CONCURRENCY, rate: Several = (), takeover: float | None = None) -> int:
    """Send the requests that `rbim invite --via` and other jobs hand over, until Ctrl-C or SIGTERM.

    Workers have the credentials of the application; the machine with the job needs none. Any number of workers serve one
    queue: each request is sent by one of them, once. At the first signal a worker takes nothing more and ends what it has
    begun; the exit code is 0. The second signal ends it at once: then the outcome of its requests is unknown.

    Parameters
    ----------
    via
        The queue: NATS servers with JetStream, and a name, as nats://h1,h2,h3/bulk (tls:// for TLS). Set
        RBIM_NATS_CREDS_FILE to log in, RBIM_NATS_CA_FILE for certificates of your own.
    concurrency
        The maximum number of requests in flight in this worker.
    rate
        The maximum rate of requests of all workers together: 50/s, 600/min, 1000/h. Give every worker the same. Several
        limits apply together.
    takeover
        Seconds without a sign of life after which other workers take a worker for dead (default: 10).
    """
    import asyncio

    from rbim.cli.context import configuration, make_client
    from rbim.cli.lists import split_rates
    from rbim.cli.via import queue_of
    from rbim.client.limits import Limits, Rate

    try:
        config = configuration()
        queue = queue_of(via)
        rates = [Rate.parse(text) for text in split_rates(rate)]
        client = make_client(config, limits=Limits(concurrency=concurrency))
        asyncio.run(_serve(client, queue, config, concurrency=concurrency, rates=rates, takeover=takeover))
    except RbimError as error:
        return report_error(error, "rbim worker")
    except (KeyboardInterrupt, asyncio.CancelledError):
        return Exit.INTERRUPTED
    return Exit.DONE


async def _serve(  # noqa: PLR0913  # the flags of the command
    client: AsyncClient,
    queue: tuple[tuple[str, ...], str],
    config: Config,
    *,
    concurrency: int,
    rates: list[Rate],
    takeover: float | None,
) -> None:
    import asyncio

    from rbim.cli.telemetry import telemetry
    from rbim.cli.via import nats_settings
    from rbim.jetstream.worker import TAKEOVER, serve

    servers, name = queue
    stop, otel = asyncio.Event(), telemetry()
    _stop_on_signals(stop)
    sys.stderr.write(f"worker of {name} on {', '.join(servers)}; Ctrl-C stops it\n")
    sys.stderr.flush()
    async with client:
        if otel is not None:
            otel.observe_client(client)
        await serve(
            client,
            servers,
            name=name,
            concurrency=concurrency,
            rates=rates,
            takeover=TAKEOVER if takeover is None else takeover,
            settings=nats_settings(config),
            stop=stop,
            observers=() if otel is None else [otel.on_operation],
        )


def _stop_on_signals(stop: asyncio.Event) -> None:
    """Set ``stop`` at the first signal, and cancel the task at the second."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  # called by a task

    def stopped() -> None:
        if stop.is_set():
            task.cancel()
            return
        stop.set()
        sys.stderr.write("stopping: ends what it has begun; once more to end at once\n")
        sys.stderr.flush()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C ends it at once
            loop.add_signal_handler(number, stopped)
