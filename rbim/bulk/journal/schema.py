"""Schema of a job's journal: the tables, and the views for people.

A row of the input has a number, ``seq``: its line, or its place in an iterable, from 1. A sender group is a group with an
acting account. A chunk is what one request names: accounts of one sender group with the same ``chunk`` number. Chunks of a
sender group are sent in the order of their numbers. A request is one sending of a chunk.

A chunk has the state of its accounts, so that the answer to a request changes one row; an account has a ``state`` and a
``reason`` of its own only where these differ. The view ``result`` has those of each account.
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
    """CREATE TABLE account (
        sender_group INTEGER NOT NULL,
        chunk INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        account TEXT NOT NULL,
        state INTEGER,
        reason INTEGER,
        PRIMARY KEY (sender_group, chunk, seq)
    ) WITHOUT ROWID""",
    """CREATE TABLE chunk (
        sender_group INTEGER NOT NULL,
        id INTEGER NOT NULL,
        state INTEGER NOT NULL DEFAULT 0,
        request INTEGER,
        reason INTEGER,
        PRIMARY KEY (sender_group, id)
    ) WITHOUT ROWID""",
    """CREATE TABLE request (
        id INTEGER PRIMARY KEY,
        sender_group INTEGER NOT NULL,
        chunk INTEGER NOT NULL,
        members INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        repeats INTEGER,
        resent INTEGER NOT NULL DEFAULT 0,
        begun REAL,
        ended REAL,
        elapsed REAL,
        waited REAL NOT NULL DEFAULT 0,
        outcome INTEGER NOT NULL DEFAULT 0,
        reason INTEGER,
        retry INTEGER NOT NULL DEFAULT 0,
        split INTEGER NOT NULL DEFAULT 0
    )""",
    "CREATE INDEX request_retry ON request (sender_group, chunk) WHERE retry = 1",
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
        (0, 'open'), (1, 'answered'), (2, 'refused'), (3, 'not sent'), (4, 'unknown')""",
    """CREATE VIEW result AS SELECT seq, account.sender_group AS sender_group, chunk, account, request,
        coalesce(account.state, chunk.state) AS state, iif(account.state IS NULL, chunk.reason, account.reason) AS reason
        FROM account JOIN chunk ON chunk.sender_group = account.sender_group AND chunk.id = account.chunk""",
    """CREATE VIEW accounts AS SELECT seq, target_group.name AS "group", sender_group.user_name AS user_name, account,
        account_state.name AS state, reason.text AS reason, reason.code AS code, reason.error AS error, request
        FROM result JOIN sender_group ON sender_group.id = result.sender_group
        JOIN target_group ON target_group.id = sender_group.target_group
        JOIN account_state ON account_state.id = result.state LEFT JOIN reason ON reason.id = result.reason""",
    """CREATE VIEW requests AS SELECT request.id AS id, target_group.name AS "group", sender_group.user_name AS user_name,
        request.members AS members, request.attempt AS attempt, request.repeats AS repeats, request.resent AS resent,
        datetime(request.begun, 'unixepoch') AS begun, datetime(request.ended, 'unixepoch') AS ended,
        request.elapsed AS elapsed, request.waited AS waited, request_outcome.name AS outcome, reason.text AS reason,
        reason.code AS code, reason.error AS error
        FROM request JOIN sender_group ON sender_group.id = request.sender_group
        JOIN target_group ON target_group.id = sender_group.target_group
        JOIN request_outcome ON request_outcome.id = request.outcome LEFT JOIN reason ON reason.id = request.reason""",
)
"""The statements that turn an empty file into a journal."""

ERASING = 0.0
"""Value of ``job.erased`` from the beginning of the erasure to its end, when it becomes the time."""

JOURNAL = FileKind(name="a job's journal", mark=b"rbjb", schema=STATEMENTS, version=8, cache=4_000)
"""The file of a job. Earlier versions are refused."""
