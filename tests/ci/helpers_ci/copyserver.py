"""A receiver of message copies in a process of its own, as users run one, with handlers that write down what they do.

Run by tests: ``python copyserver.py INBOX LOG LEASE ATTEMPTS [ROLE]``. The first line on standard output is the port;
SIGTERM ends it well. INBOX is a file, or the address of a database. With the ROLE "receives" it has no handlers; with
"handles" it is a worker, and the port is 0.

The text of a message says what its handler does: ``7`` takes some milliseconds, ``7 waits 0.5`` half a second, and
``7 dies 0.2`` ends the process after 0.2 s, ``7 cancels 0.2`` cancels all tasks, which ends the server; ``7 fails 1`` fails
in the first attempt, ``7 fails 9`` in the first nine.
"""

import asyncio
import logging
import os
import random
import signal
import socket
import sys
import time

import anyio
import uvicorn

from rbim import Credentials
from rbim.callbacks import Backoff, Event, HandlerContext, Receiver, Router, SqliteInbox, Worker

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"


def sink(inbox: str, lease: float):
    if not inbox.startswith("postgresql://"):
        return SqliteInbox(inbox, lease=lease, poll=0.02)
    from rbim.postgres import PostgresInbox

    return PostgresInbox(inbox, lease=lease)


async def work(worker: Worker) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    sys.stdout.write("0\n")
    sys.stdout.flush()
    async with worker:
        await worker.wait()


def main(inbox: str, log: str, lease: str, attempts: str, role: str = "") -> None:
    logging.basicConfig(level="WARNING", format="%(created).2f %(process)d %(message)s")
    place, backoff = sink(inbox, float(lease)), Backoff(attempts=int(attempts), first=0.1)
    credentials = Credentials(app_id=APP_ID, app_token=TOKEN)
    receiver = Receiver(credentials=credentials, sink=place, mode="high-guarantee", backoff=backoff)
    router = Router() if role else receiver.router
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(what: str, event: Event, handling: HandlerContext) -> None:
        number = (event.body or "").split()[0]
        os.write(written, f"{what} {handling.key} {event.to} {number} {os.getpid()} {time.time()}\n".encode())

    @router.fallback
    async def anything(event: Event, handling: HandlerContext) -> None:
        write("begun", event, handling)
        _, *does = (event.body or "").split()
        if does[:1] == ["fails"]:
            if handling.attempt <= int(does[1]):
                raise ValueError
        elif does:
            await anyio.sleep(float(does[1]))
            if does[0] == "dies":
                os._exit(1)
            if does[0] == "cancels":
                for task in asyncio.all_tasks():
                    task.cancel()
                await anyio.sleep_forever()
        else:
            await anyio.sleep(random.random() * 0.004)  # so that a kill may come at any moment of it
        write("handled", event, handling)
        await anyio.sleep(random.random() * 0.004)

    if role == "handles":
        anyio.run(work, Worker(place, router, backoff=backoff))
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(receiver.asgi, lifespan="on", log_level="error", access_log=False, ws="none")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
