"""The tables of an inbox, and every statement on them. PostgreSQL takes the text but for the types of the tables."""

from __future__ import annotations

__all__: list[str] = []

# Theory of operation: the life of an event. The number is the column ``state``; leased and retrying are kinds of waiting.
#
#   waiting (0)      accepted, not settled; one of its conversation's queue
#   leased (0)       among the oldest waiting events of a conversation that has a ``fence`` (see protocols.py)
#   retrying (0)     failed; ``error`` has the last traceback, and the conversation's ``ready`` lies in the future
#   done (1)         handled; kept so that a resend is recognised, deleted after the retention
#   dead letter (2)  its last attempt failed; kept until it is replayed, discarded, or older than its own retention
#   quarantined (3)  authentic, but unreadable or of another application (``error``); kept likewise
#
# (new) -> waiting | quarantined     accept; a known key changes nothing
# waiting, retrying -> leased        claim, or the next claims under the same lease
# leased -> done | dead letter       done, dead_letter: attempts + 1
# leased -> retrying                 retry: attempts + 1
# leased -> waiting                  release; or the lease expires
# done | dead letter -> waiting      replay, requeue: attempts = 0; replays + 1 if it was done
# dead letter | quarantined -> (gone) discard, purge
# quarantined -> waiting             replay or requeue, if it can be read now; deleted instead if its new key is known by now
#
# What must always hold:
# - A key is in the table at most once, so an event is stored once, however often it is sent while its key is kept.
# - A conversation with a waiting event has a row in ``conversation``. ``fence`` is 0 in it without a lease, and ``ready`` is
#   the time from which it may be claimed (of a lease: its end). ``begun`` is how often its oldest event has begun without an
#   end: 0 or 1 under a lease, unless that event is retried alone.
# - Only a claim with the row's fence settles an event or ends a lease.
# - ``finished`` is the time since which an event is done, a dead letter or in quarantine.
# - ``seen`` is the latest time that a look at the clock, once a minute, has found. If the clock is set back, what waits for
#   a time waits as long as before.
#
# Times are epoch seconds. The body is the last column, so that no search has to read past it.

WAITING, DONE, DEAD, QUARANTINED = range(4)
STATES = ("waiting", "done", "dead", "quarantined")  # as people and programs read them

SCHEMA = (
    """CREATE TABLE event (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        conversation TEXT NOT NULL,
        app_id TEXT NOT NULL,
        class TEXT NOT NULL,
        msg_type TEXT NOT NULL,
        received REAL NOT NULL,
        state INTEGER NOT NULL,
        attempts INTEGER NOT NULL DEFAULT 0,
        replays INTEGER NOT NULL DEFAULT 0,
        finished REAL,
        error TEXT,
        body BLOB NOT NULL
    )""",
    "CREATE INDEX event_waiting ON event (conversation, number, state) WHERE state = 0",
    "CREATE INDEX event_done ON event (finished) WHERE state = 1",
    "CREATE INDEX event_dead ON event (number, finished, state) WHERE state = 2",
    "CREATE INDEX event_quarantined ON event (number, finished, state) WHERE state = 3",
    """CREATE TABLE conversation (
        name TEXT PRIMARY KEY,
        ready REAL NOT NULL,
        fence INTEGER NOT NULL DEFAULT 0,
        begun INTEGER NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    "CREATE INDEX conversation_ready ON conversation (ready) WHERE begun = 0",
    "CREATE INDEX conversation_begun ON conversation (ready) WHERE begun > 0",
    "CREATE TABLE meta (fence INTEGER NOT NULL, seen REAL NOT NULL)",
    "INSERT INTO meta (fence, seen) VALUES (0, 0)",
)

# Accepting.

ACCEPT = """INSERT INTO event (key, conversation, app_id, class, msg_type, received, state, finished, error, body)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"""
BY_KEY = "SELECT number, body FROM event WHERE key = ?"
OPEN_CONVERSATION = "INSERT INTO conversation (name, ready) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"

# Leases. A conversation in READY may also be one whose worker was stopped, or gave up to count: its lease has expired.

READY = "SELECT name, fence FROM conversation WHERE begun = 0 AND ready <= ? ORDER BY ready LIMIT ?"
RETRIED_ALONE = "SELECT name, fence, begun FROM conversation WHERE begun > 0 AND ready <= ? ORDER BY ready LIMIT ?"
NEXT_READY = "SELECT ready, fence FROM conversation WHERE begun = 0 ORDER BY ready LIMIT ?"
NEXT_RETRIED_ALONE = "SELECT ready, fence FROM conversation WHERE begun > 0 ORDER BY ready LIMIT ?"
OLDEST = """SELECT number, key, app_id, body, received, attempts, replays FROM event
    WHERE conversation = ? AND state = 0 ORDER BY number LIMIT ?"""
ADD_FENCES = "UPDATE meta SET fence = fence + ?"
LAST_FENCE = "SELECT fence FROM meta"
FENCE = "SELECT fence FROM conversation WHERE name = ?"
LEASE = "UPDATE conversation SET ready = ?, fence = ?, begun = ? WHERE name = ?"
RENEW = "UPDATE conversation SET ready = ? WHERE name = ? AND fence = ?"
SET_BEGUN = "UPDATE conversation SET begun = ? WHERE name = ? AND fence = ?"
END_LEASE = """UPDATE conversation SET ready = ?, fence = 0, begun = ? WHERE name = ? AND fence = ?
    AND EXISTS (SELECT 1 FROM event WHERE number = ? AND state = 0)"""
MAKE_READY = "UPDATE conversation SET ready = ?, fence = 0, begun = 0 WHERE name = ?"
SET_BACK = "UPDATE conversation SET ready = ready - (SELECT seen FROM meta) + ? WHERE (SELECT seen FROM meta) > ?"
SEEN = "UPDATE meta SET seen = ?"
CLOSE_CONVERSATION = "DELETE FROM conversation WHERE name = ?"

# Results.

SETTLE = "UPDATE event SET state = ?, finished = ?, error = ?, attempts = attempts + 1 WHERE number = ? AND state = 0"
COUNT_FAILURE = "UPDATE event SET attempts = attempts + 1, error = ? WHERE number = ?"

# People: numbers of events, dead letters and quarantine, replays.

COUNTS = """SELECT (SELECT count(*) FROM event WHERE state = 0), (SELECT count(*) FROM event WHERE state = 1),
    (SELECT count(*) FROM event WHERE state = 2), (SELECT count(*) FROM event WHERE state = 3)"""
# "+ 0", because SQLite would else search the table, which is mostly done events, and not the index
OLDEST_RECEIVED = "SELECT received FROM event WHERE number = (SELECT min(number + 0) FROM event WHERE state = 0)"
LAST_NUMBER = "SELECT coalesce(max(number), 0) FROM event"
CHOSEN = """number > :after AND number <= :until AND received >= :since
    AND (:any_class OR :classes LIKE '%,' || class || ',%') AND (:any_type OR msg_type = :msg_type)"""
STORED = "SELECT number, key, conversation, app_id, body, received, attempts, error, msg_type, state FROM event"
LETTER = f"{STORED} WHERE number = ? AND state IN (2, 3)"
LETTERS = {
    state: f"""{STORED} WHERE state = {state} AND {CHOSEN}
    AND (:any_conversation OR conversation = :conversation OR conversation = app_id || '/' || :conversation)
    ORDER BY number LIMIT :limit"""
    for state in (DEAD, QUARANTINED)
}
NEWEST = {
    state: f"{STORED} WHERE number < ? {'' if state is None else f'AND state = {state}'} ORDER BY number DESC LIMIT ?"
    for state in (None, WAITING, DONE, DEAD, QUARANTINED)
}
RECEIVED = "SELECT received, state FROM event ORDER BY number DESC LIMIT ?"
NEXT_LETTERS = {
    state: f"SELECT number, received FROM event WHERE state = {state} AND number > ? ORDER BY number LIMIT ?"  # noqa: S608
    for state in (DEAD, QUARANTINED)
}
REQUEUE = "UPDATE event SET state = 0, attempts = 0, finished = NULL, error = NULL WHERE number = ? AND state = 2"
READMIT = """UPDATE event SET key = ?, conversation = ?, class = ?, msg_type = ?, state = 0, finished = NULL, error = NULL
    WHERE number = ? AND NOT EXISTS (SELECT 1 FROM event AS other WHERE other.key = ? AND other.number <> ?)"""
OTHER_OF_KEY = "SELECT 1 FROM event WHERE key = ? AND number <> ?"
# what begun without an end in a conversation in which events wait again may be another event
COUNT_ANEW = """INSERT INTO conversation (name, ready) VALUES (?, ?) ON CONFLICT (name) DO UPDATE
    SET begun = CASE WHEN conversation.ready > excluded.ready AND conversation.begun > 0 THEN 1 ELSE 0 END"""
DELETE = "DELETE FROM event WHERE number = ? AND state = ?"
SPAN = "SELECT max(number) FROM (SELECT number FROM event WHERE number > ? AND number <= ? ORDER BY number LIMIT ?) AS span"
REPLAYED = f"{CHOSEN} AND state IN (1, 2)"
REPLAY_CONVERSATIONS = f"SELECT DISTINCT conversation FROM event WHERE {REPLAYED}"  # noqa: S608  # a constant
REPLAY = f"""UPDATE event SET state = 0, attempts = 0, replays = CASE WHEN state = 1 THEN replays + 1 ELSE replays END,
    finished = NULL, error = NULL WHERE {REPLAYED}"""  # noqa: S608  # a constant
REPLAYABLE = f"SELECT msg_type, count(*) FROM event WHERE {REPLAYED} GROUP BY msg_type"  # noqa: S608  # a constant
DEAD_BY_TYPE = f"SELECT msg_type, count(*) FROM event WHERE state = 2 AND {CHOSEN} GROUP BY msg_type"  # noqa: S608
PURGE = {
    state: f"""DELETE FROM event WHERE number IN (
    SELECT number FROM event WHERE state = {state} AND finished < ? LIMIT ?)"""  # noqa: S608  # a constant
    for state in (DONE, DEAD, QUARANTINED)
}
