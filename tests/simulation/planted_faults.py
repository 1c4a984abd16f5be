"""Faults put into rbim on purpose: a scenario that does not find them proves nothing.

They replace what is inside rbim, so this is the one file that a change of its inside may break. :class:`NotPlanted` then
says which fault to write anew. It is raised where what a fault replaces is gone or takes other parameters.
"""

from __future__ import annotations

import inspect
import time
from functools import partial, reduce, wraps
from importlib import import_module
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


def fault(scenario, target=""):
    """Keep a fault for a scenario, under the name of its function.

    It takes the place of ``target``, ``MODULE:NAME`` or ``MODULE:CLASS.NAME`` in rbim, and gets what was there before its
    parameters; without a target, it plants the fault itself. rbim is imported only then: time is replaced first.
    """

    def keep(function):
        name = function.__name__.replace("_", "-")
        plants = partial(replace, target, function) if target else function
        PLANTED[name] = PlantedFault(name, scenario, inspect.getdoc(function) or "", plants)
        return function

    return keep


def replace(target, faulty):
    """Put a faulty function in the place of a function that takes the same parameters."""
    module, _, path = target.partition(":")
    *within, name = path.split(".")
    owner = reduce(getattr, within, import_module(f"rbim.{module}"))
    original = vars(owner).get(name)
    if original is None:
        raise NotPlanted(f"{owner.__name__} has no {name}")
    old, (_, *new) = (list(inspect.signature(each).parameters) for each in (original, faulty))
    if old != new:
        raise NotPlanted(f"{owner.__name__}.{name} takes {', '.join(old)}, and not {', '.join(new)}")

    @wraps(original)
    def counted(*args, **options):
        reached(1)
        return faulty(original, *args, **options)

    setattr(owner, name, counted)


# The job.


@fault("job", "bulk.journal.journal:Journal.set_fast_writes")
def never_synced(set_fast_writes, self, loading):  # noqa: ARG001
    """Commits are not synced once the input is loaded."""
    set_fast_writes(self, loading=True)


@fault("job", "bulk.journal.journal:Journal._record_intents")
def intent_not_written(record_intents, self, chunks):
    """A request leaves although its intent is not in the journal."""
    record_intents(self, chunks)
    for chunk in chunks[:1]:
        self.database.execute("DELETE FROM request WHERE id = ?", (chunk.number,))


@fault("job", "bulk.journal.journal:Journal.next_chunks")
def double_not_marked(next_chunks, self, limit):
    """What is sent again after a crash is not marked as resent."""
    chunks = next_chunks(self, limit)
    for chunk in chunks:
        chunk.resent = False
    return chunks


@fault("job", "bulk.dispatcher:Dispatcher._leaves")
async def intent_not_awaited(leaves, self, worker, chunk):
    """A request leaves before its intent is durable, and a killed process is thought not to have sent it."""
    self._batch.written.set()
    await leaves(self, worker, chunk)


@fault("job", "bulk.dispatcher:judge")
def never_is_repeated(judge, op, chunk, error, *, retry, dialect):
    """What must not be repeated is sent again after a lost answer."""
    from rbim.operations.base import Repeat

    class Repeatable:
        repeat = Repeat.IDEMPOTENT
        spec = op.spec

    unknown = error.outcome.name == "UNKNOWN"
    return judge(Repeatable() if unknown else op, chunk, error, retry=retry, dialect=dialect)


@fault("job", "client.limits:Bucket.take")
def rate_forgotten(take, self, now):
    """Nine of ten requests are not counted against the rates."""
    if _uses % 10 == 0:
        take(self, now)


@fault("job", "bulk.work:Work.answered")
def refused_again_is_done(answered, self, chunk, answer):
    """An account that the answer to a resent request refuses is recorded as done."""
    settlement = answered(self, chunk, answer)
    return evolve(settlement, individual=()) if chunk.resent else settlement


@fault("job", "bulk.dispatcher:Dispatcher._notify")
def wake_up_lost(notify, self):
    """Now and then the end of a request does not wake the dispatcher."""
    if _uses % 50 > 1:  # the end of a request wakes it twice
        notify(self)


@fault("job", "bulk.journal.lock:JobLock.acquire")
def lock_not_taken(_, self):
    """Two processes may run one job."""


@fault("job", "bulk.journal.journal:Journal.split")
def half_lost(split, self, ended):
    """Of a request that was split, the second half is not sent."""
    return split(self, ended)[:1]


# The service.


@fault("service", "client.admission:Admission._withdraw")
def place_kept_on_cancellation(withdraw, self, waiter):
    """A call that is cancelled at the moment in which it gets a place keeps it."""
    if waiter.state != "granted":
        withdraw(self, waiter)


@fault("service", "client.admission:Admission.leave")
def waiter_not_woken(leave, self, op, started, *, answered, asked=None):
    """Now and then a place becomes free and the call that waits for it is not woken."""
    if _uses % 10:
        leave(self, op, started, answered=answered, asked=asked)
    else:
        self.free += 1


@fault("service", "client.limits:Demand.take")
def turn_not_counted(take, self, now):
    """One of ten requests is not counted against the rates."""
    if _uses % 10:
        take(self, now)


@fault("service", "client.congestion:Congestion.answered")
def throttling_ignored(_, self, narrow, wide, *, sent_at, now, asked):  # noqa: ARG001
    """The client goes on as if the platform throttled nothing."""
    return False


@fault("service", "client.limits:Bucket.ready_at")
def held_back_is_released_at_once(ready_at, self, now, ahead=0):
    """Everything that waited leaves together when the platform takes requests again."""
    if type(self).__name__ == "Flow" and self.rate > 1:  # else hardly anything leaves yet
        return -1e9
    return ready_at(self, now, ahead)


@fault("service", "client.congestion:Flow._grow")
def never_grows_again(_, self):
    """A client that was slowed stays slow."""


@fault("service", "client.limits:AttemptTimes.add")
def need_ignored(_, self, seconds, *, now, answered):
    """A request leaves however near its deadline is."""


@fault("service", "client.congestion:Congestion.answered")
def whole_client_slowed(before, self, narrow, wide, *, sent_at, now, asked):
    """One throttled answer for a group slows all operations."""
    changed = before(self, narrow, wide, sent_at=sent_at, now=now, asked=asked)
    if asked is not None:
        for flow in self.flows.values():
            flow._set_rate(1.0)
    return changed


@fault("service", "timeouts:Deadlines._fire")
def timer_not_set_again(_, self):
    """The timer of the deadlines is not set again when it has fired."""
    now = time.monotonic()
    for scope, due in self.scopes.items():
        if due <= now:
            scope.cancel()


@fault("service", "client.retry:Retry.pause")
def never_is_retried(pause, self, op, error, attempt, codes):  # noqa: ARG001
    """What must not be repeated is sent again after a lost answer."""
    from rbim.operations.base import Repeat

    class Repeatable:
        repeat = Repeat.IDEMPOTENT

    return pause(self, Repeatable(), error, attempt, codes)


@fault("service", "client.call:Call._completed")
def earlier_attempts_forgotten(_, self, error):
    """The outcome of a call is that of its last attempt."""
    error.operation = self._op.spec.name
    error.attempts = tuple(self._history)
    return error


@fault("service", "timeouts:_Scope.take_back")
def cancellation_left_over(_, self):
    """A task whose call ended by its deadline is still counted as cancelled."""


# The inbox.


@fault("inbox", "callbacks.inbox.stored:DurableInbox.accept")
async def answered_before_it_is_stored(_, self, delivery, *, chain=None):  # noqa: ARG001
    """A delivery is answered before its transaction."""
    self._commits.begin(partial(self._store.accept, delivery))
    return True


@fault("inbox")
def newest_first():
    """The newest event of a conversation is handled first."""
    statements = import_module("rbim.callbacks.inbox.statements")
    newest = statements.OLDEST.replace("ORDER BY number", "ORDER BY number DESC")
    if newest == statements.OLDEST:
        raise NotPlanted(f"the events of a conversation are in another order: {newest}")
    statements.OLDEST = newest
    reached(1)


@fault("inbox")
def fence_dropped():
    """A result counts although its lease was lost to another process."""

    def faulty(settle, self, claims, result, *, more):
        conversation = claims[0].conversation
        found = self.database.execute("SELECT fence FROM conversation WHERE name = ?", (conversation,)).fetchone()
        return settle(self, [evolve(each, fence=found[0]) for each in claims] if found else claims, result, more=more)

    def nothing_lost(renew, self, claims):
        renew(self, claims)
        return []

    replace("callbacks.inbox.store:InboxStore._settle", faulty)
    replace("callbacks.inbox.store:InboxStore.renew", nothing_lost)


@fault("inbox")
def spool_overtaken():
    """A delivery is stored although the spool still has earlier ones of its conversation."""
    spool = import_module("rbim.callbacks.receiver.spool").Spool
    spool.holds = property(lambda self: False, lambda self, value: None)  # noqa: ARG005
    # counts that it is used
    replace("callbacks.receiver.spool:Spool.put", lambda put, self, delivery: put(self, delivery))


@fault("inbox", "callbacks.inbox.store:InboxStore._lease")
def lease_without_end(lease, self, name, fence, limit, *, crashes=0):
    """What a process that died was handling is never handled again."""
    self._lease_time = 1e9
    return lease(self, name, fence, limit, crashes=crashes)


@fault("inbox", "callbacks.inbox.store:InboxStore.retry")
def failure_is_done(_, self, claim, *, error, pause):  # noqa: ARG001
    """An event whose handler failed is recorded as done."""
    self.done((claim,), more=0)


@fault("inbox", "callbacks.receiver.intake:verify")
def body_not_compared(verify, headers, body, *, credentials, now, policy):
    """A body whose digest is not that of the headers is accepted."""
    signature = import_module("rbim.callbacks.signature")
    result = verify(headers, body, credentials=credentials, now=now, policy=policy)
    if getattr(result, "reason", None) is not signature.Reason.BODY_MISMATCH:
        return result
    checksum, digest, cur_time = signature._signed_headers(headers)
    key = credentials.match(digest + cur_time, checksum.lower())
    return signature.Verified(key=key, age=0.0, cur_time=int(cur_time))


@fault("inbox", "callbacks.worker.worker:_Run._interrupt")
def free_place_not_used(_, self):
    """A worker whose places were all taken does not see that one is free."""


@fault("inbox", "callbacks.inbox.store:InboxStore._lease")
def retried_alone_is_buried(lease, self, name, fence, limit, *, crashes=0):
    """What a process was handling when it died is buried."""
    return lease(self, name, fence, limit, crashes=100 if crashes else 0)


@fault("inbox", "callbacks.inbox.store:InboxStore._lease")
def crashes_not_counted(lease, self, name, fence, limit, *, crashes=0):
    """A message that kills its process is handled again for ever."""
    return lease(self, name, fence, limit, crashes=min(crashes, 1))


@fault("inbox", "callbacks.inbox.store:_content")
def other_content_dropped(_, body):
    """A delivery with a known msgId and other content is taken for a resend."""


@fault("inbox", "storage.sqlite:InPlace.require")
def lost_inbox_not_noticed(_, self):
    """Whether the file of an inbox is still in its place is not looked at."""


# The inbox on trio: faults of the inbox once more.
for _name in ("answered-before-it-is-stored", "newest-first", "failure-is-done", "retried-alone-is-buried"):
    PLANTED[f"{_name}-on-trio"] = evolve(PLANTED[_name], name=f"{_name}-on-trio", scenario="trio_inbox")
