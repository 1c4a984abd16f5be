"""Faults put into rbim on purpose: a scenario that does not find them proves nothing.

They replace what is inside rbim, so this is the one file that a change of its inside may break. :class:`NotPlanted` then
says which fault to write anew. It is raised where what a fault replaces is gone or takes other parameters.
"""

from __future__ import annotations

import inspect
import sqlite3
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PLANTED", "NotPlanted", "PlantedFault", "fault", "plant", "reached", "replace", "replace_text", "used"]


class NotPlanted(Exception):
    """The fault does not apply to rbim as it is now."""


@frozen
class PlantedFault:
    """A fault by name: the scenario that must find it, what it does, and the function that plants it."""

    name: str
    scenario: str
    what: str
    plant: Callable[[], object]


PLANTED: dict[str, PlantedFault] = {}

_uses = 0


def plant(name: str) -> None:
    """Plant a fault in this process. Raises NotPlanted."""
    try:
        PLANTED[name].plant()
    except (ImportError, AttributeError) as error:
        raise NotPlanted(f"{name}: {error}") from error


def used() -> int:
    """Return how often the faulty code was reached."""
    return _uses


def reached(times: int) -> None:
    """Note that the faulty code was reached so often in another process."""
    global _uses  # noqa: PLW0603  # one fault to a process
    _uses += times


def fault(scenario: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Make a function that plants a fault known by its name, for a scenario."""

    def keep(function: Callable[[], object]) -> Callable[[], object]:
        name = function.__name__.replace("_", "-")
        PLANTED[name] = PlantedFault(name, scenario, inspect.getdoc(function) or "", function)
        return function

    return keep


def replace(owner: Any, name: str, faulty: Any) -> None:
    """Put a faulty function in the place of a function that takes the same parameters."""
    original = vars(owner).get(name)
    if original is None:
        raise NotPlanted(f"{owner.__name__} has no {name}")
    old, new = (list(inspect.signature(each).parameters) for each in (original, faulty))
    if old != new:
        raise NotPlanted(f"{owner.__name__}.{name} takes {', '.join(old)}, and not {', '.join(new)}")

    @wraps(original)
    def counted(*args: Any, **options: Any) -> Any:
        global _uses  # noqa: PLW0603  # one fault to a process
        _uses += 1
        return faulty(*args, **options)

    setattr(owner, name, counted)


def replace_text(owner: Any, name: str, right: str, wrong: str) -> None:
    """Put another text into a constant, such as an SQL statement."""
    global _uses  # noqa: PLW0603  # one fault to a process
    text = getattr(owner, name)
    if right not in text:
        raise NotPlanted(f"{owner.__name__}.{name} does not contain {right!r}")
    setattr(owner, name, text.replace(right, wrong))
    _uses += 1


# The job.


@fault("job")
def never_synced() -> None:
    """Commits are not synced once the input is loaded."""
    from rbim.bulk.journal.journal import Journal

    set_fast_writes = Journal.set_fast_writes
    replace(Journal, "set_fast_writes", lambda self, loading: set_fast_writes(self, loading=True))  # noqa: ARG005


@fault("job")
def intent_not_written() -> None:
    """A request leaves although its intent is not in the journal."""
    from rbim.bulk.journal.planning import Planner

    record_intents = Planner.record_intents

    def faulty(self: Any, chunks: Any) -> None:
        record_intents(self, chunks)
        for chunk in chunks[:1]:
            self._database.execute("DELETE FROM request WHERE id = ?", (chunk.number,))

    replace(Planner, "record_intents", faulty)


@fault("job")
def double_not_marked() -> None:
    """What is sent again after a crash is not marked as resent."""
    from rbim.bulk.journal.planning import Planner

    left_over = Planner._left_over

    def faulty(self: Any, limit: Any) -> Any:
        chunks = left_over(self, limit)
        for chunk in chunks:
            chunk.resent = False
        return chunks

    replace(Planner, "_left_over", faulty)


@fault("job")
def request_not_marked() -> None:
    """A request leaves without a mark, and a killed process is thought not to have sent it."""
    from rbim.bulk.journal.journal import Journal

    replace(Journal, "mark", lambda self, chunk, at: None)  # noqa: ARG005


@fault("job")
def mark_released_early() -> None:
    """The mark of a request is used again before its outcome is durable."""
    from rbim.bulk.dispatcher import Dispatcher

    settled = Dispatcher._settled

    def faulty(self: Any, chunk: Any, settlement: Any, elapsed: Any, again: Any = None) -> None:
        settled(self, chunk, settlement, elapsed, again)
        self._journal.forget_mark(chunk)

    replace(Dispatcher, "_settled", faulty)


@fault("job")
def boot_not_compared() -> None:
    """Marks are believed after a loss of power, which has taken some of them."""
    from rbim.bulk.journal import journal as module, marks

    read_marks = module.read_marks

    def faulty(journal: Any, run: Any) -> Any:
        boot, path = marks._boot, marks.marks_path(journal)
        if path.exists():
            named = path.read_bytes()[8:48].rstrip(b"\0")
            marks._boot = lambda: named
        try:
            return read_marks(journal, run)
        finally:
            marks._boot = boot

    replace(module, "read_marks", faulty)


@fault("job")
def never_is_repeated() -> None:
    """What must not be repeated is sent again after a lost answer."""
    from rbim.bulk import failure_policy
    from rbim.operations.base import Repeat

    unknown = failure_policy._unknown

    def faulty(op: Any, chunk: Any, error: Any, reason: Any, *, retry: Any, dialect: Any) -> Any:
        class Repeatable:
            repeat = Repeat.IDEMPOTENT
            spec = op.spec

        return unknown(Repeatable(), chunk, error, reason, retry=retry, dialect=dialect)

    replace(failure_policy, "_unknown", faulty)


@fault("job")
def rate_forgotten() -> None:
    """Nine of ten requests are not counted against the rates."""
    from rbim.client.limits import RateLimiter

    take = RateLimiter.take

    def faulty(self: Any, op: Any, now: Any) -> None:
        if _uses % 10 == 0:
            take(self, op, now)

    replace(RateLimiter, "take", faulty)


@fault("job")
def refused_again_is_done() -> None:
    """An account that the answer to a resent request refuses is recorded as done."""
    from rbim.bulk.work import Work

    answered = Work.answered

    def faulty(self: Any, chunk: Any, answer: Any) -> Any:
        settlement = answered(self, chunk, answer)
        return evolve(settlement, individual=()) if chunk.resent else settlement

    replace(Work, "answered", faulty)


@fault("job")
def wake_up_lost() -> None:
    """Now and then the end of a request does not wake the dispatcher."""
    from rbim.bulk.dispatcher import Dispatcher

    notify = Dispatcher._notify

    def faulty(self: Any) -> None:
        if _uses % 50 > 1:  # the end of a request wakes it twice
            notify(self)

    replace(Dispatcher, "_notify", faulty)


@fault("job")
def lock_not_taken() -> None:
    """Two processes may run one job."""
    from rbim.bulk.journal.lock import JobLock

    replace(JobLock, "acquire", lambda self: None)  # noqa: ARG005


@fault("job")
def place_leaked() -> None:
    """Now and then the place of a request that has ended stays taken."""
    from rbim.bulk import dispatcher
    from rbim.bulk.dispatcher import Dispatcher

    send = Dispatcher._send

    async def faulty(self: Any, chunk: Any) -> None:
        try:
            await send(self, chunk)
        finally:
            if not _uses % 40:
                self._workers.add(dispatcher._Worker(chunk))

    replace(Dispatcher, "_send", faulty)


@fault("job")
def outcome_guessed() -> None:
    """A connection that was reset is taken for a request that was not sent."""
    from rbim.bulk import dispatcher
    from rbim.errors import NotSent, Unanswered

    judge = dispatcher.judge

    def faulty(op: Any, chunk: Any, error: Any, *, retry: Any, dialect: Any) -> Any:
        guessed = NotSent("guessed") if isinstance(error, Unanswered) else error
        return judge(op, chunk, guessed, retry=retry, dialect=dialect)

    replace(dispatcher, "judge", faulty)


@fault("job")
def open_requests_forgotten() -> None:
    """What a killed run has left open is neither sent again nor reported as unknown."""
    from rbim.bulk.journal.journal import Journal

    replace(Journal, "recover", lambda self, on_unknown, resend_within: None)  # noqa: ARG005


@fault("job")
def concurrency_exceeded() -> None:
    """Some requests more than configured may be in flight."""
    from rbim.bulk.dispatcher import Dispatcher
    from rbim.bulk.pace.controller import PaceController

    concurrency, take = PaceController.concurrency, Dispatcher._take

    def faulty(self: Any) -> Any:
        self._unrecorded -= 3
        try:
            return take(self)
        finally:
            self._unrecorded += 3

    replace(PaceController, "concurrency", lambda self, _now: concurrency(self, _now) + 3)
    replace(Dispatcher, "_take", faulty)


@fault("job")
def half_lost() -> None:
    """Of a request that was split, the second half is not sent."""
    from rbim.bulk.journal import journal

    halve = journal.halve
    replace(journal, "halve", lambda database, whole: halve(database, whole)[:1])


@fault("job")
def refusal_is_failure_after_loss() -> None:
    """A refusal that follows a lost sending is taken for a certain failure."""
    from rbim.bulk import dispatcher, failure_policy
    from rbim.bulk.work import AccountState

    for module in (failure_policy, dispatcher):
        replace(module, "failed", lambda chunk: AccountState.FAILED)  # noqa: ARG005


@fault("job")
def chance_is_a_limit() -> None:
    """Every throttled answer lowers the rate, as if nothing were throttled by chance."""
    from rbim.bulk.pace.rate import AdaptiveRate

    replace(AdaptiveRate, "_is_too_much", lambda self, now, halt: True)  # noqa: ARG005
    replace(AdaptiveRate, "_begin_test", lambda self, now, share, halt: self._lower(now, halt))  # noqa: ARG005


@fault("job")
def reserved_is_not_pending() -> None:
    """Requests that were handed out and have not left do not count against rates."""
    from rbim.bulk.pace.rate import AdaptiveRate
    from rbim.client.limits import RateLimiter

    replace(RateLimiter, "grant", lambda self, op, now: None)  # noqa: ARG005
    replace(AdaptiveRate, "earliest", lambda self, now: self._due)  # noqa: ARG005


# The service.


@fault("service")
def place_kept_on_cancellation() -> None:
    """A call that is cancelled at the moment in which it gets a place keeps it."""
    from rbim.client.admission import Admission

    withdraw = Admission._withdraw  # pyright: ignore[reportPrivateUsage]

    def faulty(self: Any, waiter: Any) -> None:
        if waiter.state != "granted":
            withdraw(self, waiter)

    replace(Admission, "_withdraw", faulty)


@fault("service")
def token_kept_on_cancellation() -> None:
    """A call that is cancelled while it waits for a rate takes its token all the same."""
    from rbim.client.admission import Admission

    withdraw = Admission._withdraw  # pyright: ignore[reportPrivateUsage]

    def faulty(self: Any, waiter: Any) -> None:
        if waiter.state == "waiting":
            waiter.demand.take(self._clock.monotonic())
        withdraw(self, waiter)

    replace(Admission, "_withdraw", faulty)


@fault("service")
def waiter_not_woken() -> None:
    """Now and then a place becomes free and the call that waits for it is not woken."""
    from rbim.client.admission import Admission

    leave = Admission.leave

    def faulty(self: Any, op: Any, started: float, *, answered: bool) -> None:
        if _uses % 10:
            leave(self, op, started, answered=answered)
        else:
            self.free += 1

    replace(Admission, "leave", faulty)


@fault("service")
def sleeper_not_replaced() -> None:
    """When the call that sleeps until the next turn leaves the queue, no other one does so."""
    from rbim.client.admission import Admission

    replace(Admission, "_keep_watch", lambda self, now: None)  # noqa: ARG005


@fault("service")
def place_not_asked_for() -> None:
    """A call that need not wait for a rate takes a place that is not there."""
    from rbim.client.admission import Admission

    def faulty(self: Any) -> bool:
        self.free -= 1
        return True

    replace(Admission, "take", faulty)


@fault("service")
def turn_not_counted() -> None:
    """One of ten requests is not counted against the rates."""
    from rbim.client.demands import Demand

    take = Demand.take

    def faulty(self: Any, now: Any) -> None:
        if _uses % 10:
            take(self, now)

    replace(Demand, "take", faulty)


@fault("service")
def halt_ignored() -> None:
    """Requests leave although the platform has asked for quiet."""
    from rbim.client.halts import Halts

    replace(Halts, "until", lambda self, scope: -1e9)  # noqa: ARG005


@fault("service")
def need_ignored() -> None:
    """A request leaves however near its deadline is."""
    from rbim.client.demands import AttemptTimes

    replace(AttemptTimes, "add", lambda self, seconds, *, now, answered: None)  # noqa: ARG005


@fault("service")
def always_first_come() -> None:
    """Calls are always served in the order in which they came, also when callers give up."""
    from rbim.client.queue import _Level  # pyright: ignore[reportPrivateUsage]

    replace(_Level, "newest_first", lambda self, now: False)  # noqa: ARG005


@fault("service")
def jobs_go_first() -> None:
    """The requests of a job leave before the calls beside it."""
    from rbim.client.queue import Queue

    choose = Queue.next

    def faulty(self: Any, now: float) -> Any:
        return self._low.next(now) or choose(self, now)

    replace(Queue, "next", faulty)


@fault("service")
def whole_client_halted() -> None:
    """One throttled answer halts everything."""
    from rbim.client.halts import Halts

    throttled = Halts.throttled

    def faulty(self: Any, narrow: Any, wide: Any, *, seconds: float, now: float, calls: int) -> None:
        throttled(self, narrow, wide, seconds=seconds, now=now, calls=calls)
        for watched in self._watched.values():
            watched.halted_until = now + seconds

    replace(Halts, "throttled", faulty)


@fault("service")
def deadline_not_kept() -> None:
    """A call is cancelled half a second after its deadline."""
    from rbim.timeouts import Deadlines

    scope = Deadlines.scope
    replace(Deadlines, "scope", lambda self, seconds: scope(self, seconds + 0.5))


@fault("service")
def timer_not_set_again() -> None:
    """The timer of the deadlines is not set again when it has fired."""
    import time

    from rbim.timeouts import Deadlines

    def faulty(self: Any) -> None:
        now = time.monotonic()
        for scope in self.scopes:
            if scope.due <= now:
                scope.cancel()

    replace(Deadlines, "_fire", faulty)


@fault("service")
def not_sent_is_claimed() -> None:
    """A call that is ended by its deadline says that nothing was sent."""
    from rbim.client.call import Call
    from rbim.errors import DeadlineExceeded, Outcome

    completed = Call._completed

    def faulty(self: Any, error: Any) -> Any:
        if isinstance(completed(self, error), DeadlineExceeded):
            error.outcome = Outcome.NOT_SENT
        return error

    replace(Call, "_completed", faulty)


@fault("service")
def never_is_retried() -> None:
    """What must not be repeated is sent again after a lost answer."""
    from rbim.client.retry import Retry
    from rbim.operations.base import Repeat

    pause = Retry.pause

    def faulty(self: Any, op: Any, error: Any, attempt: Any, codes: Any) -> Any:  # noqa: ARG001
        class Repeatable:
            repeat = Repeat.IDEMPOTENT

        return pause(self, Repeatable(), error, attempt, codes)  # type: ignore[arg-type]  # as much as is asked of it

    replace(Retry, "pause", faulty)


@fault("service")
def earlier_attempts_forgotten() -> None:
    """The outcome of a call is that of its last attempt."""
    from rbim.client.call import Call

    def faulty(self: Any, error: Any) -> Any:
        error.operation = self._op.spec.name
        error.attempts = tuple(self._history)
        return error

    replace(Call, "_completed", faulty)


@fault("service")
def cancellation_left_over() -> None:
    """A task whose call ended by its deadline is still counted as cancelled."""
    from rbim.timeouts import _Scope

    def faulty(self: Any, kind: Any, error: Any, trace: Any) -> bool:  # noqa: ARG001
        del self._deadlines.scopes[self]
        self._task = None
        return bool(self._asked) and kind is not None

    replace(_Scope, "__exit__", faulty)


@fault("service")
def calls_outlive_their_client() -> None:
    """To leave the client does not end the calls that run."""
    from rbim.client import client

    async def faulty(shared: Any, *error: Any) -> None:
        await shared.transport.__aexit__(*error)

    replace(client, "_end", faulty)


# The inbox.


@fault("inbox")
def answered_before_it_is_stored() -> None:
    """A delivery is answered before its transaction."""
    from functools import partial

    from rbim.callbacks.inbox.sqlite import SqliteInbox

    async def faulty(self: Any, delivery: Any, *, chain: Any = None) -> bool:  # noqa: ARG001
        self._open.begin(partial(self._store.accept, delivery))
        return True

    replace(SqliteInbox, "accept", faulty)


@fault("inbox")
def newest_first() -> None:
    """The newest event of a conversation is handled first."""
    from rbim.callbacks.inbox import statements

    replace_text(statements, "OLDEST_IN_CONVERSATION", "ORDER BY number", "ORDER BY number DESC")


@fault("inbox")
def fence_dropped() -> None:
    """A result counts although its lease was lost to another process."""
    from rbim.callbacks.inbox.statements import InboxStore

    settle = InboxStore._settle

    def faulty(self: Any, claims: Any, result: Any, *, more: Any) -> Any:
        conversation = claims[0].conversation
        found = self._database.execute("SELECT fence FROM conversation WHERE name = ?", (conversation,)).fetchone()
        return settle(self, [evolve(each, fence=found[0]) for each in claims] if found else claims, result, more=more)

    replace(InboxStore, "_settle", faulty)


@fault("inbox")
def spool_overtaken() -> None:
    """A delivery is stored although the spool still has earlier ones of its conversation."""
    from rbim.callbacks.receiver.spool import Spool

    replace(Spool, "holds", lambda self, conversation: False)  # noqa: ARG005


@fault("inbox")
def lease_without_end() -> None:
    """What a process that died was handling is never handled again."""
    from rbim.callbacks.inbox.statements import InboxStore

    lease = InboxStore._lease

    def faulty(self: Any, conversation: Any, fence: Any, limit: Any, *, boot: Any) -> Any:
        self._lease_time = 1e9
        return lease(self, conversation, fence, limit, boot=boot)

    replace(InboxStore, "_lease", faulty)


@fault("inbox")
def lease_not_renewed() -> None:
    """The lease of a handler that takes long is not renewed."""
    from rbim.callbacks.inbox.statements import InboxStore

    replace(InboxStore, "renew", lambda self, claims: None)  # noqa: ARG005


@fault("inbox")
def result_not_recorded() -> None:
    """Now and then the result of a handler is not recorded."""
    from rbim.callbacks.inbox.sqlite import _Backlog

    done = _Backlog.done

    async def faulty(self: Any, claims: Any, *, more: Any) -> Any:
        return () if claims[0].number % 7 == 0 else await done(self, claims, more=more)

    replace(_Backlog, "done", faulty)


@fault("inbox")
def failure_is_done() -> None:
    """An event whose handler failed is recorded as done."""
    from rbim.callbacks.inbox.statements import InboxStore

    def faulty(self: Any, claim: Any, *, error: Any, pause: Any) -> None:  # noqa: ARG001
        self.done((claim,), more=0)

    replace(InboxStore, "retry", faulty)


@fault("inbox")
def body_not_compared() -> None:
    """A body whose digest is not that of the headers is accepted."""
    from rbim.callbacks import signature
    from rbim.callbacks.receiver import intake

    verify = intake.verify

    def faulty(headers: Any, body: Any, *, credentials: Any, now: Any, policy: Any) -> Any:
        result = verify(headers, body, credentials=credentials, now=now, policy=policy)
        if getattr(result, "reason", None) is not signature.Reason.BODY_MISMATCH:
            return result
        checksum, digest, cur_time = signature._signed_headers(headers)  # type: ignore[misc]  # they were found
        key = credentials.match(digest + cur_time, checksum.lower())
        return signature.Verified(key=key, age=0.0, cur_time=int(cur_time))

    replace(intake, "verify", faulty)


@fault("inbox")
def resend_not_recognised() -> None:
    """A delivery that was stored before is stored again."""
    from rbim.callbacks.receiver import intake

    delivery_of = intake.delivery_of

    def faulty(body: Any, *, app_id: Any, received: Any) -> Any:
        delivery = delivery_of(body, app_id=app_id, received=received)
        return delivery.replace(key=f"{_uses:032x}")

    replace(intake, "delivery_of", faulty)


@fault("inbox")
def spool_keeps_nothing() -> None:
    """What the inbox does not store in time is answered 200 and dropped."""
    from rbim.callbacks.receiver.spool import Spool

    async def faulty(self: Any, delivery: Any, order: int) -> None: ...

    replace(Spool, "accept", faulty)


@fault("inbox")
def free_place_not_used() -> None:
    """A worker whose places were all taken does not see that one is free."""
    from rbim.callbacks.worker.worker import _Run

    replace(_Run, "_interrupt", lambda self: None)  # noqa: ARG005


@fault("inbox")
def dead_letters_not_replayed() -> None:
    """A replay leaves dead letters out."""
    from rbim.callbacks.inbox import archive_statements

    replace_text(archive_statements, "REPLAY", "state = 2 OR ", "")


@fault("inbox")
def unavailable_is_accepted() -> None:
    """A delivery that neither inbox nor spool has stored is answered 200."""
    from rbim.callbacks.receiver.intake import Intake

    async def faulty(self: Any, delivery: Any, order: int) -> bool:
        await spooled(self, delivery, order)
        return True

    spooled = Intake._spooled
    replace(Intake, "_spooled", faulty)


@fault("inbox")
def dead_letter_without_attempts() -> None:
    """The last attempt is left out before an event is buried."""
    from rbim.callbacks.worker.backoff import Backoff

    pause = Backoff.pause
    replace(Backoff, "pause", lambda self, attempt: pause(self, attempt + 1))


@fault("inbox")
def suspects_are_buried() -> None:
    """What a process was handling when it died is buried."""
    from rbim.callbacks.inbox.statements import InboxStore

    claim_suspect = InboxStore._claim_suspect

    def faulty(self: Any, held: Any) -> Any:
        claim = claim_suspect(self, held)
        return None if claim is None else evolve(claim, crashes=100)

    replace(InboxStore, "_claim_suspect", faulty)


@fault("inbox")
def crashes_not_counted() -> None:
    """A message that kills its process is handled again for ever."""
    from rbim.callbacks.inbox.statements import InboxStore

    claim_suspect = InboxStore._claim_suspect

    def faulty(self: Any, held: Any) -> Any:
        claim = claim_suspect(self, held)
        return None if claim is None else evolve(claim, crashes=1)

    replace(InboxStore, "_claim_suspect", faulty)


@fault("inbox")
def stopping_not_noted() -> None:
    """A process that is killed while it leaves counts as a crash."""
    from rbim.callbacks.inbox.statements import InboxStore

    replace(InboxStore, "absolve", lambda self, claims: None)  # noqa: ARG005


@fault("inbox")
def renewal_not_tried_again() -> None:
    """A renewal of leases that failed is not tried again before a third of the lease is over."""
    from rbim.callbacks.worker.worker import _Run

    async def faulty(self: Any, scope: Any) -> None:
        with scope:
            while True:
                await self._clock.sleep(self._lease / 3)
                with suppress(sqlite3.Error):
                    await self._backlog.renew([runner.claim for runner in self._runners])

    replace(_Run, "_renew", faulty)


@fault("inbox")
def worker_not_restarted() -> None:
    """A worker that has ended by itself is not started again."""
    from rbim.callbacks.worker.backoff import Supervision

    ended = Supervision.ended

    def faulty(self: Any, error: Any) -> float:
        ended(self, error)
        return 1e9

    replace(Supervision, "ended", faulty)


@fault("inbox")
def one_delivery_at_a_time() -> None:
    """Each delivery of a conversation has a transaction of its own."""
    from rbim.callbacks.receiver.intake import _Line

    begin = _Line.__init__

    def faulty(self: Any, *, at_once: Any) -> None:  # noqa: ARG001
        begin(self, at_once=False)

    replace(_Line, "__init__", faulty)


@fault("inbox")
def one_result_at_a_time() -> None:
    """Each result of a conversation has a transaction of its own, and the next event waits for it."""
    from rbim.callbacks.worker.conversation import ConversationRunner

    next_one = ConversationRunner._next

    async def faulty(self: Any) -> bool:
        self._shared.unrecorded += 1000
        try:
            return await next_one(self)
        finally:
            self._shared.unrecorded -= 1000

    replace(ConversationRunner, "_next", faulty)


@fault("inbox")
def chain_not_broken() -> None:
    """A delivery is stored although an earlier one of its conversation was not."""
    from rbim.storage.group_commit import Chain

    replace(Chain, "fail", lambda self, error, at=0: None)  # noqa: ARG005


@fault("inbox")
def other_content_dropped() -> None:
    """A delivery with a known msgId and other content is taken for a resend."""
    from rbim.callbacks.inbox import statements

    replace(statements, "is_resend", lambda body, known: True)  # noqa: ARG005


@fault("inbox")
def lost_inbox_not_noticed() -> None:
    """Whether the file of an inbox is still in its place is not looked at."""
    from rbim.storage.in_place import InPlace

    replace(InPlace, "require", lambda self: None)  # noqa: ARG005


# The inbox on trio: faults of the inbox once more.


@fault("trio_inbox")
def answered_before_it_is_stored_on_trio() -> None:
    """A delivery is answered before its transaction."""
    answered_before_it_is_stored()


@fault("trio_inbox")
def newest_first_on_trio() -> None:
    """The newest event of a conversation is handled first."""
    newest_first()


@fault("trio_inbox")
def failure_is_done_on_trio() -> None:
    """An event whose handler failed is recorded as done."""
    failure_is_done()


@fault("trio_inbox")
def suspects_are_buried_on_trio() -> None:
    """What a process was handling when it died is buried."""
    suspects_are_buried()
