"""When a run ends early and when a group is closed, by the rules alone: times are numbers, requests are verdicts."""

from random import Random

import pytest
from attrs import evolve

from helpers.tables import each_row
from rbim import ApiError, Dialect, InvalidRequest, InviteJoinGroup, NotFound, NotSent, Retry, Throttled, Unanswered
from rbim.bulk.failure_policy import Decision, Signal, Step, failed, judge
from rbim.bulk.settings import JobSettings
from rbim.bulk.stop_rules import StopRules, Verdict
from rbim.bulk.work import Chunk, Work
from rbim.codes import FULL
from rbim.operations.fails import Fail
from rbim.operations.groups import Invited

DIALECT = Dialect(already_reasons={"a member already"})
WORK = Work(operation=InviteJoinGroup, dialect=DIALECT)
ONCE = Retry(attempts=1)
NO_GROUP = NotFound("there is no group g", code="900404")
NO_ROOM = ApiError("g has room for 3 more", code=FULL)
ODD = ApiError("a cause", code="999123")


class Requests:
    """A run of requests that end one after the other, ``seconds`` apart; the process looks at the clock every second."""

    def __init__(self, *, limit=0.5, patience=120.0, began=1000.0):
        self.rules = StopRules(max_failures=limit, patience=patience, now=began, known=DIALECT.already_reasons)
        self.began = self.now = began
        self.count = 0

    def chunk(self, group="g", size=5, **facts):
        return Chunk(
            id=1,
            group=group,
            user_name=None,
            accounts=tuple(f"a{n}" for n in range(size)),
            **facts,
        )

    def wait(self, seconds):
        """Let time pass for a process that runs; return why the run ends in it."""
        ends = self.now + seconds
        while self.now < ends:
            self.now = min(self.now + 1.0, ends)
            if (stop := self.rules.tick(self.now)) is not None:
                return stop
        return None

    def end(self, result=None, *, group="g", size=5, elapsed=0.0, **facts):
        """End a request with an error, with those whom its answer lists (account: reason), or well."""
        chunk = self.chunk(group, size, **facts)
        self.count += 1
        if isinstance(result, Exception):
            decision = judge(WORK.make(chunk), chunk, result, retry=ONCE, dialect=DIALECT)
            if decision.step is Step.SPLIT:  # as without a budget for halves
                settlement = evolve(decision.settlement, state=failed(chunk))
                decision = evolve(decision, step=Step.SETTLED, settlement=settlement)
        else:
            fails = tuple(Fail(member=name, account=name, reason=reason) for name, reason in (result or {}).items())
            settlement = WORK.answered(chunk, Invited(fails=fails))
            decision = Decision(step=Step.SETTLED, signal=Signal.ANSWERED, settlement=settlement)
        return self.rules.ended(chunk, decision, self.now, elapsed)

    def until(self, result, *, most=100_000, every=0.0, **how):
        """End requests in the same way until a rule says something; return what it says and after how many."""
        for number in range(1, most + 1):
            if (stop := self.wait(every)) is not None:
                return stop, number
            verdict = self.end(result() if callable(result) else result, **how)
            if verdict != Verdict():
                return verdict.stop or verdict.close, number
        return None, most


def everybody(size=5, reason="the group is full"):
    return {f"a{n}": reason for n in range(size)}


# --------------------------------------------------------------------------------------- failures


@each_row("share, before", [(0.5, 0), (0.5, 5_000), (0.9, 5_000), (0.01, 20_000)])
def test_a_total_failure_ends_a_run_soon_however_late_it_comes(share, before):
    run = Requests(limit=share)
    assert run.until(None, most=before) == (None, before)
    why, requests = run.until(ODD)
    assert why == "fuse"
    assert requests <= (200 if before else 20)


@each_row("share, before, needed", [(0.5, 200, 101), (0.2, 500, 101), (0.1, 1000, 101), (1.0, 200, None)])
def test_one_failure_more_than_the_share_of_the_window_ends_a_run(share, before, needed):
    """Half of 200 requests are 100, and for small shares the window is as long as 100 failures need."""
    run = Requests(limit=share)
    assert run.until(None, most=before) == (None, before)
    assert run.until(ODD, most=500) == (("fuse", needed) if needed else (None, 500))


def test_a_share_is_measured_from_the_twentieth_request_on_and_then_of_the_latest():
    """Against a list of all results: what counts are at most the latest 200."""
    chance = Random(1)
    for seed in range(60):
        bad, good = chance.random(), chance.randrange(300)
        run, results = Requests(), []
        for number in range(600):
            failed = number >= good and chance.random() < bad
            results.append(failed)
            latest = results[-200:]
            expected = failed and len(latest) >= 20 and 2 * sum(latest) > len(latest)
            assert (run.end(ODD if failed else None).stop == "fuse") == expected, (seed, number)
            if expected:
                break


@each_row("most", [0, 5, 250])
def test_a_count_is_of_the_whole_run(most):
    run = Requests(limit=most)
    failures = 0
    for number in range(10_000):
        failed = number % 10 == 0
        failures += failed
        assert (run.end(ODD if failed else None, group=f"g{number % 7}").stop == "fuse") == (failures > most)
        if failures > most:
            return
    pytest.fail("it did not end")


@each_row("most", [-1, 0.0, 1.01, float("nan"), "5", True, -0.5])
def test_limits_that_mean_nothing_are_refused(most):
    with pytest.raises(InvalidRequest):
        JobSettings(max_failures=most)


# ----------------------------------------------------------------------------------------- groups


@each_row("limit, error, size", [(0.5, NO_GROUP, 1), (None, NO_ROOM, 50), (100, NO_GROUP, 50)])
def test_a_group_that_is_gone_or_full_is_closed_after_three_requests(limit, error, size):
    run = Requests(limit=limit)
    found, requests = run.until(error, size=size)
    assert requests == 3
    assert found.text.startswith("not sent: the group was closed after 3 refusals in a row: ")
    assert error.platform_message in found.text
    assert (found.code, found.error) == (error.code, type(error).__name__)
    assert set(run.rules.closed) == {"g"}
    assert run.until(error, size=size, most=50) == (None, 50)  # those that were in flight


def test_a_group_whose_answers_list_everybody_for_the_same_reason_is_closed():
    for size, expected in ((1, 20), (5, 4), (10, 3), (50, 3)):
        found, requests = Requests().until(everybody(size), size=size)
        assert (requests, found.code) == (expected, "")
        assert found.text == f"not sent: the group was closed after {expected} refusals in a row: the group is full"


def test_members_who_are_in_already_close_no_group():
    run = Requests()
    assert run.until(everybody(50, "a member already"), size=50, most=1000) == (None, 1000)
    assert run.until(everybody(50) | {"a49": "a member already"}, size=50)[1] == 3


def test_one_account_that_is_done_lets_a_group_stay_open():
    run = Requests(limit=None)
    for _ in range(100):
        for result in (NO_ROOM, NO_ROOM, everybody(4)):
            assert run.end(result, size=5) == Verdict()


def test_one_account_that_is_done_among_others_that_are_listed_lets_a_group_stay_open():
    """After a lost request the platform lists those whom that one has added, too."""
    run = Requests()
    listed = everybody(20) | {"a4": "a member already"}
    for _ in range(5):
        run.end(group="other")
        for _ in range(2):
            assert run.end(everybody(20), size=20) == Verdict()
        assert run.end(listed, size=20, resent=True) == Verdict()


def test_refusals_for_different_causes_are_no_run():
    run = Requests(limit=None)
    for _ in range(100):
        for result in (NO_ROOM, NO_GROUP, everybody(5), everybody(5, "another")):
            assert run.end(result, size=5) == Verdict()


def test_a_code_that_means_nothing_to_rbim_closes_a_group_only_if_others_get_on():
    run = Requests(limit=0.9)
    verdicts = []
    while not verdicts or verdicts[-1] == Verdict():
        assert run.end(None, group="other") == Verdict()
        verdicts.append(run.end(ODD, group="bad"))
    verdict = verdicts[-1]
    assert (len(verdicts), verdict.stop) == (20, None)
    assert "after 20 refusals in a row: code 999123: a cause" in verdict.close.text

    alone = Requests(limit=0.9)
    assert alone.until(ODD)[0] == "fuse"
    assert not alone.rules.closed


def test_a_request_that_is_divided_says_nothing_of_its_group():
    run = Requests(limit=None)
    chunk = run.chunk()
    divided = judge(WORK.make(chunk), chunk, NO_ROOM, retry=ONCE, dialect=DIALECT)
    assert divided.step is Step.SPLIT
    for _ in range(50):
        assert run.rules.ended(chunk, divided, run.now, 0.0) == Verdict()


def test_what_was_lost_or_throttled_says_nothing_of_its_group():
    run = Requests(limit=None)
    for error in (Unanswered("reset"), NotSent("refused"), Throttled("slower", code="160016")):
        for _ in range(50):
            run.end()  # the run gets on
            assert run.end(error) == Verdict()


def test_groups_that_are_gone_do_not_end_a_job_whose_others_are_fine():
    """40 of 100 groups are gone; 10 requests of each group are in flight at a time."""
    run = Requests()
    sent = 0
    for turn in range(30):
        for group in range(100):
            gone = group % 5 < 2
            if turn >= 10 and gone:
                assert f"g{group}" in run.rules.closed
                continue
            sent += gone
            assert run.end(NO_GROUP if gone else None, group=f"g{group}").stop is None
    assert sent == 400


def test_a_platform_that_knows_no_group_ends_the_job():
    run = Requests()
    for number in range(1, 10_000):
        if run.end(NO_GROUP, group=f"g{number % 2000}").stop:
            break
    assert number == 20


# ------------------------------------------------------------------------------------------- time


@each_row("patience", [20.0, 120.0, 900.0])
def test_a_run_without_any_connection_ends_soon_and_knows_why(patience):
    run = Requests(patience=patience)
    why, _ = run.until(NotSent("cannot connect to 127.0.0.1:9 (refused)"), every=0.7)
    assert why == "not connected"
    assert run.now - run.began <= 20.0
    assert "127.0.0.1:9" in run.rules.cause


def test_silence_before_a_first_connection_lasts_18_seconds_and_not_longer():
    run = Requests()
    assert run.wait(15.0) is None
    assert run.rules.is_unreachable is False
    assert run.end(NotSent("connect timeout"), elapsed=15.0) == Verdict()
    assert run.rules.is_unreachable is True
    assert run.wait(3.0) is None
    assert run.wait(0.25) == "not connected"


@each_row("first", [None, Unanswered("reset"), Throttled("slower", code="160016")])
def test_one_connection_is_enough_to_wait_for_the_whole_patience(first):
    run = Requests(limit=None)
    assert run.end(first) == Verdict()
    why, _ = run.until(NotSent("refused"), every=0.5)
    assert why == ("no progress" if isinstance(first, Throttled) else "no answer")
    assert 120.0 < run.now - run.began <= 122.0


def test_every_answer_ends_a_silence():
    run = Requests(limit=None)
    run.end()
    for _ in range(50):
        assert run.until(NotSent("refused"), every=1.0, most=110) == (None, 110)
        run.end()


def test_time_without_requests_is_no_silence():
    """One request in an hour, as a rate of its own allows: a lost one is no hour of silence."""
    run = Requests()
    run.end()
    for _ in range(3):
        assert run.wait(3600.0) is None
        assert run.end(Unanswered("reset")) == Verdict()
        run.end()


@each_row("retry_after", [None, 1.0, 30.0, 300.0, 86_400.0])
def test_throttling_without_end_ends_the_run(retry_after):
    run = Requests()
    run.end()
    every = min(retry_after or 0.5, 300.0)
    why, _ = run.until(Throttled("quota", code="160016", status=429, retry_after=retry_after), every=every)
    assert why == "no progress"
    assert run.now - run.began <= every + 120.0 + 300.0 + every
    assert run.now - run.began > 120.0


@each_row("pauses, seconds", [([0.0], 121.0), ([10.0], 131.0), ([10.0] + [4.0] * 20, 131.0)])
def test_only_pauses_since_the_last_progress_count_and_none_twice(pauses, seconds):
    run = Requests(limit=None)
    run.end(Throttled("before", code="160016", status=429, retry_after=5.0))
    assert run.wait(10.0) is None
    run.end()
    began = run.now
    for pause in pauses:
        assert run.end(Throttled("quota", code="160016", status=429, retry_after=pause)) == Verdict()
    assert run.until(Throttled("quota", code="160016"), every=1.0)[0] == "no progress"
    assert run.now - began == seconds


def test_one_settled_account_now_and_then_is_progress():
    run = Requests()
    for _ in range(20):
        assert run.until(Throttled("slower", code="160016"), every=1.0, most=110) == (None, 110)
        run.end()


def test_a_long_pause_that_the_platform_asked_for_is_waited_for():
    run = Requests()
    run.end()
    assert run.end(Throttled("later", code="160016", status=429, retry_after=300)) == Verdict()
    assert run.end(NotSent("refused")) == Verdict()  # it was in flight
    assert run.wait(301.0) is None
    assert run.end(Throttled("again", code="160016")) == Verdict()
    assert run.end() == Verdict()
    assert run.wait(1000.0) is None


def test_a_process_that_sleeps_is_not_kept_waiting():
    """It was stopped for an hour, as by Ctrl-Z: what was in flight is lost, the network is back."""
    for first in (None, Throttled("slower", code="160016"), NotSent("refused")):
        run = Requests()
        run.end()
        run.wait(20.0)
        if first is not None:
            run.end(first)
        run.now += 3600.0
        assert run.end(Unanswered("reset"), elapsed=3600.5).stop is None
        assert run.end(Throttled("slower", code="160016")).stop is None
        assert run.wait(50.0) is None
        assert run.end(NotSent("refused")).stop is None
        why, _ = run.until(NotSent("refused"), every=1.0)
        assert why == "no progress"
        assert 120.0 < run.now - run.began - 3600.0 < 145.0


def test_the_cause_is_that_of_the_last_trouble():
    run = Requests(limit=None)
    assert run.rules.cause == ""
    run.end(NotSent("cannot connect to h:1 (refused)"))
    assert run.rules.cause == "cannot connect to h:1 (refused)"
    run.end(Throttled("slower", code="160016"))
    assert "slower" in run.rules.cause
    run.end()
    assert run.rules.cause == ""
    assert run.end(ODD).stop is None
    assert run.rules.cause == ""
