"""What must hold of a service: judged by what left, what the platform did, and what the callers wrote down.

What was possible comes from a model that knows rates, places and deadlines, and serves calls one by one: :func:`possible`.
"""

import asyncio
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from heapq import heappop, heappush
from statistics import NormalDist

from rbim.client.observers import AttemptEnded, AttemptStarted, CallEnded, CallStarted
from rbim.errors import Outcome
from rbim.timeouts import Deadlines

from .virtual_time import TIME

NEVER = frozenset({"create", "confirm", "join"})
"""Kinds of calls that must not be repeated."""

SOON = 0.08
"""Seconds after its deadline in which a call ends: rbim gives transports 0.05 s."""

AT_ONCE = 0.01
"""Seconds in which a call ends that was cancelled, or whose deadline passed before anything left."""

UNEVEN = 0.5
"""Requests too many in a window that rounding may explain."""

STORM, CALM_FROM = 8.0, 20.0
"""In a throttled service: seconds until the platform takes what comes, and until all is well again."""

IN_VAIN = 30
"""Requests that leave in three seconds at most in which everything is throttled, and 60 calls come."""

HERD = 40
"""Requests that leave within half a second at most in a throttled service, to which 20 come in a second."""

NEIGHBOURLY = 1.0
"""Seconds that a call waits at most because of calls of another rate or group, or of a job."""

SETTLING = 5.0
"""Seconds after trouble in which a service need not be at its best again."""

GROWING = 20.0
"""Seconds that a client needs to find out that the platform takes ten times as much as before."""

SHARE = 0.75
"""Share of what was possible that must be answered in time."""

FEW = 10
"""Calls that may be missing in a comparison with what was possible."""


class Counting:
    """An observer: each call and each attempt that begins must end, once."""

    def __init__(self):
        self.calls = Counter()
        self.attempts = Counter()
        self.wrong = []

    def __call__(self, observation):
        call = observation.call
        match observation:
            case CallStarted():
                self.calls[call] += 1
            case AttemptStarted():
                self.attempts[call] += 1
            case AttemptEnded():
                self.attempts[call] -= 1
            case CallEnded():
                self.calls[call] -= 1
                if self.calls[call] or self.attempts[call]:
                    self.wrong.append(f"call {call}: {self.calls[call]} and {self.attempts[call]} open at its end")


# While the service runs.


def check_concurrency(service, sending):
    """Check that no more requests are in flight than configured."""
    most, count = service.sizes.concurrency, service.network.in_flight[service.process]
    if count >= most:
        service.world.happened["places-full"] += 1
    service.world.check("concurrency holds", count <= most, lambda: f"{sending} is the {count}th in flight of {most}")


def check_end(service, call):
    """Check when a call ended, and that only those are cancelled who were."""
    world, late = service.world, service.blocked
    task = asyncio.current_task()
    assert task is not None
    asked = call.way in {"cancel", "aimed"} and call.began + call.patience <= TIME.now + AT_ONCE
    world.check("nobody is cancelled but who was", call.end != "cancelled" or asked, lambda: str(call))
    left_over = 0 if asked else task.cancelling()
    world.check("no cancellation is left over", not left_over, lambda: f"cancelling() is {left_over}: {call}")
    if call.way in {"timeout", "cancel", "aimed"} and call.patience < service.sizes.deadline:
        in_time = call.ended <= call.began + call.patience + AT_ONCE + late
        world.check("who gives up returns at once", in_time, lambda: str(call))
    world.check("callers return soon after their deadline", call.ended <= call.latest + SOON + late, lambda: str(call))
    if not call.handed:
        in_time = call.ended <= call.latest + AT_ONCE + late
        if not in_time:
            world.happened["deadline-in-queue"] += 1
        world.check("a deadline before anything is sent is exact", in_time, lambda: str(call))


def check_leaving(service):
    """Check that to leave the client ends all calls."""
    took = TIME.now - service.left_at
    service.world.check("leaving ends every call", took <= AT_ONCE, f"it took {took:.3f} s")
    load, running = service.client.load, [each for each in service.calls if each.began < math.inf and each.end == "running"]
    told = f"{load}, {service.network.in_flight[service.process]} in flight, {len(running)} callers still wait"
    ended = not (load.calls or load.in_flight or load.waiting or service.network.in_flight[service.process])
    service.world.check("leaving ends every call", ended, told)


def check_left(service):
    """Check that nothing runs any more in the process once everybody has ended."""
    world = service.world
    tasks = [each for each in service.process._tasks if not each.done()]
    timers = [
        each
        for each in world.loop._scheduled
        if not each.cancelled() and isinstance(getattr(each._callback, "__self__", None), Deadlines)
    ]
    scopes = service.client._deadlines.scopes if service.client._deadlines is not None else ()
    told = f"{len(tasks)} tasks, {len(timers)} timers, {len(scopes)} deadlines"
    world.check("nothing is left running", not (tasks or timers or scopes), told)
    broken = [repr(each.exception()) for each in service.tasks if not each.cancelled() and each.exception() is not None]
    world.check("only rbim's errors come out of a call", not broken, "; ".join(broken[:3]))
    late = [each for each in service.calls if service.left_at < each.ended - AT_ONCE and each.began < service.left_at]
    world.check("leaving ends every call", not late, lambda: str(late[0]))


# At the end.


def check_all(service):
    """Check everything that can be judged once everybody has ended and everything has arrived."""
    for call in [*service.calls, *service.probes]:
        _check_outcome(service, call)
        _check_repeats(service, call)
    _check_observed(service)
    _check_rates(service)
    _check_probes(service)
    _check_situation(service)


def _check_outcome(service, call):
    """Check that what a caller was told is so."""
    world, sent = service.world, call.sendings
    effects = [each for each in sent if each.effect]
    reached = [each for each in sent if each.arrived is not None]
    if call.end == "answered":
        done = reached if call.kind == "detail" else effects
        world.check("what was answered was done", done, lambda: str(call))
    if call.attempts is not None:
        world.check(
            "every attempt is told", call.attempts == call.handed, lambda: f"{call.attempts} of {call.handed}: {call}"
        )
    error = call.error
    if error is None:
        return
    told = len(error.attempts)
    world.check("every attempt is told", told == call.handed, lambda: f"{told} of {call.handed}: {call}")
    world.check("not sent is not sent", error.outcome is not Outcome.NOT_SENT or not sent, lambda: str(call))
    world.check("refused had no effect", error.outcome is not Outcome.REFUSED or not effects, lambda: str(call))
    unknown = error.outcome is Outcome.UNKNOWN
    world.check("unknown only where something was sent", not unknown or call.handed, lambda: str(call))


def _check_repeats(service, call):
    """Check that what must not be repeated was sent again only when it certainly had no effect."""
    if call.kind not in NEVER:
        return
    effects = [each for each in call.sendings if each.effect]
    service.world.check("never is at most once", len(effects) <= 1, lambda: str(call))
    certain = all(_had_no_effect(each) for each in call.sendings[:-1])
    service.world.check("never is sent again only if it had no effect", certain, lambda: str(call))


def _had_no_effect(sending):
    """Tell whether its sender could know that a request had no effect: the platform said so, and the answer came."""
    answered = sending.arrived is not None and sending.ended is not None and sending.ended > sending.arrived
    return sending.fate == "ok" and answered and not sending.effect


def _check_observed(service):
    observer = service.observer
    open_calls = [call for call, count in (*observer.calls.items(), *observer.attempts.items()) if count]
    told = f"{len(open_calls)} did not; {'; '.join(observer.wrong[:3])}"
    service.world.check("observers see everything end, once", not open_calls and not observer.wrong, told)


def _counts(rate, operation, group):
    """Tell whether a rate counts a request."""
    concerned = not rate.operations or operation in {each.spec.name for each in rate.operations}
    return concerned and not (rate.each_group and group is None)


def _check_rates(service):
    """Check each rate against the times at which requests left: in any window, and for each group on its own."""
    for rate in service.sizes.rates:
        streams = defaultdict(list)
        for sending in service.network.sendings:
            group = sending.body.get("groupId")
            if _counts(rate, sending.operation, group):
                streams[group if rate.each_group else None].append(sending.left)
        service.world.check_rate(rate, streams.values(), UNEVEN)


def _check_probes(service):
    """Check that a service which has come to rest serves at once, with all its places."""
    world, probes = service.world, service.probes
    if not probes:
        return
    waits = [each.sendings[0].left - each.began if each.sendings else math.inf for each in probes]
    world.check("at rest a call waits for nothing", max(waits) <= NEIGHBOURLY, lambda: f"{max(waits):.1f} s: {probes[0]}")
    unanswered = [each for each in probes if each.end != "answered" and not _was_late(each)]
    world.check("at rest every call is answered", not unanswered, lambda: f"all but {len(unanswered)} of {len(probes)}")


def _was_late(probe):
    """Tell whether the network took longer than an attempt may; after a storm no retry may be left for that."""
    return bool(probe.sendings) and probe.sendings[-1].facts.get("late", False)


# What was possible.


def _in_time(call, begin, end):
    return call.end == "answered" and begin <= call.ended < end


def _check_goodput(service, invariant, begin):
    """Check that about as many calls are answered in time, from ``begin`` to the last call, as is possible."""
    end = min(service.sizes.span, service.left_at)
    alive = [each for each in service.calls if each.ended > begin and each.began < end]
    done = sum(_in_time(each, begin, end) for each in alive)
    could = possible(service, alive, begin, end)
    ends = Counter(each.end for each in alive)
    told = f"{done} answered from {begin:.0f} to {end:.0f} s; {could} were possible of {len(alive)}; {dict(ends)}"
    service.world.check(invariant, done >= SHARE * could - FEW, told)


def possible(service, calls, begin, end):
    """Return how many calls one can expect to answer in time who knows what a client can know.

    That is rates, places, the usual time of an answer and the deadlines of calls; not the future, and not when a caller
    gives up whose ``asyncio.timeout`` or cancellation a client does not see. They are served by their deadlines, or the
    newest first, whichever is better: nobody must do worse.
    """
    told = list(calls)
    return int(max(_served(service, told, begin, end, newest_first=each) for each in (False, True)))


def _served(service, calls, begin, end, *, newest_first):
    model, coming, number = _Model(service, newest_first=newest_first), sorted(calls, key=lambda each: each.began), 0
    answered, now = 0.0, begin
    while now < end:
        while number < len(coming) and coming[number].began <= now:
            model.add(coming[number])
            number += 1
        served, next_turn = model.serve(now)
        if served is not None:
            answered += model.odds(served.gives_up - now) if now + model.slowest < end else 0.0
        else:
            now = min(next_turn, coming[number].began if number < len(coming) else end)
    return answered


class _Model:
    """A client with all the insight that one can have: what waits, by operation and group; turns and places."""

    def __init__(self, service, *, newest_first):
        weather = self._weather = service.weather
        self._newest_first = newest_first
        self._rates, self._concurrency = service.sizes.rates, service.sizes.concurrency
        self._usual = weather.latency * math.exp(weather.spread**2 / 2)
        self.slowest = weather.latency * math.exp(1.3 * weather.spread)  # of ten answers nine are faster
        self._waiting = defaultdict(list)
        self._turns = {}
        self._places = []

    def odds(self, seconds):
        """Return the probability of an answer in so many seconds."""
        weather = self._weather
        if seconds <= 0 or not weather.spread:
            return float(seconds >= weather.latency)
        return NormalDist(math.log(weather.latency), weather.spread).cdf(math.log(seconds))

    def add(self, call):
        """Let a call wait."""
        operation = {"create": "CreateGroup", "join": "JoinGroup", "detail": "QueryGroupDetail"}.get(call.kind)
        rank = -call.began if self._newest_first else call.latest
        heappush(self._waiting[operation or "InviteJoinGroup", call.group], (rank, call.number, call))

    def _is_over(self, call, now):
        """Tell whether it is too late for a call, or its caller has given up."""
        return call.latest < now + self.slowest or call.gives_up <= now

    def serve(self, now):
        """Serve the first of those who may be served, and return it; or None, and when one may be next."""
        while self._places and self._places[0] <= now:
            heappop(self._places)
        if len(self._places) >= self._concurrency:
            return None, self._places[0]
        ready, soonest = [], math.inf
        for kind, queue in self._waiting.items():
            while queue and self._is_over(queue[0][2], now):
                heappop(queue)
            turn = max((self._turns.get(key, 0.0) for key in self._keys(*kind)), default=0.0)
            if queue and turn <= now:
                ready.append((queue[0][:2], kind))
            elif queue:
                soonest = min(soonest, turn)
        if not ready:
            return None, soonest
        kind = min(ready)[1]
        call = heappop(self._waiting[kind])[2]
        heappush(self._places, now + self._usual)
        for number, group in self._keys(*kind):
            self._turns[number, group] = now + self._rates[number].per / self._rates[number].limit
        return call, now

    def _keys(self, operation, group):
        """Return the rates that count a request, each with the group for which it does."""
        counted = [(number, rate) for number, rate in enumerate(self._rates) if _counts(rate, operation, group)]
        return [(number, group if rate.each_group else None) for number, rate in counted]


# Situations.


def _check_situation(service):
    sizes = service.sizes
    begin = sizes.fair_from + (SETTLING if sizes.throttle is None else GROWING)
    situation = sizes.situation
    if situation in {"storm", "full-places"}:
        begin = max([begin, *(until + SETTLING for _, until in service.weather.stalls)])
        if begin + SETTLING < min(sizes.span, service.left_at):  # a shorter time says little
            _check_goodput(service, f"after trouble what is possible is answered in time{_load(service)}", begin)
    elif situation == "steady-overload":
        _check_goodput(service, "in overload what is possible is answered in time", begin)
        _check_none_too_late(service)
        if not sizes.rates:
            _check_places(service)
    elif situation in {"cancelled-callers", "impatient-callers"}:
        _check_goodput(service, "callers that are cancelled cost the others nothing", begin)
    elif situation in {"slow-rate", "hot-group", "throttled-group"}:
        neighbours = [each for each in service.calls if each.way != "never"]
        _check_waits(service, neighbours, f"a {situation.replace('-', ' ')} costs its neighbours little")
    elif situation == "throttled-client":
        _check_recovery(service)
    elif situation == "job-beside":
        _check_waits(service, service.calls, "a job costs the callers beside it little")
        _check_job(service)


def _load(service):
    """Return what is special about the load, which has findings of its own: without it all must be well."""
    sizes = service.sizes
    if len(sizes.rates) > 1:
        return ", with several rates"
    return ", in overload" if sizes.overload > 1 else ""


def _check_places(service):
    """Check that no place is free while calls wait which need nothing else."""
    changes = []
    for call in service.calls:
        first = call.sendings[0].left if call.sendings else call.ended
        changes += [(call.began, 1, 0), (first, -1, 0)]
        for sending in call.sendings:
            changes += [(sending.left, 0, 1), (sending.ended or math.inf, 0, -1)]
    waiting = taken = 0
    since, longest, when = math.inf, 0.0, 0.0
    for at, waits, takes in sorted(changes):
        if at - since > longest:
            longest, when = at - since, since
        waiting, taken = waiting + waits, taken + takes
        idle = waiting > 0 and taken < service.sizes.concurrency
        since = min(since, at) if idle else math.inf
    told = f"a place was free for {longest:.3f} s from {when:.3f} s on, and calls waited"
    service.world.check("no place is free while a call waits for one", longest <= AT_ONCE, told)


def _check_none_too_late(service):
    """Check that few requests leave when their callers give up before any answer can come."""
    sendings = service.network.sendings
    late = [each for each in sendings if each.timeout < service.weather.latency * math.exp(-2 * service.weather.spread)]
    told = f"{len(late)} of {len(sendings)} left with less time than an answer takes"
    service.world.check("nothing is sent too late for an answer", len(late) <= FEW + len(sendings) / 20, told)


def _check_waits(service, calls, invariant):
    slow = [each for each in calls if not each.sendings or each.sendings[0].left > each.began + NEIGHBOURLY]
    told = f"{len(slow)} of {len(calls)} calls waited for more than {NEIGHBOURLY:g} s"
    service.world.check(invariant, not slow, lambda: f"{told}, the first: {slow[0]}")


def _check_recovery(service):
    """Check that a platform which throttled everything gets few requests meanwhile and no herd, and is soon used again."""
    world, left = (
        service.world,
        sorted(each.left for each in service.network.sendings if each.facts["call"] in service.calls),
    )
    in_vain = sum(SETTLING <= at < STORM for at in left)
    told = f"{in_vain} requests left in {STORM - SETTLING:g} s in which all are throttled"
    world.check("little is sent while everything is throttled", in_vain <= IN_VAIN, told)
    together = max(bisect_left(left, at + 0.5) - number for number, at in enumerate(left) if at >= SETTLING)
    world.check("what was held back leaves evenly", together <= HERD, f"{together} requests left within half a second")
    later = [each for each in service.calls if each.at >= CALM_FROM]
    answered = sum(each.end == "answered" for each in later)
    told = f"{answered} of {len(later)} calls are answered from {CALM_FROM:g} s on"
    world.check("a client that was throttled recovers", answered >= 0.9 * len(later), told)


def _check_job(service):
    """Check that a job which is interrupted is in doubt only about what left."""
    sent = [each for each in service.network.sendings if each.facts["call"] is None]
    left = {account for each in sent for account in each.body["members"]}
    never = service.unknown - left
    told = f"{len(service.unknown)} accounts are unknown, and {len(never)} of them never left"
    service.world.check("a job is in doubt only about what left", not never, told)
    reported = service.report.accounts.unknown
    service.world.check("the report says what the journal says", reported == len(service.unknown), f"{reported}; {told}")
