"""What must hold of a job: judged by what left, what the platform did and what the operator put in.

rbim's own journal is read for what it says, and never as a proof that it is so.
"""

from collections import Counter, defaultdict

from rbim import Role

from .virtual_time import TIME
from .world import PROGRESS

OPEN_INTENTS = """SELECT request.id, request.resent
    FROM request JOIN account ON account.sender_group = request.sender_group AND account.chunk = request.chunk
    JOIN sender_group ON sender_group.id = request.sender_group
    JOIN target_group ON target_group.id = sender_group.target_group
    WHERE request.outcome = 0 AND target_group.name = ? AND account.account = ?"""

DONE_WORDS = {"invited", "removed", "joined", "done"}

UNEVEN = 2.01
"""Requests too many in a window that the delay of a thread may explain."""


def accounts_of(operation):
    """Return the accounts that an operation is about."""
    members = getattr(operation, "members", None) or (getattr(operation, "member", None) or operation.user_name,)
    return set(members)


def pairs_of(sending):
    """Return group and account of everybody whom a request is about."""
    body = sending.body
    named = body.get("members", body.get("member", body.get("userName")))
    members = named if isinstance(named, list) else [named]
    return [(body["groupId"], account) for account in members]


def odd_fails(fails, draw):
    """Write the list of those who were refused in another way that the interface description allows, or nearly so."""
    return draw.choice(
        [
            [{"reason": each["reason"]} for each in fails],
            {"fail": {"member": [each["member"] for each in fails], "reason": fails[0]["reason"]}},
            ",".join(each["member"] for each in fails),
            [{"userName": each["member"], "msg": each["reason"]} for each in fails],
            [{"Member": each["member"]} for each in fails],
            [{each["member"]: each["reason"]} for each in fails],
            [{"member": f" {each['member']} ", "reason": each["reason"]} for each in fails],
        ]
    )


# While the job runs.


def check_intent(job, sending):
    """Check that what leaves stands in the journal, and that a loss of power would not change that."""
    (pair, *_) = sending.facts["pairs"]
    found = job.auditor().execute(OPEN_INTENTS, pair).fetchall()
    if len(found) == 1:
        sending.facts["request"], sending.facts["resent"] = found[0][0], bool(found[0][1])
    job.world.check(
        "the intent is there before its request", len(found) == 1, lambda: f"{sending}: {len(found)} open intents"
    )
    synced = job.world.disk.is_synced(job.path)
    job.world.check(
        "the intent is synced before its request", synced, lambda: f"{sending}: the journal has unsynced commits"
    )


def check_alone(job, sending):
    """Check that one process at a time sends, and that it keeps its limit of requests in flight."""
    network, process = job.network, sending.process
    others = [
        each.name for each, count in network.in_flight.items() if each and count and each.alive and each is not process
    ]
    job.world.check("one process at a time", not others, lambda: f"{sending} leaves beside {others}")
    count = network.in_flight[process]
    job.world.check("concurrency holds", count <= job.sizes.concurrency, lambda: f"{sending} is the {count}th in flight")


def check_left(job, client, process):
    """Check that a run leaves nothing behind when its block was left."""
    load = client.load
    clean = not (load.in_flight or load.waiting or load.calls) and not job.network.in_flight[process]
    job.world.check("nothing is left running", clean, lambda: f"{process.name}: {load}")
    files = [each.path for each in process.connections]
    job.world.check("nothing is left open", not files, lambda: f"{process.name}: {files}")


# At the end.


def check_all(job):
    """Check everything that must hold once a job is done."""
    states = _states(job)
    effects = {pair: [each for each in job.sent_for[pair] if _took_effect(each, pair)] for pair in job.pairs}
    check_report(job, states)
    can_isolate = _can_isolate(job)
    for pair in job.pairs:
        if pair in states:
            _check_account(job, pair, states[pair], effects[pair], can_isolate=can_isolate)
    _check_rates(job)


def _can_isolate(job):
    """Tell whether no run can have used up the requests that it may send for halves; a refusal of a chunk costs two."""
    ((splits,),) = job.auditor().execute("SELECT total(split) FROM request")
    return job.sizes.isolate >= 500 and 2 * splits < job.sizes.isolate - 1


def check_report(job, states):
    """Check that every row of the input is accounted for, once, and that report and journal agree."""
    counts, check = job.report.accounts, job.world.check
    said = Counter("done" if state in DONE_WORDS else state for state, _ in states.values())
    check("no account is lost", set(states) == set(job.pairs), f"{len(states)} in the journal of {len(job.pairs)}")
    total = counts.done + counts.refused + counts.failed + counts.unknown + counts.skipped + counts.duplicate
    right = total == counts.total == len(job.rows) and (counts.skipped, counts.duplicate) == (3, job.duplicates)
    check("the report adds up", right and counts.adds_up, f"{counts}, {len(job.rows)} rows")
    reported = {name: getattr(counts, name) for name in ("done", "refused", "failed", "unknown")}
    check("the report says what the journal says", +Counter(reported) == said, f"{counts}, journal {dict(said)}")


def _check_account(job, pair, state, effects, *, can_isolate):
    world, sent = job.world, job.sent_for[pair]
    said, why = state
    done = said in DONE_WORDS
    carried_out = [each for each in sent if each.effect and pair[1] not in job.refused]
    told = f"{pair[1]} in {pair[0]} is {said} ({why}); sent: {'; '.join(map(str, sent)) or 'never'}"
    world.check("no account is lost", not said.startswith("waiting"), told)
    world.check("done is done", not done or _is_so(job, pair), told)
    world.check("refused is not done", said not in {"refused", "failed"} or not effects, told)
    poisoned = pair[1] in job.poison
    world.check("done is done", not (done and poisoned), told)
    innocent = not poisoned and pair[1] not in job.refused and pair[0] in job.emulator.state.groups
    isolated = can_isolate and not job.retrying and not job.never
    world.check("innocents are never buried", not (said == "failed" and innocent and isolated), told)
    marked = all(each.facts.get("resent") for each in carried_out[1:])
    world.check("every double is marked", marked, told)
    if said == "unknown":
        world.check("unknown only after trouble", any(_troubled(job, each) for each in sent) or job.runs > 1, told)
    if job.never:
        world.check("never is at most once", len(effects) <= 1, told)
        certain = all(_had_no_effect(each) for each in sent[:-1])
        world.check("never is sent again only if it had no effect", certain, told)


def _states(job):
    found = job.auditor().execute('SELECT "group", account, state, reason FROM accounts')
    return {(group, account): (state, reason or "") for group, account, state, reason in found}


def _is_so(job, pair):
    """Tell whether the platform's state is what the job was to bring about."""
    group = job.emulator.state.groups.get(pair[0])
    if group is None:
        return False
    if job.sizes.operation == "remove":
        return pair[1] not in group.members
    if job.sizes.operation == "confirm":
        return pair[1] in group.invited
    if job.sizes.operation == "role":
        return group.members.get(pair[1]) is Role.ADMINISTRATOR
    return pair[1] in group.members


def _took_effect(sending, pair):
    return pair[1] in sending.facts.get("changed", ())


def _troubled(job, sending):
    """Tell whether something happened to a request that explains why nobody knows what became of it."""
    if sending.fate != "ok" or sending.process in job.ends_badly or not sending.facts.keys().isdisjoint({"stalled", "odd"}):
        return True
    if sending.ended is None:
        return True
    return sending.ended - sending.left > 4.9  # the client's time-out for one attempt: the network was as slow as that


def _had_no_effect(sending):
    """Tell whether its sender could know that a request had no effect: the platform said so, and the answer came."""
    answered = sending.arrived is not None and sending.ended is not None and sending.ended > sending.arrived
    return sending.fate == "ok" and answered and not sending.effect


def _check_rates(job):
    """Check each rate against the times at which requests left, for each run on its own."""
    for rate in job.sizes.rates:
        streams = defaultdict(list)
        for sending in job.network.sendings:
            if sending.process is not None:
                group = sending.body["groupId"] if rate.each_group else None
                streams[sending.process, group].append(sending.left)
        job.world.check_rate(rate, streams.values(), UNEVEN)


def latest_end(job):
    """Return the time by which a job must be done that is not stopped any more."""
    sizes = job.sizes
    rates = [rate.limit * (len(job.groups) if rate.each_group else 1) for rate in sizes.rates]
    requests = 6 * len(job.pairs) / sizes.chunk * (1 + sizes.retries) + 2 * sizes.isolate
    fastest = min([*rates, sizes.concurrency / job.weather.latency / 3, 50])
    return max(sizes.fair_from, job.last_start) + 600 + requests / fastest


# Situations.


def check_situation(job, *, ended):
    """Check what must hold where all is well but for one special situation."""
    world, sizes, sendings = job.world, job.sizes, job.network.sendings
    own = [each for each in sendings if each.process is not None]
    if sizes.situation == "endless-throttling":
        world.check("a job without progress ends by itself", ended, f"it still sends after {TIME.now:.0f} s")
        return
    if sizes.situation == "lost-journal":
        late = [each for each in own if each.left > job.vanished_at + 3]
        world.check(
            "nothing is sent without a journal", not late, f"{len(late)} requests left 3 s and more after it was deleted"
        )
        return
    world.check(PROGRESS, ended, f"it still runs after {TIME.now:.0f} s")
    if sizes.situation == "all-refused":
        most = len(job.pairs) // sizes.chunk // 2
        in_vain = len(sendings) - most
        world.check("a job ends soon when all is refused", in_vain <= 200, f"{in_vain} requests were refused in a row")
        return
    if sizes.situation == "random-throttling":
        _check_duration(job, own, "throttling by chance slows a job little")
    elif sizes.situation == "slow-group":
        others = [each for each in own if each.body["groupId"] != job.groups[0]]
        _check_duration(job, others, "a group that is throttled slows others little")
    if ended and job.report is not None:
        check_all(job)


def _check_duration(job, sendings, invariant):
    """Check that requests take at most ten times what their number, latency and concurrency make necessary, and 5 s."""
    needed = len(sendings) * job.weather.latency * 1.2 / job.sizes.concurrency
    took = sendings[-1].left - sendings[0].left
    job.world.check(
        invariant, took <= 10 * needed + 5, f"{len(sendings)} requests took {took:.1f} s instead of {needed:.1f} s"
    )
