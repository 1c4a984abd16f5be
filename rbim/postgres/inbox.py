"""The inbox on a PostgreSQL server, for receivers and workers on several machines."""

from __future__ import annotations

import re
from collections import defaultdict
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from attrs import Factory, define, field, setters

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.store import LARGEST, SLACK, InboxStore, claim_of, row_of
from rbim.callbacks.inbox.stored import DurableInbox
from rbim.errors import InvalidRequest
from rbim.postgres.database import PostgresDatabase
from rbim.postgres.errors import without_password
from rbim.storage.group_commit import CommandFailure
from rbim.validators import above_zero

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import attrs

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Claim, OtherContent, StoredEvent

__all__ = ["PostgresInbox"]

# The three hot commands of InboxStore, each as one statement for a whole batch: on a network each statement costs its way.
# They hold the inbox's lock, so the snapshot of a statement has everything that was committed.

MAX_NAME = 2600  # bytes: an index takes 2,704
COLUMNS = "key, conversation, app_id, class, msg_type, received, state, finished, error, body"
FIELDS = "number, key, app_id, body, received, attempts, replays"

ACCEPT = f"""WITH new AS (
    INSERT INTO event ({COLUMNS}) SELECT {COLUMNS}
    FROM unnest(
        ?::text[], ?::text[], ?::text[], ?::text[], ?::text[], ?::float8[], ?::int[], ?::float8[], ?::text[], ?::bytea[])
    WITH ORDINALITY AS given({COLUMNS}, place) ORDER BY place
    ON CONFLICT (key) DO NOTHING RETURNING key, conversation, state),
opened AS (
    INSERT INTO conversation (name, ready) SELECT DISTINCT conversation, ?::float8 FROM new WHERE state = 0
    ON CONFLICT (name) DO NOTHING RETURNING name)
SELECT key, EXISTS (SELECT 1 FROM opened) FROM new"""  # noqa: S608  # constants

CLAIM = f"""WITH ready AS (
    SELECT name FROM conversation WHERE begun = 0 AND ready <= :due AND fence <> ALL(:held::bigint[])
    AND NOT EXISTS (SELECT 1 FROM conversation WHERE begun > 0 AND ready <= :due AND fence <> ALL(:held::bigint[]))
    ORDER BY ready LIMIT :limit),
free AS MATERIALIZED (SELECT name, row_number() OVER () AS place, count(*) OVER () AS all_places FROM ready),
fences AS (
    UPDATE meta SET fence = fence + (SELECT count(*) FROM free) WHERE EXISTS (SELECT 1 FROM free) RETURNING fence AS last),
found AS MATERIALIZED (
    SELECT free.name, place, last - all_places + place AS fence, oldest.* FROM fences, free CROSS JOIN LATERAL (
        SELECT {FIELDS} FROM event WHERE conversation = free.name AND state = 0 ORDER BY number
        LIMIT :limit / (SELECT count(*) FROM free)) AS oldest),
leased AS (
    UPDATE conversation SET ready = :until, fence = leased.fence, begun = 1
    FROM (SELECT DISTINCT name, fence FROM found) AS leased WHERE conversation.name = leased.name),
closed AS (
    DELETE FROM conversation USING free WHERE conversation.name = free.name AND free.name NOT IN (SELECT name FROM found))
SELECT name, fence, {FIELDS} FROM found ORDER BY place, number"""  # noqa: S608  # constants

DONE = f"""WITH held AS (
    SELECT given.* FROM unnest(:names::text[], :fences::bigint[], :mores::int[])
    WITH ORDINALITY AS given(name, fence, more, place)
    JOIN conversation USING (name, fence)),
settled AS (
    UPDATE event SET state = 1, finished = :now, error = NULL, attempts = attempts + 1
    FROM unnest(:numbers::bigint[], :places::int[]) AS given(number, place) JOIN held USING (place)
    WHERE event.number = given.number AND state = 0 RETURNING place),
recorded AS MATERIALIZED (SELECT * FROM held WHERE place IN (SELECT place FROM settled)),
following AS MATERIALIZED (
    SELECT name, place, more, oldest.* FROM recorded CROSS JOIN LATERAL (
        SELECT {FIELDS} FROM event WHERE conversation = name AND state = 0 AND number <> ALL(:numbers::bigint[])
        ORDER BY number LIMIT greatest(more, 1)) AS oldest),
kept AS (
    UPDATE conversation SET ready = CASE WHEN more > 0 THEN :until ELSE :now END,
    fence = CASE WHEN more > 0 THEN fence ELSE 0 END, begun = CASE WHEN more > 0 THEN begun ELSE 0 END
    FROM (SELECT DISTINCT name, more FROM following) AS kept WHERE conversation.name = kept.name),
closed AS (
    DELETE FROM conversation USING recorded
    WHERE conversation.name = recorded.name AND recorded.place NOT IN (SELECT place FROM following))
SELECT place, recorded.more, {FIELDS} FROM recorded LEFT JOIN following USING (place) ORDER BY place, number"""  # noqa: S608


class _Store(InboxStore):
    """The commands of an inbox, with fewer statements."""

    def accept_all(self, deliveries: Sequence[Delivery]) -> list[bool | OtherContent]:
        """Store deliveries in their order; return for each whether it is new, like ``accept``."""
        given = [_fitting(each) for each in deliveries]
        columns = [[*column] for column in zip(*map(row_of, given), strict=True)]
        rows = self.database.execute(ACCEPT, [*columns, self.database.now]).fetchall()
        new = {key for key, _ in rows}
        self.database.news |= any(opened for _, opened in rows)
        results: list[bool | OtherContent] = []
        for each in given:
            results.append(each.key in new or self.accept(each))
            new.discard(each.key)
        return results

    def _readmit(self, letter: StoredEvent, delivery: Delivery) -> bool:
        return super()._readmit(letter, _fitting(delivery))

    def claim(self, limit: int, held: Collection[int] = ()) -> list[Claim]:
        """Claim events, as InboxStore does."""
        values = {"due": self.database.now + SLACK, "held": [*held], "limit": limit, "until": self._lease_end}
        rows = self.database.execute(CLAIM, values).fetchall()
        return [claim_of(*row) for row in rows] or super().claim(limit, held)

    def done_all(self, given: Sequence[tuple[Sequence[Claim], int]]) -> list[list[Claim] | CommandFailure]:
        """Record claims with their ``more``; the failure of one is LeaseLost."""
        names = [claims[0].conversation for claims, _ in given]
        if len({*names}) < len(names) or any(claims[0].crashes for claims, _ in given):
            return super().done_all(given)
        numbered = [(claim.number, place) for place, (claims, _) in enumerate(given, 1) for claim in claims]
        values = {
            "names": names,
            "fences": [claims[0].fence for claims, _ in given],
            "mores": [more for _, more in given],
            "numbers": [number for number, _ in numbered],
            "places": [place for _, place in numbered],
            "now": self.database.now,
            "until": self._lease_end,
        }
        found: defaultdict[int, list[Claim]] = defaultdict(list)
        for place, more, number, *row in self.database.execute(DONE, values).fetchall():
            following = found[place]
            if number is not None and more:
                claims, _ = given[int(place) - 1]
                following.append(claim_of(claims[0].conversation, claims[0].fence, number, *row))
            self.database.news |= number is not None and not more
        return [found[place] if place in found else CommandFailure(LeaseLost()) for place in range(1, len(given) + 1)]


def _fitting(delivery: Delivery) -> Delivery:
    """Return the delivery with names that an index takes: of a longer one the beginning and a hash."""
    if len(delivery.conversation) + len(delivery.key) <= MAX_NAME // 4:
        return delivery
    return delivery._replace(key=_short(delivery.key), conversation=_short(delivery.conversation))


def _short(name: str) -> str:
    encoded = name.encode()
    hashed = f"{name[:100]}...{blake2b(encoded, digest_size=16).hexdigest()}"
    return hashed if len(encoded) > MAX_NAME else name


def _checked_name(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or re.fullmatch(r"(?!pg_)[a-z_][a-z0-9_]{0,49}", value) is None:
        form = "use lower-case letters, digits and _, at most 50, not beginning with a digit or pg_"
        raise InvalidRequest(f"{attribute.name}: {form}, not {value!r}", field=attribute.name)


def _database(inbox: PostgresInbox) -> PostgresDatabase:
    return PostgresDatabase(inbox.address, inbox.name, create=inbox.create, lease=inbox.lease, clock=inbox.clock)


@define(eq=False, on_setattr=setters.frozen)
class PostgresInbox(DurableInbox):
    """An inbox in a PostgreSQL database (13 or later), for any number of receivers and workers. For asyncio and trio.

    ``address``: ``postgresql://user@host/database``, with the parameters of libpq; better without a password, which
    ``PGPASSWORD`` or a password file has. ``name``: the schema of the inbox in the database (default: "copies"), which is
    made if it is missing and ``create`` is True (default). ``retention``: seconds after handling for which resends of an
    event are recognised (default: 7 days); it is deleted an hour later. ``dead_retention``: seconds for which dead letters
    and events in quarantine are kept (default: None, until they are replayed, requeued or discarded). ``lease``: seconds
    that a claim holds without renewal (default: 30). ``poll``: seconds between two looks at the server if no notification
    comes (default: 5). All times are the server's, except with a ``clock`` for tests.

    Accepted events survive a crash of any process, and of the server; what a failover loses to a replica that is behind
    is lost here too. Entering does not need the server: it is connected in the background, again and again. While it
    cannot be used, every method raises ConnectionError, which says why and what to do, and ``ready`` is False: a receiver
    in normal mode then uses its overflow file. So it is after the tables were dropped, restored or replaced under a
    process, until that is restarted. Leaving takes two seconds at most while the server is away.
    Except for :meth:`backlog`, its methods are for the event loop that entered it.

    Each process has three connections. They must be sessions: not through PgBouncer in transaction mode.
    """

    _span = LARGEST  # a search holds up no transaction
    address: str = field(repr=without_password)
    name: str = field(default="copies", kw_only=True, validator=_checked_name)
    create: bool = field(default=True, kw_only=True)
    poll: float = field(default=5.0, kw_only=True, validator=above_zero)
    _database: PostgresDatabase = field(init=False, repr=False, default=Factory(_database, takes_self=True))
    _commands = _Store

    @property
    def ready(self) -> bool:
        """Whether the server can be used now. A receiver with an overflow file does not wait for it while it is False."""
        return self._database.ready
