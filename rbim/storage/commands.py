"""Commands of a transaction: chains, which keep an order without gaps, and commands that run as one."""

from __future__ import annotations

import logging
from copy import copy
from itertools import groupby
from math import inf
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "Chain",
    "CommandFailed",
    "CommandFailure",
    "Linked",
    "Listeners",
    "NotTogether",
    "OneOfMany",
    "arguments_of",
    "many_of",
    "run_apart",
    "run_together",
]

logger = logging.getLogger("rbim")

T = TypeVar("T")
A = TypeVar("A")


@frozen
class CommandFailure:
    """The error of one command in a transaction; the other commands were committed."""

    error: Exception


class CommandFailed(Exception):
    """A command failed: the transaction is repeated with a savepoint for each command."""


class NotTogether(Exception):
    """Raised by a function for many commands that have to run one by one; what it has written is rolled back."""


class OneOfMany(Generic[A, T]):
    """A command that costs less beside others of its kind: ``many`` gets the arguments of all, and returns their results."""

    __slots__ = ("argument", "many")

    def __init__(self, many: Callable[[Sequence[A]], Sequence[T]], argument: A) -> None:
        self.many = many
        self.argument = argument

    def __call__(self) -> T:
        """Run it alone."""
        (result,) = self.many((self.argument,))
        return result


class Chain:
    """Commands that depend on their order: once one of them has failed (``broken`` is its error), all later ones fail."""

    __slots__ = ("_failed_at", "_length", "broken")

    def __init__(self) -> None:
        self.broken: BaseException | None = None
        self._length = 0
        self._failed_at = inf

    def fail(self, error: BaseException, at: float = 0) -> None:
        """Let all commands after the place ``at`` fail that have not run yet (default: all)."""
        if self.broken is None:
            self.broken = error
        self._failed_at = min(self._failed_at, at)

    def link(self, command: Callable[[], T]) -> Linked[T]:
        """Return a command at the next place of the chain; it runs unless an earlier one has failed."""
        self._length += 1
        return Linked(self, self._length, command)

    def require(self, place: int) -> None:
        """Raise the error of an earlier command if the one at ``place`` must not run.

        A RuntimeError in place of a cancellation or an exit of the code that broke the chain: it must not end the writer.
        """
        if place <= self._failed_at or self.broken is None:
            return
        if isinstance(self.broken, Exception):
            raise copy(self.broken) from self.broken
        raise RuntimeError(f"an earlier one of the chain ended with {self.broken!r}") from self.broken


class Linked(Generic[T]):
    """A command at a ``place`` of a chain."""

    __slots__ = ("chain", "command", "place")

    def __init__(self, chain: Chain, place: int, command: Callable[[], T]) -> None:
        self.chain = chain
        self.place = place
        self.command = command

    def __call__(self) -> T:
        """Run it, unless an earlier command of the chain has failed."""
        self.chain.require(self.place)
        try:
            return self.command()
        except Exception as error:
            self.chain.fail(error, self.place)
            raise


class Listeners:
    """Functions that are called, in any thread, when a database brings news. An error of one is logged with ``place``."""

    def __init__(self, place: object) -> None:
        self._place = place
        self._calls: tuple[Callable[[], object], ...] = ()
        self._lock = Lock()  # held only briefly: event loops wait for it

    def add(self, call: Callable[[], object]) -> None:
        """Add a function; once more, if it is there already."""
        with self._lock:
            self._calls = (*self._calls, call)

    def remove(self, call: Callable[[], object]) -> None:
        """Remove a function, however often it was added."""
        with self._lock:
            self._calls = tuple(each for each in self._calls if each is not call)

    def call(self) -> None:
        """Call all."""
        for call in self._calls:
            try:
                call()
            except Exception:  # the commands are committed all the same
                logger.exception("a listener of %s failed", self._place)


def many_of(command: Any) -> Callable[[Sequence[Any]], Sequence[Any]] | None:  # a command
    """Return the function that can run a command together with its neighbours; None if it must run alone."""
    if command.__class__ is Linked:
        if command.chain.broken is not None:
            return None
        command = command.command
    return command.many if command.__class__ is OneOfMany else None


def arguments_of(commands: Iterable[Any]) -> list[Any]:  # commands
    """Return the arguments of commands that :func:`many_of` lets run together."""
    found: list[Any] = [each.command if each.__class__ is Linked else each for each in commands]
    return [each.argument for each in found]


def run_together(commands: Iterable[Callable[[], Any]], harmless: tuple[type[Exception], ...]) -> list[Any]:
    """Run commands in a transaction, neighbours of one kind as one; return the result of each.

    An error in ``harmless``, which a command raises before it has written, is a CommandFailure. Raises CommandFailed for
    any other.
    """
    results: list[Any] = []
    for many, group in groupby(commands, many_of):
        try:
            if many is not None:
                results += many(arguments_of(group))
                continue
            for command in group:
                try:
                    results.append(command())
                except harmless as error:
                    results.append(CommandFailure(error))
        except Exception as error:
            raise CommandFailed from error
    return results


def run_apart(
    commands: Iterable[Callable[[], Any]], execute: Callable[[str], object], in_transaction: Callable[[], bool]
) -> list[Any]:
    """Run each command in a savepoint; return its result, or its CommandFailure."""
    results: list[Any] = []
    for command in commands:
        execute("SAVEPOINT command")
        try:
            results.append(command())
        except Exception as error:
            if not in_transaction():
                raise  # the whole transaction was rolled back
            execute("ROLLBACK TO SAVEPOINT command")
            results.append(CommandFailure(error))
        execute("RELEASE SAVEPOINT command")
    return results
