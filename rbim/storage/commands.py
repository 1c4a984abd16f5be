"""Commands of a transaction: some run as one, and chains keep an order without gaps."""

from __future__ import annotations

import logging
from copy import copy
from itertools import groupby
from math import inf
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["Chain", "CommandFailed", "CommandFailure", "OneOfMany", "call_all", "run_apart", "run_together"]

logger = logging.getLogger("rbim")

T = TypeVar("T")
A = TypeVar("A")


@frozen
class CommandFailure:
    """The error of one command in a transaction; the other commands were committed."""

    error: Exception


class CommandFailed(Exception):
    """The transaction is repeated with a savepoint for each command: one failed, or several cannot run as one."""


class Chain:
    """Commands that depend on their order: once one of them has failed (``broken`` is its error), all later ones fail."""

    __slots__ = ("_failed_at", "_length", "broken")

    def __init__(self) -> None:
        self.broken: BaseException | None = None
        self._length = 0
        self._failed_at = inf

    def take_place(self) -> int:
        """Return the next place of the chain."""
        self._length += 1
        return self._length

    def fail(self, error: BaseException, at: float = 0) -> None:
        """Let all commands after the place ``at`` fail that have not run yet (default: all)."""
        if self.broken is None:
            self.broken = error
        self._failed_at = min(self._failed_at, at)

    def require(self, place: int) -> None:
        """Raise the error of an earlier command if the one at ``place`` must not run.

        A RuntimeError in place of a cancellation or an exit of the code that broke the chain: it must not end the writer.
        """
        if place <= self._failed_at or self.broken is None:
            return
        if isinstance(self.broken, Exception):
            raise copy(self.broken) from self.broken
        raise RuntimeError(f"an earlier one of the chain ended with {self.broken!r}") from self.broken


class OneOfMany(Generic[A, T]):
    """A command that costs less beside others of its kind: ``many`` gets the arguments of all, and returns their results.

    It takes the next place of a ``chain``, and fails if an earlier command of it has failed.
    """

    __slots__ = ("argument", "chain", "many", "place")

    def __init__(self, many: Callable[[Sequence[A]], Sequence[T]], argument: A, chain: Chain | None = None) -> None:
        self.many = many
        self.argument = argument
        self.chain = chain
        self.place = 0 if chain is None else chain.take_place()

    def __call__(self) -> T:
        """Run it alone."""
        if self.chain is not None:
            self.chain.require(self.place)
        try:
            (result,) = self.many((self.argument,))
        except Exception as error:
            self.fail(error, self.place)
            raise
        return result

    def fail(self, error: Exception, at: float = 0) -> None:
        """Let the commands of its chain after the place ``at`` fail (default: all)."""
        if self.chain is not None:
            self.chain.fail(error, at)


def call_all(listeners: Iterable[Callable[[], object]], place: object) -> None:
    """Call functions that want to hear of the news in a database; an error of one is logged with the ``place``."""
    for call in tuple(listeners):
        try:
            call()
        except Exception:  # the commands are committed all the same
            logger.exception("a listener of %s failed", place)


def run_together(commands: Iterable[Callable[[], Any]], harmless: tuple[type[Exception], ...]) -> list[Any]:
    """Run commands in a transaction, neighbours of one kind as one; return the result of each.

    An error in ``harmless``, which a command raises before it has written, is a CommandFailure. Raises CommandFailed for
    any other.
    """

    def many_of(command: Any) -> Callable[[Sequence[Any]], Sequence[Any]] | None:
        of_many = command.__class__ is OneOfMany and (command.chain is None or command.chain.broken is None)
        return command.many if of_many else None

    results: list[Any] = []
    for many, group in groupby(commands, many_of):
        try:
            if many is not None:
                results += many([each.argument for each in cast("Iterable[OneOfMany[Any, Any]]", group)])
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
