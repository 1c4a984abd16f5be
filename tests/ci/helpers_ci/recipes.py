"""A program that serves the ASGI application ``app`` of a module called ``recipe``, and says at which port."""

ASGI = """
import socket, uvicorn
from recipe import app
with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none")).run(sockets=[listener])
"""
