"""Commands that run as one, and chains: over a file, which tells what was committed and in which order."""

import asyncio
import sqlite3
from functools import partial

import pytest

from rbim.storage.group_commit import Chain, CommandFailed, OneOfMany
from rbim.storage.sqlite import CommandFailure, Database, FileKind

KIND = FileKind(
    name="a list",
    mark=b"rbzz",
    schema=("CREATE TABLE list (place INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE)",),
    version=1,
)


class Names:
    """Commands that add names, and what they were called with."""

    def __init__(self, database):
        self.database = database
        self.calls = []
        self.many = self.add_all
        self.refused = ""

    def add_all(self, names):
        self.calls.append(list(names))
        if self.refused in names and len(names) > 1:
            raise CommandFailed
        self.database.executemany("INSERT INTO list (name) VALUES (?)", [(name,) for name in names])
        return [name.upper() for name in names]

    def one(self, name, chain=None):
        return OneOfMany(self.many, name, chain)

    def alone(self, name):
        return partial(self.add_all, (name,))


@pytest.fixture
def names(path):
    database = Database(path, KIND, clock=lambda: 0.0)
    database.open()
    yield Names(database)
    database.close()


def stored(rows):
    return [name for (name,) in rows("SELECT name FROM list ORDER BY place")]


def test_neighbours_of_one_kind_run_as_one_and_keep_their_places(names, rows):
    other = Names(names.database)
    commands = [names.one("a"), names.one("b"), names.alone("c"), names.one("d"), other.one("e"), other.one("f")]
    assert names.database.commit(commands) == ["A", "B", ["C"], "D", "E", "F"]
    assert names.calls == [["a", "b"], ["c"], ["d"]]
    assert other.calls == [["e", "f"]]
    assert stored(rows) == list("abcdef")


def test_one_that_fails_makes_all_run_one_by_one_and_fails_alone(names, rows):
    names.database.commit([names.one("b")])
    a, b, c = names.database.commit([names.one(name) for name in "abc"])
    assert (a, c) == ("A", "C")
    assert isinstance(b, CommandFailure)
    assert isinstance(b.error, sqlite3.IntegrityError)
    assert names.calls == [["b"], ["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert stored(rows) == ["b", "a", "c"]


def test_those_that_cannot_run_together_run_one_by_one_in_their_order(names, rows):
    names.refused = "b"
    assert names.database.commit([names.one(name) for name in "abc"]) == ["A", "B", "C"]
    assert names.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert stored(rows) == ["a", "b", "c"]


def test_links_of_chains_run_as_one_until_their_chain_is_broken(names, rows):
    whole, broken = Chain(), Chain()
    broken.fail(ValueError("earlier"))
    commands = [names.one("a", whole), names.one("b", broken), names.one("c", whole)]
    a, b, c = names.database.commit(commands)
    assert (a, c) == ("A", "C")
    assert (type(b.error), str(b.error)) == (ValueError, "earlier")
    assert stored(rows) == ["a", "c"]
    names.calls.clear()
    assert names.database.commit([names.one("d", whole), names.one("e", whole)]) == ["D", "E"]
    assert names.calls == [["d", "e"]]


def test_after_a_link_that_fails_the_later_ones_of_its_chain_fail_and_no_earlier_one(names, rows):
    names.database.commit([names.one("b")])
    chain, other = Chain(), Chain()
    linked = [names.one("a", chain), names.one("b", chain), names.one("c", chain), names.one("d", other)]
    assert [each.place for each in linked] == [1, 2, 3, 1]
    a, b, c, d = names.database.commit(linked)
    assert (a, d) == ("A", "D")
    assert isinstance(b.error, sqlite3.IntegrityError)
    assert isinstance(c.error, sqlite3.IntegrityError)
    assert c.error is not b.error
    assert chain.broken is not None
    assert other.broken is None
    assert stored(rows) == ["b", "a", "d"]


@pytest.mark.parametrize("error", [asyncio.CancelledError("of a sink"), SystemExit(3)], ids=repr)
def test_a_chain_that_a_cancellation_or_an_exit_broke_fails_its_commands_and_nothing_else(names, rows, error):
    chain, other = Chain(), Chain()
    chain.fail(error)
    a, b = names.database.commit([names.one("a", chain), names.one("b", other)])
    assert isinstance(a, CommandFailure)
    assert type(a.error) is RuntimeError
    assert a.error.__cause__ is error
    assert b == "B"
    assert stored(rows) == ["b"]
