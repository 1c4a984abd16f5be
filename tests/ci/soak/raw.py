"""HTTP by hand, over one connection each, well or badly."""

import asyncio
import socket
import struct
from contextlib import suppress

PATIENCE = 8.0  # seconds
IDLE = 3.0  # seconds for which an idle connection is left open


def _head(method, path, headers, length):
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


async def exchange(port, headers, body, *, method="POST", path="/"):
    writer = None
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_head(method, path, headers, len(body)) + body)
            line = await reader.readline()
            await reader.read()
            return int(line.split()[1])
    except (OSError, TimeoutError, IndexError, ValueError):
        return 0
    finally:
        if writer is not None:
            writer.close()


async def closed(port, kind, headers, body, *, path="/"):
    """Begin a request and do not end it: half of it, a reset in the middle of the body, junk, or nothing at all."""
    whole = _head("POST", path, headers, len(body)) + body
    part = {"half": whole[: len(whole) // 2], "reset": whole[:-5], "junk": bytes(range(256)) * 4, "idle": b""}[kind]
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(part)
            await asyncio.sleep(IDLE if kind == "idle" else 0.05)
            if kind == "reset":  # RST instead of FIN
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            writer.transport.abort() if kind == "reset" else writer.close()
