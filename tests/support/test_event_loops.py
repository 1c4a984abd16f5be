"""The event loop of the caller, whatever other threads do."""

import asyncio
import sys
from types import ModuleType

from rbim._support.event_loops import backend


def test_a_trio_that_another_thread_is_importing_is_nobodys_loop(monkeypatch):
    async def found():
        return backend()

    monkeypatch.setitem(sys.modules, "trio", ModuleType("trio"))
    monkeypatch.delitem(sys.modules, "trio.lowlevel", raising=False)
    assert asyncio.run(found()) == "asyncio"
    monkeypatch.setitem(sys.modules, "trio.lowlevel", ModuleType("trio.lowlevel"))
    assert asyncio.run(found()) == "asyncio"
