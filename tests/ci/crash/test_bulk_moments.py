"""A job that is killed at one chosen moment, and then goes on, becomes what it would have become.

The command line in processes that kill themselves: before or after a step of a job, or after the commit that made the step
durable. A trial of some accounts (``--limit``), the rest, and a retry of what was refused or had failed, after the platform
was put in order: the group that did not exist is made, and all accounts have logged in. One group is closed on the way, one
request is refused as a whole and split. The expectation comes from the input.
"""

import csv
import random
import signal
import sys

import pytest
from crash.test_bulk import DONE, FAILED, REFUSED, UNKNOWN, control, emulating

from helpers import jobs as tables
from helpers.paths import TESTS
from helpers.processes import CLEAN, ran
from helpers.serving import variables_of

PROGRAM = TESTS / "ci" / "helpers_ci" / "killed_at.py"
CHUNK, CONCURRENCY = 10, 3
GROUPS = [f"g8{number:013d}" for number in range(3)]
CLOSED = "g80000000000404"
NEVER = {f"u{number}" for number in range(6)}
PAIRS = [(GROUPS[number % 3], f"u{number}") for number in range(120)] + [(CLOSED, f"lost{number}") for number in range(60)]
OWNER = "admin"
KILLED = -signal.SIGKILL

JOURNAL = "rbim.bulk.journal.journal:"
MOMENTS = [
    (JOURNAL + "Journal._close_group", 1, "after"),
    (JOURNAL + "Journal._close_group", 1, "committed"),
    (JOURNAL + "Journal.retry", 1, "committed"),
    (JOURNAL + "Journal._record_intents", 2, "committed"),
    (JOURNAL + "Journal._record_outcomes", 3, "after"),
    (JOURNAL + "Journal.divide", 1, "committed"),
    (JOURNAL + "Journal.split", 1, "committed"),
    ("rbim.bulk.journal.loading:Loader.end", 1, "committed"),
]


class Job:
    """The commands of one job. The first process that comes to the moment dies there."""

    def __init__(self, folder, variables, moment):
        self.file = folder / "rows.csv"
        self.journal = folder / "rows.csv.invite.journal"
        self.moment = moment
        self.environment = CLEAN | variables | {"no_proxy": "*"}
        rows = list(PAIRS)
        random.Random(1).shuffle(rows)
        with self.file.open("w", newline="") as file:
            csv.writer(file).writerows([("group", "account"), *rows])

    def run(self, *command):
        """Run a command, and again without a moment if its process was killed; return the exit code."""
        point, nth, moment = self.moment or ("-", 0, "-")
        code = self._once(point, moment, str(nth), *command)
        if self.moment is not None and code == KILLED:
            self.moment = None
            code = self._once("-", "-", "0", *command)
        return code

    def _once(self, *words):
        ended = ran(sys.executable, PROGRAM, *words, env=self.environment)
        assert ended.returncode != 70, ended.stderr
        return ended.returncode

    def states(self):
        return {(each.group, each.account): each.state for each in tables.accounts(self.journal)}


def put_in_order(url):
    state = control(url, "GET", "state")
    missing = dict(state["groups"][0], group_id=CLOSED, members={OWNER: "0"})
    control(url, "PUT", "state", {**state, "groups": [*state["groups"], missing], "never_logged_in": []})


def check(folder, moment):
    with emulating(7) as (url, emulator):
        told = {"name": "n", "type": "4", "permission": "0", "target": "1", "declared": "", "group_domain": None}
        told |= {"created": "2026-01-02T03:04:05+00:00", "members": {OWNER: "0"}}
        groups = [{"group_id": group, **told} for group in GROUPS]
        control(url, "PUT", "state", {"version": 1, "groups": groups, "never_logged_in": sorted(NEVER)})
        faults = [{"effect": {"kind": "code", "code": "999999"}, "match": {"group_id": GROUPS[1]}, "nth": [3]}]
        control(url, "PUT", "faults", faults)
        job = Job(folder, variables_of(emulator, url), moment)
        flags = ["--chunk", str(CHUNK), "--concurrency", str(CONCURRENCY), "--max-failures", "none"]

        job.run("invite", str(job.file), *flags, "--limit", "35")
        job.run("job", "resume", str(job.journal), "--isolate", "20")
        between = job.states()
        put_in_order(url)
        code = job.run("job", "retry", str(job.journal), "--refused")
        if code == 2:  # the killed one had let them wait again
            code = job.run("job", "resume", str(job.journal))
        after, state = job.states(), control(url, "GET", "state")
    assert job.moment is None, "no process came to this moment"
    expected = {pair: REFUSED if pair[1] in NEVER else FAILED if pair[0] == CLOSED else DONE for pair in PAIRS}
    differ = {pair for pair in PAIRS if between[pair] != expected[pair]}
    assert {between[pair] for pair in differ} <= {UNKNOWN}  # refused after a sending that nothing is known of
    assert {expected[pair] for pair in differ} <= {REFUSED, FAILED}
    assert len(differ) <= CHUNK * CONCURRENCY
    assert after == dict.fromkeys(PAIRS, DONE)
    assert code == 0
    members = {(group["group_id"], member) for group in state["groups"] for member in group["members"]}
    assert members - {(group, OWNER) for group in [*GROUPS, CLOSED]} == set(PAIRS)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda each: "-".join(map(str, each)))
def test_a_job_that_is_killed_at_a_moment_goes_on(tmp_path, moment):
    check(tmp_path, moment)
