"""Places of events for the conformance suite of inboxes: memory, a file, a database."""

import tempfile
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from secrets import token_hex

from helpers.inbox_conformance import InboxConformance
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.emulator.clock import EmulatedClock


class Place:
    """A place with a clock; ``inbox()`` makes what a process has of it."""

    def __init__(self, make):
        self.clock = EmulatedClock()
        self._make = make

    def inbox(self):
        return self._make(self.clock)

    async def pass_time(self, seconds):
        await self.clock.advance(seconds)

    async def kill(self, _backlog):
        """Nothing is given back on leaving: only the lease has to end."""
        await self.clock.advance(31)


def memory(wrapped=lambda inbox: inbox):
    """One sink: it has no processes that could die."""

    @asynccontextmanager
    async def place():
        yield Place(cache(lambda clock: wrapped(MemorySink(clock=clock))))

    return InboxConformance(place, durable=False)


def file(wrapped=lambda inbox: inbox):
    """A file, and for each process an inbox of its own."""

    @asynccontextmanager
    async def place():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "inbox.db")
            yield Place(lambda clock: wrapped(SqliteInbox(path, clock=clock, poll=0.01)))

    return InboxConformance(place)


def database(address):
    """A schema in a database, and for each process an inbox of its own."""
    from rbim.postgres import PostgresInbox

    @asynccontextmanager
    async def place():
        name = f"t{token_hex(6)}"
        yield Place(lambda clock: PostgresInbox(address, name=name, clock=clock))

    return InboxConformance(place)
