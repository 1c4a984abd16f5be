"""The inbox in a PostgreSQL database: a tenth of the conformance suite, what people read in errors, names and addresses."""

import pytest
from attrs import evolve

from helpers import inbox_places
from helpers.inbox_conformance import CASES, failures
from helpers.postgres import needs_postgres, postgres
from helpers.tables import each_row
from rbim.cli.callback.inboxes import inbox_of
from rbim.errors import InvalidRequest
from rbim.postgres import PostgresInbox
from rbim.postgres.database import _translated
from rbim.postgres.errors import explained, psycopg, without_password

ADDRESS = "postgresql://me:the-very-secret@db.example:5433/app?sslmode=require"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@needs_postgres
async def test_conformance():
    with postgres() as address:
        found = await failures(inbox_places.database(address), CASES[::10], at_once=4)
    assert [str(failure) for failure in found.values()] == []


@each_row(
    "statement, expected",
    [
        ("SELECT ?, ? FROM event", "SELECT %s, %s FROM event"),
        ("x > :after AND x LIKE '%,' || :of", "x > %(after)s AND x LIKE '%%,' || %(of)s"),
        ("unnest(:names::text[])", "unnest(%(names)s::text[])"),
    ],
)
def test_placeholders(statement, expected):
    assert _translated(statement) == expected


@each_row(
    "changes",
    [
        {"address": "mysql://me@db/app"},
        {"address": "postgresql://me:the-very-secret%@db/app"},
        {"address": "postgresql://me:0/the-very-secret@db/app"},
        {"address": "postgresql://me:0#the-very-secret@db/app"},
        {"address": None},
        {"name": "Copies"},
        {"name": "pg_copies"},
        {"name": "a; DROP TABLE event"},
        {"name": "x" * 51},
        {"lease": 0},
    ],
)
def test_what_is_refused_at_once(changes):
    with pytest.raises(InvalidRequest) as caught:
        PostgresInbox(**{"address": ADDRESS, **changes})
    assert caught.value.field in changes
    assert "the-very-secret" not in str(caught.value)


def test_no_text_has_the_password():
    assert "the-very-secret" not in repr(PostgresInbox(ADDRESS))
    assert without_password(f"{ADDRESS}#copies") == "postgresql://me@db.example:5433/app#copies"


@each_row(
    "error, kind, words",
    [
        (
            psycopg.OperationalError('FATAL:  password authentication failed for user "me"'),
            ConnectionError,
            "check the user",
        ),
        (psycopg.OperationalError("no pg_hba.conf entry for host, no encryption"), ConnectionError, "sslmode=require"),
        (psycopg.errors.InsufficientPrivilege("permission denied for database app"), ConnectionError, "grant this user"),
        (psycopg.errors.DiskFull("could not extend file: No space left on device"), ConnectionError, "free some disk"),
        (psycopg.OperationalError("session is read-only"), ConnectionError, "address of the primary"),
        (psycopg.OperationalError("server closed the connection\n\tunexpectedly"), ConnectionError, "the connection unexpe"),
        (psycopg.errors.ProgramLimitExceeded("index row size 9 exceeds"), InvalidRequest, "can never store it"),
    ],
)
def test_an_error_says_what_to_do_in_one_line(error, kind, words):
    shown = explained(error, "PostgreSQL at db/app")
    assert isinstance(shown, kind)
    assert words in str(shown)
    assert "\n" not in str(shown)


async def test_a_server_that_is_away_fails_no_entering_and_is_named():
    inbox = PostgresInbox("postgresql://me@127.0.0.1:9/app")
    async with inbox:
        with pytest.raises(ConnectionError, match=r"^PostgreSQL at 127\.0\.0\.1:9/app, inbox copies: .*refused"):
            await inbox.counts()
        assert not inbox.ready
    assert evolve(inbox, name="other").name == "other"


def test_the_command_line_takes_an_address():
    inbox = inbox_of("postgresql://me@db.example/app#staging", create=False)
    assert (inbox.address, inbox.name, inbox.create) == ("postgresql://me@db.example/app", "staging", False)
    assert inbox_of(ADDRESS).name == "copies"
    with pytest.raises(InvalidRequest, match="--inbox: name: use lower-case"):
        inbox_of(f"{ADDRESS}#No")
    for address in ("postgresql+asyncpg://me:{}@db/app", "POSTGRES://me:{}@db/app", "postgres://me:0#{}@db/app"):
        with pytest.raises(InvalidRequest, match="--inbox: address: not the address of") as caught:
            inbox_of(address.format("the-very-secret"))
        assert "the-very-secret" not in str(caught.value)
