"""The transports of rbim, what each of them can, and the event loops that it runs on."""

import sys

ASYNCIO, UVLOOP, TRIO = "asyncio", ("asyncio", {"use_uvloop": True}), "trio"
LOOPS = [ASYNCIO, TRIO] if sys.platform == "win32" else [ASYNCIO, UVLOOP, TRIO]
# Module and class of each transport, its features, and the event loops that it runs on: the first every day, the others in
# the long form. httpx and httpx2 share their code, and begin with one each.
UNIX = {"unix": sys.platform != "win32"}
TRANSPORTS = {
    "auto": ("AutoTransport", {"proxy": True, **UNIX}, [TRIO, ASYNCIO, UVLOOP]),
    "httpx": ("HttpxTransport", {"proxy": True, **UNIX}, [ASYNCIO, TRIO, UVLOOP]),
    "httpx2": ("Httpx2Transport", {"proxy": True, **UNIX}, [TRIO, ASYNCIO, UVLOOP]),
    "aiohttp": ("AiohttpTransport", {"proxy": True, "lifo": False}, [ASYNCIO]),
    "asyncio": ("AsyncioTransport", {"proxy": True, **UNIX}, [ASYNCIO, UVLOOP]),
}
