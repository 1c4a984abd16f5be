"""Applications of pages, each as the module ``recipe`` in a process of its own."""

import os
import re
import signal
import sys
from contextlib import contextmanager

from helpers.processes import CLEAN, running

# A program that serves the ASGI application ``app`` of a module called ``recipe``, and says at which port.
ASGI = """
import socket, uvicorn
from recipe import app
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")).run(sockets=[listener])
"""


@contextmanager
def serving(recipe, where, variables, program=ASGI, complaints=""):
    """Serve an application whose only settings are ``variables``; give its port and its standard output.

    Warnings are errors. Everything that it prints must be read in the block, and at the end it must stop with no
    ``complaints`` but those that match.
    """
    (where / "recipe.py").write_text(recipe, encoding="utf-8")
    paths = os.pathsep.join([str(where), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = CLEAN | variables | {"PYTHONPATH": paths, "PYTHONUTF8": "1"}
    with running(sys.executable, "-W", "error", "-c", program, cwd=where, env=environment) as server:
        try:
            yield int(server.stdout.readline()), server.stdout
        finally:
            server.send_signal(signal.SIGTERM)
            out, told = server.communicate(timeout=30)
    assert out == ""
    assert re.fullmatch(complaints, told), told
