"""Schema of a job's journal: the tables, and the views for people.

A row of the input has a number, ``seq``, from 1. A sender group is a group with an acting account. A chunk holds the
accounts of one sender group that one request names, in their order (``content``), and their state; an account whose state is
another one has a row in ``exception``, by its ``place`` in the chunk, from 0. Each account is in one chunk; the numbers of
the chunks are the order of sending. A request is one sending of a chunk.

``content`` numbers its rows in three ways: ``first`` and the next ones (``step`` 1), each ``step`` rows, or the JSON array
``rows``.
"""

from __future__ import annotations

from rbim.storage.sqlite import FileKind

__all__ = ["ERASING", "JOURNAL", "STATEMENTS"]


STATEMENTS = (
    """CREATE TABLE job (
        operation TEXT NOT NULL,
        options TEXT NOT NULL,
        chunk INTEGER NOT NULL,
        settings TEXT NOT NULL,
        source TEXT NOT NULL,
        created REAL NOT NULL,
        loaded REAL,
        rows INTEGER NOT NULL DEFAULT 0,
        bad INTEGER NOT NULL DEFAULT 0,
        duplicates INTEGER NOT NULL DEFAULT 0,
        digest TEXT NOT NULL DEFAULT '',
        erased REAL
    )""",
    "CREATE TABLE target_group (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    """CREATE TABLE sender_group (
        id INTEGER PRIMARY KEY,
        target_group INTEGER NOT NULL,
        user_name TEXT NOT NULL DEFAULT '',
        UNIQUE (target_group, user_name)
    )""",
    """CREATE TABLE content (
        id INTEGER PRIMARY KEY,
        sender_group INTEGER NOT NULL,
        size INTEGER NOT NULL,
        first INTEGER NOT NULL,
        step INTEGER NOT NULL,
        rows TEXT,
        accounts TEXT NOT NULL
    )""",
    """CREATE TABLE chunk (
        id INTEGER PRIMARY KEY,
        sender_group INTEGER NOT NULL,
        content INTEGER NOT NULL,
        size INTEGER NOT NULL,
        state INTEGER NOT NULL DEFAULT 0,
        request INTEGER,
        reason INTEGER,
        half_of INTEGER
    )""",
    """CREATE TABLE exception (
        chunk INTEGER NOT NULL,
        place INTEGER NOT NULL,
        state INTEGER NOT NULL,
        reason INTEGER,
        PRIMARY KEY (chunk, place)
    ) WITHOUT ROWID""",
    """CREATE TABLE request (
        id INTEGER PRIMARY KEY,
        chunk INTEGER NOT NULL,
        members INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        repeats INTEGER,
        resent INTEGER NOT NULL DEFAULT 0,
        begun REAL,
        ended REAL,
        elapsed REAL,
        waited REAL NOT NULL DEFAULT 0,
        outcome INTEGER NOT NULL,
        reason INTEGER,
        todo INTEGER NOT NULL DEFAULT 0,
        split INTEGER NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX request_todo ON request (chunk) WHERE todo = 1",
    "CREATE INDEX request_open ON request (id) WHERE outcome = 0",
    "CREATE INDEX request_planned ON request (chunk) WHERE outcome = 5",
    """CREATE TABLE reason (
        id INTEGER PRIMARY KEY,
        text TEXT NOT NULL,
        code TEXT NOT NULL DEFAULT '',
        error TEXT NOT NULL DEFAULT '',
        UNIQUE (text, code, error)
    )""",
    "CREATE TABLE bad_row (line INTEGER NOT NULL, reason TEXT NOT NULL, raw TEXT NOT NULL)",
    """CREATE TABLE duplicate (
        seq INTEGER PRIMARY KEY,
        target_group INTEGER NOT NULL,
        account TEXT NOT NULL,
        first INTEGER NOT NULL
    )""",
    "CREATE TABLE anomaly (request INTEGER NOT NULL, account TEXT NOT NULL, reason INTEGER NOT NULL)",
    """CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        began REAL NOT NULL,
        ended REAL,
        why TEXT,
        settings TEXT NOT NULL
    )""",
    """CREATE TABLE sample (
        run INTEGER NOT NULL,
        at REAL NOT NULL,
        seconds REAL NOT NULL,
        requests INTEGER NOT NULL,
        accounts INTEGER NOT NULL,
        throttled INTEGER NOT NULL,
        failed INTEGER NOT NULL,
        in_flight REAL NOT NULL,
        concurrency INTEGER NOT NULL,
        rate REAL
    )""",
    "CREATE TABLE account_state (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """INSERT INTO account_state (id, name) VALUES
        (0, 'waiting'), (1, 'done'), (2, 'refused'), (3, 'failed'), (4, 'unknown'), (-1, 'waiting again')""",
    "CREATE TABLE request_outcome (id INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """INSERT INTO request_outcome (id, name) VALUES
        (0, 'open'), (1, 'answered'), (2, 'refused'), (3, 'not sent'), (4, 'unknown'), (5, 'planned')""",
    """CREATE VIEW accounts AS SELECT
        coalesce(json_extract(content.rows, '$[' || each.key || ']'), content.first + content.step * each.key) AS seq,
        target_group.name AS "group", sender_group.user_name AS user_name, each.value AS account,
        account_state.name AS state, reason.text AS reason, reason.code AS code, reason.error AS error,
        chunk.request AS request
        FROM chunk CROSS JOIN content ON content.id = chunk.content CROSS JOIN json_each(content.accounts) AS each
        CROSS JOIN sender_group ON sender_group.id = chunk.sender_group
        CROSS JOIN target_group ON target_group.id = sender_group.target_group
        LEFT JOIN exception ON exception.chunk = chunk.id AND exception.place = each.key
        JOIN account_state ON account_state.id = coalesce(exception.state, chunk.state)
        LEFT JOIN reason ON reason.id = iif(exception.state IS NULL, chunk.reason, exception.reason)""",
    """CREATE VIEW requests AS SELECT request.id AS id, target_group.name AS "group", sender_group.user_name AS user_name,
        request.members AS members, request.attempt AS attempt, request.repeats AS repeats, request.resent AS resent,
        datetime(request.begun, 'unixepoch') AS begun, datetime(request.ended, 'unixepoch') AS ended,
        request.elapsed AS elapsed, request.waited AS waited, request_outcome.name AS outcome, reason.text AS reason,
        reason.code AS code, reason.error AS error
        FROM request JOIN chunk ON chunk.id = request.chunk JOIN sender_group ON sender_group.id = chunk.sender_group
        JOIN target_group ON target_group.id = sender_group.target_group
        JOIN request_outcome ON request_outcome.id = request.outcome LEFT JOIN reason ON reason.id = request.reason""",
)
"""The statements that turn an empty file into a journal."""

ERASING = 0.0
"""Value of ``job.erased`` from the beginning of the erasure to its end, when it becomes the time."""

JOURNAL = FileKind(
    name="a job's journal",
    mark=b"rbjb",
    schema=((), (), (), (), STATEMENTS),
    oldest=5,
    cache=4_000,
)
"""The file of a job. Earlier versions are refused."""
