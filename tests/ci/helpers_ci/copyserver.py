"""A receiver of message copies in a process of its own, as users run one, with handlers that write down what they do.

Run by tests: ``python copyserver.py INBOX LOG LEASE ATTEMPTS``. The first line on standard output is the port; SIGTERM ends
it well. The text of a message says what its handler does: ``7`` takes some milliseconds, ``7 waits 0.5`` half a second, and
``7 dies 0.2`` ends the process after 0.2 s, ``7 cancels 0.2`` cancels all tasks, which ends the server, ``7 fails 0`` fails
in the first attempt.
"""

import asyncio
import os
import random
import socket
import sys

import anyio
import uvicorn

from rbim import Credentials
from rbim.callbacks import Backoff, Event, HandlerContext, Receiver, SqliteInbox

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"


def main(inbox: str, log: str, lease: str, attempts: str) -> None:
    receiver = Receiver(
        credentials=Credentials(app_id=APP_ID, app_token=TOKEN),
        sink=SqliteInbox(inbox, lease=float(lease), poll=0.02),
        mode="high-guarantee",
        backoff=Backoff(attempts=int(attempts), first=0.1),
    )
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(what: str, event: Event, handling: HandlerContext) -> None:
        number = (event.body or "").split()[0]
        os.write(written, f"{what} {handling.key} {event.to} {number} {os.getpid()}\n".encode())

    @receiver.fallback
    async def anything(event: Event, handling: HandlerContext) -> None:
        write("begun", event, handling)
        _, *does = (event.body or "").split()
        if does:
            await anyio.sleep(float(does[1]))
            if does[0] == "dies":
                os._exit(1)
            if does[0] == "cancels":
                for task in asyncio.all_tasks():
                    task.cancel()
                await anyio.sleep_forever()
            if does[0] == "fails" and handling.attempt == 1:
                raise RuntimeError("the first attempt")
        else:
            await anyio.sleep(random.random() * 0.004)  # so that a kill may come at any moment of it
        write("handled", event, handling)
        await anyio.sleep(random.random() * 0.004)

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(receiver.asgi, lifespan="on", log_level="error", access_log=False, ws="none")
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
