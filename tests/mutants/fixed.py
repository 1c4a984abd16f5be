"""A few mutants that a test noticed, each with this test: a short form of the whole, for every change of rbim."""

from __future__ import annotations

from .mutation import Mutant, mutants_of

__all__ = ["FIXED", "fixed_mutants"]

FIXED: dict[str, str] = {
    "rbim/callbacks/signature.py verify | OrWithAnd | if key is None or not same_body or len(cur_time) != DIGITS or not cur_time.isdigit(): | 3": (
        "tests/callbacks/test_signature.py::test_a_header_of_another_form_is_refused_although_the_sum_is_right[one too many-CurTime]"
    ),
    "rbim/callbacks/signature.py Keys.match | AndWithOr | if compare_digest(digest.hexdigest().encode(), checksum) and matching is None:": (
        "tests/callbacks/test_signature.py::test_a_header_of_another_form_is_refused_although_the_sum_is_right[NUL behind-CheckSum]"
    ),
    "rbim/wire/signing.py AppSigner.sign | AddNot | if second != self._second:  # the timestamp changes once a second: all requests of one second share a signature": (
        "tests/wire/test_signing.py::test_signing_changes_nothing_else_and_not_the_request_itself"
    ),
    "rbim/client/retry.py Retry._may_repeat | ComparisonOperator_Is_IsNot | if isinstance(error, Throttled) and op.repeat is Repeat.NEVER:": (
        "tests/client/test_retry.py::test_what_decides_is_the_outcome_and_how_the_operation_may_be_repeated[Throttled('code 160016')-idempotent]"
    ),
    "rbim/client/retry.py RetryBudget.spend | DeleteStatement | self.left -= 1": (
        "tests/client/test_retry.py::test_a_budget_saves_up_no_more_than_its_reserve"
    ),
    "rbim/client/limits.py Bucket.ready_at | BinaryOperator_Sub_Add | when = max(self.due, now) + before * self.interval - self.slack": (
        "tests/client/test_limits.py::test_granted_requests_and_those_ahead_count_as_if_they_left_now"
    ),
    "rbim/client/admission.py Admission._grant | NumberReplacer | self.free -= 1": (
        "tests/client/test_admission.py::test_asyncios_own_cancel_loses_no_place_in_any_turn_of_the_loop[1-asyncio]"
    ),
    "rbim/bulk/stop_rules.py FailureLimit.exceeded | ComparisonOperator_GtE_Gt | return requests >= MIN_REQUESTS and failures / requests > self.limit": (
        "tests/bulk/test_stop_rules.py::test_a_total_failure_ends_a_run_soon_however_late_it_comes[0.5-0]"
    ),
    "rbim/bulk/pace/rate.py AdaptiveRate._forget | AndWithOr | while times and times[0] <= begins:": (
        "tests/bulk/pace/test_controller.py::test_a_pause_that_is_asked_for_is_kept_by_everything_and_the_longest_holds[True]"
    ),
    "rbim/bulk/journal/journal.py Journal.close_group | AddNot | after = AccountState.UNKNOWN if again else AccountState.FAILED": (
        "tests/bulk/journal/test_journal.py::test_a_closed_group_is_given_up_and_says_so"
    ),
    "rbim/bulk/journal/journal.py Journal.recover | DeleteStatement | self.adopt_marks()": (
        "tests/bulk/journal/test_journal.py::test_after_another_boot_every_intent_may_have_left[marks]"
    ),
    "rbim/bulk/failure_policy.py _throttled | ComparisonOperator_IsNot_Is | no_effect = error.status == TOO_MANY_REQUESTS or (row is not None and row.before_effect)": (
        "tests/bulk/test_work.py::test_an_invitation_that_must_not_be_repeated_is_sent_again_if_its_code_comes_before_an_effect[True-200-Step.AGAIN]"
    ),
    "rbim/bulk/work.py (module) | NumberReplacer | waited: float = 0.0": (
        "tests/bulk/test_work.py::test_a_chunk_that_was_never_sent_has_a_first_attempt_before_it_and_nothing_behind_it"
    ),
    "rbim/callbacks/worker/conversation.py SharedRun.__init__ | FalseWithTrue | self._over = False": (
        "tests/callbacks/worker/test_worker.py::test_recording_takes_as_long_as_it_must_while_a_worker_runs[asyncio]"
    ),
    "rbim/callbacks/inbox/statements.py InboxStore.accept | FalseWithTrue | return False": (
        "tests/callbacks/inbox/test_sqlite.py::test_what_was_accepted_is_in_the_file[asyncio]"
    ),
}
"""The tests, by the names of the mutants."""


def fixed_mutants() -> list[tuple[Mutant, str]]:
    """Return the mutants with their tests. Raises LookupError if the code of one has changed: choose another one then."""
    paths = dict.fromkeys(key.partition(" ")[0] for key in FIXED)
    found = {mutant.key: mutant for path in paths for mutant in mutants_of(path)}
    if missing := [key for key in FIXED if key not in found]:
        raise LookupError(f"no such mutants any more: {missing}")
    return [(found[key], test) for key, test in FIXED.items()]
