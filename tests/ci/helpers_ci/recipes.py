"""Applications of pages, each as the module ``recipe`` in a process of its own."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager

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
def serving(recipe, where, variables):
    """Serve an ASGI application whose only settings are ``variables``; give its port and its standard output.

    Warnings are errors. Everything that it prints must be read in the block, and at the end it must stop without complaint.
    """
    (where / "recipe.py").write_text(recipe, encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
    paths = os.pathsep.join([str(where), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", ASGI],
        cwd=where,
        env=clean | variables | {"PYTHONPATH": paths, "PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as server:
        try:
            yield int(server.stdout.readline()), server.stdout
        finally:
            server.send_signal(signal.SIGTERM)
            out, complaints = server.communicate(timeout=30)
    assert (out, complaints) == ("", "")
