"""Faults put into rbim on purpose: a scenario that does not find them proves nothing.

They replace what is inside rbim, so this is the one file that a change of its inside may break. :class:`NotPlanted` then
says which fault to write anew. It is raised where what a fault replaces is gone or takes other parameters.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING

from attrs import evolve, frozen

if TYPE_CHECKING:
    from collections.abc import Callable


class NotPlanted(Exception):
    """The fault does not apply to rbim as it is now."""


@frozen
class PlantedFault:
    """A fault by name: the scenario that must find it, what it does, and the function that plants it."""

    name: str
    scenario: str
    what: str
    plant: Callable[[], object]


PLANTED = {}

_uses = 0


def plant(name):
    """Plant a fault in this process. Raises NotPlanted."""
    try:
        PLANTED[name].plant()
    except (ImportError, AttributeError) as error:
        raise NotPlanted(f"{name}: {error}") from error


def used():
    """Return how often the faulty code was reached."""
    return _uses


def reached(times):
    """Note that the faulty code was reached so often in another process."""
    global _uses  # noqa: PLW0603  # one fault to a process
    _uses += times


def fault(scenario):
    """Make a function that plants a fault known by its name, for a scenario."""

    def keep(function):
        name = function.__name__.replace("_", "-")
        PLANTED[name] = PlantedFault(name, scenario, inspect.getdoc(function) or "", function)
        return function

    return keep


def replace(owner, name, faulty):
    """Put a faulty function in the place of a function that takes the same parameters."""
    original = vars(owner).get(name)
    if original is None:
        raise NotPlanted(f"{owner.__name__} has no {name}")
    old, new = (list(inspect.signature(each).parameters) for each in (original, faulty))
    if old != new:
        raise NotPlanted(f"{owner.__name__}.{name} takes {', '.join(old)}, and not {', '.join(new)}")

    @wraps(original)
    def counted(*args, **options):
        global _uses  # noqa: PLW0603  # one fault to a process
        _uses += 1
        return faulty(*args, **options)

    setattr(owner, name, counted)


def replace_text(owner, name, right, wrong):
    """Put another text into a constant, such as an SQL statement."""
    global _uses  # noqa: PLW0603  # one fault to a process
    text = getattr(owner, name)
    if right not in text:
        raise NotPlanted(f"{owner.__name__}.{name} does not contain {right!r}")
    setattr(owner, name, text.replace(right, wrong))
    _uses += 1


# The job.


@fault("job")
def never_synced():
    """Commits are not synced once the input is loaded."""
    from rbim.bulk.journal.journal import Journal

    set_fast_writes = Journal.set_fast_writes
    replace(Journal, "set_fast_writes", lambda self, loading: set_fast_writes(self, loading=True))  # noqa: ARG005


@fault("job")
def intent_not_written():
    """A request leaves although its intent is not in the journal."""
    from rbim.bulk.journal.journal import Journal

    record_intents = Journal._record_intents

    def faulty(self, chunks):
        record_intents(self, chunks)
        for chunk in chunks[:1]:
            self.database.execute("DELETE FROM request WHERE id = ?", (chunk.number,))

    replace(Journal, "_record_intents", faulty)


@fault("job")
def double_not_marked():
    """What is sent again after a crash is not marked as resent."""
    from rbim.bulk.journal.journal import Journal

    next_chunks = Journal.next_chunks

    def faulty(self, limit):
        chunks = next_chunks(self, limit)
        for chunk in chunks:
            chunk.resent = False
        return chunks

    replace(Journal, "next_chunks", faulty)


@fault("job")
def intent_not_awaited():
    """A request leaves before its intent is durable, and a killed process is thought not to have sent it."""
    from rbim.bulk.dispatcher import Dispatcher

    leaves = Dispatcher._leaves

    async def faulty(self, worker, chunk):
        self._batch.written.set()
        await leaves(self, worker, chunk)

    replace(Dispatcher, "_leaves", faulty)


@fault("job")
def never_is_repeated():
    """What must not be repeated is sent again after a lost answer."""
    from rbim.bulk import dispatcher
    from rbim.errors import Outcome
    from rbim.operations.base import Repeat

    judge = dispatcher.judge

    def faulty(op, chunk, error, *, retry, dialect):
        class Repeatable:
            repeat = Repeat.IDEMPOTENT
            spec = op.spec

        return judge(Repeatable() if error.outcome is Outcome.UNKNOWN else op, chunk, error, retry=retry, dialect=dialect)

    replace(dispatcher, "judge", faulty)


@fault("job")
def rate_forgotten():
    """Nine of ten requests are not counted against the rates."""
    from rbim.client.limits import Bucket

    take = Bucket.take

    def faulty(self, now):
        if _uses % 10 == 0:
            take(self, now)

    replace(Bucket, "take", faulty)


@fault("job")
def refused_again_is_done():
    """An account that the answer to a resent request refuses is recorded as done."""
    from rbim.bulk.work import Work

    answered = Work.answered

    def faulty(self, chunk, answer):
        settlement = answered(self, chunk, answer)
        return evolve(settlement, individual=()) if chunk.resent else settlement

    replace(Work, "answered", faulty)


@fault("job")
def wake_up_lost():
    """Now and then the end of a request does not wake the dispatcher."""
    from rbim.bulk.dispatcher import Dispatcher

    notify = Dispatcher._notify

    def faulty(self):
        if _uses % 50 > 1:  # the end of a request wakes it twice
            notify(self)

    replace(Dispatcher, "_notify", faulty)


@fault("job")
def lock_not_taken():
    """Two processes may run one job."""
    from rbim.bulk.journal.lock import JobLock

    replace(JobLock, "acquire", lambda self: None)  # noqa: ARG005


@fault("job")
def half_lost():
    """Of a request that was split, the second half is not sent."""
    from rbim.bulk.journal.journal import Journal

    split = Journal.split
    replace(Journal, "split", lambda self, ended: split(self, ended)[:1])


# The service.


@fault("service")
def place_kept_on_cancellation():
    """A call that is cancelled at the moment in which it gets a place keeps it."""
    from rbim.client.admission import Admission

    withdraw = Admission._withdraw

    def faulty(self, waiter):
        if waiter.state != "granted":
            withdraw(self, waiter)

    replace(Admission, "_withdraw", faulty)


@fault("service")
def waiter_not_woken():
    """Now and then a place becomes free and the call that waits for it is not woken."""
    from rbim.client.admission import Admission

    leave = Admission.leave

    def faulty(self, op, started, *, answered, asked=None):
        if _uses % 10:
            leave(self, op, started, answered=answered, asked=asked)
        else:
            self.free += 1

    replace(Admission, "leave", faulty)


@fault("service")
def turn_not_counted():
    """One of ten requests is not counted against the rates."""
    from rbim.client.limits import Demand

    take = Demand.take

    def faulty(self, now):
        if _uses % 10:
            take(self, now)

    replace(Demand, "take", faulty)


@fault("service")
def throttling_ignored():
    """The client goes on as if the platform throttled nothing."""
    from rbim.client.congestion import Congestion

    def faulty(self, narrow, wide, *, sent_at, now, asked):  # noqa: ARG001
        return False

    replace(Congestion, "answered", faulty)


@fault("service")
def held_back_is_released_at_once():
    """Everything that waited leaves together when the platform takes requests again."""
    from rbim.client.congestion import Flow
    from rbim.client.limits import Bucket

    ready_at = Bucket.ready_at

    def faulty(self, now, ahead=0):
        if isinstance(self, Flow) and self.rate > 1:  # else hardly anything leaves yet
            return -1e9
        return ready_at(self, now, ahead)

    replace(Bucket, "ready_at", faulty)


@fault("service")
def never_grows_again():
    """A client that was slowed stays slow."""
    from rbim.client.congestion import Flow

    replace(Flow, "_grow", lambda self: None)  # noqa: ARG005


@fault("service")
def need_ignored():
    """A request leaves however near its deadline is."""
    from rbim.client.limits import AttemptTimes

    replace(AttemptTimes, "add", lambda self, seconds, *, now, answered: None)  # noqa: ARG005


@fault("service")
def whole_client_slowed():
    """One throttled answer for a group slows all operations."""
    from rbim.client.congestion import Congestion

    answered = Congestion.answered

    def faulty(self, narrow, wide, *, sent_at, now, asked):
        changed = answered(self, narrow, wide, sent_at=sent_at, now=now, asked=asked)
        if asked is not None:
            for flow in self.flows.values():
                flow._set_rate(1.0)
        return changed

    replace(Congestion, "answered", faulty)


@fault("service")
def timer_not_set_again():
    """The timer of the deadlines is not set again when it has fired."""
    import time

    from rbim.timeouts import Deadlines

    def faulty(self):
        now = time.monotonic()
        for scope, due in self.scopes.items():
            if due <= now:
                scope.cancel()

    replace(Deadlines, "_fire", faulty)


@fault("service")
def never_is_retried():
    """What must not be repeated is sent again after a lost answer."""
    from rbim.client.retry import Retry
    from rbim.operations.base import Repeat

    pause = Retry.pause

    def faulty(self, op, error, attempt, codes):  # noqa: ARG001
        class Repeatable:
            repeat = Repeat.IDEMPOTENT

        return pause(self, Repeatable(), error, attempt, codes)

    replace(Retry, "pause", faulty)


@fault("service")
def earlier_attempts_forgotten():
    """The outcome of a call is that of its last attempt."""
    from rbim.client.call import Call

    def faulty(self, error):
        error.operation = self._op.spec.name
        error.attempts = tuple(self._history)
        return error

    replace(Call, "_completed", faulty)


@fault("service")
def cancellation_left_over():
    """A task whose call ended by its deadline is still counted as cancelled."""
    from rbim.timeouts import _Scope

    def faulty(self):
        pass

    replace(_Scope, "take_back", faulty)


# The inbox.


@fault("inbox")
def answered_before_it_is_stored():
    """A delivery is answered before its transaction."""
    from functools import partial

    from rbim.callbacks.inbox.stored import DurableInbox

    async def faulty(self, delivery, *, chain=None):  # noqa: ARG001
        self._commits.begin(partial(self._store.accept, delivery))
        return True

    replace(DurableInbox, "accept", faulty)


@fault("inbox")
def newest_first():
    """The newest event of a conversation is handled first."""
    from rbim.callbacks.inbox import statements

    replace_text(statements, "OLDEST", "ORDER BY number", "ORDER BY number DESC")


@fault("inbox")
def fence_dropped():
    """A result counts although its lease was lost to another process."""
    from rbim.callbacks.inbox.store import InboxStore

    settle, renew = InboxStore._settle, InboxStore.renew

    def faulty(self, claims, result, *, more):
        conversation = claims[0].conversation
        found = self.database.execute("SELECT fence FROM conversation WHERE name = ?", (conversation,)).fetchone()
        return settle(self, [evolve(each, fence=found[0]) for each in claims] if found else claims, result, more=more)

    def nothing_lost(self, claims):
        renew(self, claims)
        return []

    replace(InboxStore, "_settle", faulty)
    replace(InboxStore, "renew", nothing_lost)


@fault("inbox")
def spool_overtaken():
    """A delivery is stored although the spool still has earlier ones of its conversation."""
    from rbim.callbacks.receiver.spool import Spool

    put = Spool.put
    Spool.holds = property(lambda self: False, lambda self, value: None)  # noqa: ARG005
    replace(Spool, "put", put)  # counts that it is used


@fault("inbox")
def lease_without_end():
    """What a process that died was handling is never handled again."""
    from rbim.callbacks.inbox.store import InboxStore

    lease = InboxStore._lease

    def faulty(self, name, fence, limit, *, crashes=0):
        self._lease_time = 1e9
        return lease(self, name, fence, limit, crashes=crashes)

    replace(InboxStore, "_lease", faulty)


@fault("inbox")
def failure_is_done():
    """An event whose handler failed is recorded as done."""
    from rbim.callbacks.inbox.store import InboxStore

    def faulty(self, claim, *, error, pause):  # noqa: ARG001
        self.done((claim,), more=0)

    replace(InboxStore, "retry", faulty)


@fault("inbox")
def body_not_compared():
    """A body whose digest is not that of the headers is accepted."""
    from rbim.callbacks import signature
    from rbim.callbacks.receiver import intake

    verify = intake.verify

    def faulty(headers, body, *, credentials, now, policy):
        result = verify(headers, body, credentials=credentials, now=now, policy=policy)
        if getattr(result, "reason", None) is not signature.Reason.BODY_MISMATCH:
            return result
        checksum, digest, cur_time = signature._signed_headers(headers)
        key = credentials.match(digest + cur_time, checksum.lower())
        return signature.Verified(key=key, age=0.0, cur_time=int(cur_time))

    replace(intake, "verify", faulty)


@fault("inbox")
def free_place_not_used():
    """A worker whose places were all taken does not see that one is free."""
    from rbim.callbacks.worker.worker import _Run

    replace(_Run, "_interrupt", lambda self: None)  # noqa: ARG005


@fault("inbox")
def retried_alone_is_buried():
    """What a process was handling when it died is buried."""
    from rbim.callbacks.inbox.store import InboxStore

    lease = InboxStore._lease

    def faulty(self, name, fence, limit, *, crashes=0):
        return lease(self, name, fence, limit, crashes=100 if crashes else 0)

    replace(InboxStore, "_lease", faulty)


@fault("inbox")
def crashes_not_counted():
    """A message that kills its process is handled again for ever."""
    from rbim.callbacks.inbox.store import InboxStore

    lease = InboxStore._lease

    def faulty(self, name, fence, limit, *, crashes=0):
        return lease(self, name, fence, limit, crashes=min(crashes, 1))

    replace(InboxStore, "_lease", faulty)


@fault("inbox")
def other_content_dropped():
    """A delivery with a known msgId and other content is taken for a resend."""
    from rbim.callbacks.inbox import store

    replace(store, "_content", lambda body: None)  # noqa: ARG005


@fault("inbox")
def lost_inbox_not_noticed():
    """Whether the file of an inbox is still in its place is not looked at."""
    from rbim.storage.sqlite import InPlace

    replace(InPlace, "require", lambda self: None)  # noqa: ARG005


# The inbox on trio: faults of the inbox once more.


@fault("trio_inbox")
def answered_before_it_is_stored_on_trio():
    """A delivery is answered before its transaction."""
    answered_before_it_is_stored()


@fault("trio_inbox")
def newest_first_on_trio():
    """The newest event of a conversation is handled first."""
    newest_first()


@fault("trio_inbox")
def failure_is_done_on_trio():
    """An event whose handler failed is recorded as done."""
    failure_is_done()


@fault("trio_inbox")
def retried_alone_is_buried_on_trio():
    """What a process was handling when it died is buried."""
    retried_alone_is_buried()
