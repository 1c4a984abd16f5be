"""The slots of a rate that several processes share: times at which one of them may send, from one row in PostgreSQL."""

from __future__ import annotations

import time
from math import inf
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from rbim._support.text import one_line
from rbim.postgres.errors import parameters_of, psycopg, server_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Tell = Callable[[list[float], str], object]

__all__ = ["SlotSource"]

# Theory of operation
#
# The row of a rate holds the time of its next slot, by the server's clock. `TAKE` reserves some slots and moves that time
# on by their number times `spacing`; slots that nobody reserved in time are lost, so that a quiet time earns nothing. The
# row is locked for one statement, which commits by itself: a process that dies or stops holds up nobody, and loses the few
# slots that it has reserved.
#
# A slot becomes a time of this process by the difference of the two clocks. Each answer says between which two times of
# this process the server's clock was read, and the difference is moved as little as that demands: slots keep their
# distances, however long an answer took, and a clock that is set does no harm for longer than one answer. The first answer
# of a connection, which takes longest, reserves nothing: the first slots would be as late as it was, among those of others.

CLOCK = "extract(epoch FROM clock_timestamp())::float8"

EXISTS = f"SELECT to_regclass('rbim_rates') IS NOT NULL, {CLOCK}"

CREATE = "CREATE TABLE IF NOT EXISTS rbim_rates (name text PRIMARY KEY, due float8 NOT NULL)"

TAKE = f"""
INSERT INTO rbim_rates AS rate (name, due) VALUES (%(name)s, {CLOCK} + %(taken)s)
ON CONFLICT (name) DO UPDATE SET due = greatest(least(rate.due, {CLOCK} + %(longest)s), {CLOCK}) + %(taken)s
RETURNING due, {CLOCK}"""  # noqa: S608  # constants

MAX_WAIT = 60.0
"""Seconds, besides those of a thousand slots, for which slots are reserved at most: more is a clock that was set back."""

CONNECT = "connect_timeout=5 application_name='rbim shared rate'"
ERROR = 200


class SlotSource:
    """Reserves slots in a thread with a connection of its own, so that no event loop waits for the database."""

    def __init__(self, address: str, *, spacing: float) -> None:
        """Raise InvalidRequest for an address that libpq does not understand. ``spacing``: seconds between two slots."""
        server, _, name = address.partition("#")
        try:
            self._parameters = parameters_of(server, "shared")
        finally:
            address = server = ""  # a traceback with local variables must not show a password in it
        self.name = name or "main"
        self.place = server_of(self._parameters)
        self._spacing = spacing
        self._asks = SimpleQueue[int]()
        self._offset = inf  # seconds from the server's clock to the monotonic clock of this process
        self._connection: Any = None  # psycopg's: its types take constant statements only

    def start(self, tell: Tell) -> None:
        """Begin to answer :meth:`ask`: ``tell`` is called in a thread, with slots (monotonic seconds) or an error."""
        Thread(target=self._run, args=(tell,), name="rbim-shared-rate", daemon=True).start()

    def ask(self, number: int) -> None:
        """Reserve that many slots. May be called from any thread."""
        self._asks.put(number)

    def close(self) -> None:
        """End the thread, without waiting for it: it may wait for the database."""
        self._asks.put(0)

    def _run(self, tell: Tell) -> None:
        while number := self._asks.get():
            for is_new in (self._connection is None, True):  # the server may have closed an old one
                slots, failure = list[float](), ""
                try:
                    slots = self._reserved(number)
                except psycopg.Error as error:
                    failure = one_line(f"{type(error).__name__}: {error}", ERROR)
                    self._disconnect()
                if is_new or not failure:
                    tell(slots, failure)
                    break
        self._disconnect()

    def _reserved(self, number: int) -> list[float]:
        if self._connection is None:
            connect: Any = psycopg.connect
            self._connection = connect(CONNECT, **self._parameters, autocommit=True)
            if not self._answer(EXISTS):
                self._connection.execute(CREATE)
        taken, longest = number * self._spacing, MAX_WAIT + 1000 * self._spacing
        due = self._answer(TAKE, {"name": self.name, "taken": taken, "longest": longest})
        return [due + self._offset - left * self._spacing for left in range(number, 0, -1)]

    def _answer(self, statement: str, values: Any = ()) -> Any:  # values of the placeholders; a column
        """Return the first column of a row; the second one is the server's time, and corrects the difference."""
        began = time.monotonic()
        found, server = self._connection.execute(statement, values).fetchone()
        self._offset = min(max(self._offset, began - server), time.monotonic() - server)
        return found

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
