"""The areas: modules that belong together, and the tests that are to notice a change in them."""

from attrs import frozen

from .mutation import ROOT


@frozen
class Area:
    """Some modules, and files of tests.

    ``sample`` is the most mutants that are tried. Tests that run rbim in processes of their own notice none: a mutant is
    in one process. ``left_out`` are tests that run for long and find what others find in a shorter time.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int = 75
    left_out: tuple[str, ...] = ()

    def paths(self):
        found = (ROOT.glob(module) if "*" in module else [ROOT / module] for module in self.modules)
        paths = (path.relative_to(ROOT).as_posix() for each in found for path in sorted(each))
        return [path for path in paths if not path.endswith("__init__.py")]


def _areas(*areas):
    return {area.name: area for area in areas}


def _rbim(folder, names):
    return [f"rbim/{folder}/{name}.py" for name in names.split()]


AREAS = _areas(
    Area(
        "signatures",
        ("rbim/wire/signing.py", "rbim/callbacks/signature.py"),
        (
            "tests/wire/test_signing.py",
            "tests/callbacks/test_signature.py",
            "tests/callbacks/test_signature_fuzz.py",
            "tests/callbacks/receiver/test_rotation.py::test_retired_keys_are_never_current",
        ),
    ),
    Area(
        "retries",
        ("rbim/client/retry.py", "rbim/client/call.py", "rbim/wire/codec.py"),
        ("tests/client", "tests/operations", "tests/wire"),
    ),
    Area(
        "limits",
        tuple(_rbim("client", "admission limits queue")),
        ("tests/client",),
        left_out=(
            "test_whatever_happens_in_whatever_moment_no_place_is_lost",
            "test_whoever_is_cancelled_the_others_leave_as_soon_as_their_rates_allow",
            "test_with_time_to_settle_the_gate_does_what_a_plain_queue_would",
        ),
    ),
    Area(
        "failure policy",
        tuple(_rbim("bulk", "failure_policy work stop_rules")),
        (
            "tests/bulk/test_work.py",
            "tests/bulk/test_stop_rules.py",
            "tests/bulk/test_job.py",
            "tests/bulk/test_job_dialect.py",
            "tests/bulk/test_job_limits.py",
            "tests/bulk/test_job_stops.py",
            "tests/bulk/test_job_resume.py",
            "tests/bulk/report",
        ),
    ),
    Area(
        "pace",
        ("rbim/bulk/pace.py", "rbim/client/congestion.py"),
        ("tests/bulk/test_pace.py", "tests/bulk/test_pace_of_a_job.py", "tests/client/test_congestion.py"),
    ),
    Area(
        "journal",
        ("rbim/bulk/journal/*.py",),
        (
            "tests/bulk/journal",
            "tests/bulk/input",
            "tests/bulk/report",
            "tests/bulk/test_job.py",
            "tests/bulk/test_job_limits.py",
            "tests/bulk/test_job_resume.py",
            "tests/cli/jobs/test_forget.py",
        ),
    ),
    Area(
        "inboxes",
        tuple(_rbim("callbacks/inbox", "memory sqlite statements store stored")),
        (
            "tests/callbacks/inbox",
            "tests/callbacks/worker/test_ahead.py",
            "tests/callbacks/worker/test_crashes.py",
            "tests/callbacks/receiver/test_lost_inbox.py",
            "tests/callbacks/receiver/test_other_content.py",
            "tests/callbacks/receiver/test_receiver.py",
            "tests/callbacks/receiver/test_spool.py",
            "tests/cli/callback/test_letters.py",
            "tests/cli/callback/test_log.py",
            "tests/storage/test_group_commit.py",
        ),
    ),
    Area(
        "worker",
        tuple(_rbim("callbacks/worker", "attempt backoff router supervision worker")),
        (
            "tests/callbacks/worker",
            "tests/callbacks/receiver/test_host_task.py",
            "tests/callbacks/receiver/test_hot_conversation.py",
            "tests/callbacks/receiver/test_in_time.py",
            "tests/callbacks/receiver/test_lost_inbox.py",
            "tests/callbacks/receiver/test_observations.py",
            "tests/callbacks/receiver/test_receiver.py",
            "tests/otel/test_callback_spans.py",
        ),
    ),
)
