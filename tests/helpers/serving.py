"""An ASGI app served over real HTTP on a free loopback port, in a thread of its own; and the emulator so."""

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import uvicorn
import uvicorn.lifespan.off  # a server's thread would import them later, perhaps when a test hides uvicorn
import uvicorn.protocols.http.auto

from rbim.emulator import Emulator
from rbim.emulator.server.server import serve


@contextmanager
def served(app, **options):
    """Give the base URL while the app is served; stop the server and join its thread afterwards.

    ``options`` are settings of uvicorn; with a certificate the URL begins with https.
    """
    # IPPROTO_TCP said aloud: asyncio sets TCP_NODELAY only then, and without it each answer waits for an acknowledgement
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        usual = {"lifespan": "off", "log_level": "warning", "access_log": False, "ws": "none"}
        config = uvicorn.Config(app, **usual | options)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            scheme = "https" if config.is_ssl else "http"
            yield "{}://{}:{}".format(scheme, *listener.getsockname())
        finally:
            server.should_exit = True
            thread.join(timeout=20)
    assert not thread.is_alive()


def variables_of(emulator, url):
    token = emulator.credentials.app_token.reveal()
    return {"RBIM_BASE_URL": url, "RBIM_APP_ID": emulator.credentials.app_id, "RBIM_APP_TOKEN": token}


@contextmanager
def platform_of_a_reader():
    emulator = Emulator()
    with served(emulator.asgi) as url:
        yield variables_of(emulator, url)


@contextmanager
def emulator_served(emulator, **options):
    """Serve an emulator as ``rbim emulator`` does, in a thread of its own; give its server."""
    begun = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serving():
        async with serve(emulator, **options) as server:
            begun.set_result(server)
            await stop.wait()

    def run():
        try:
            loop.run_until_complete(serving())
        except BaseException as error:
            if not begun.done():
                begun.set_exception(error)
            raise
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    server = begun.result(20)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=20)
    assert not thread.is_alive()
