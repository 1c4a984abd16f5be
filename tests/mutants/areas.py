"""The areas: modules that belong together, and the tests that are to notice a change in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from .mutation import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["AREAS", "Area"]


@frozen
class Area:
    """Some modules, and files of tests.

    ``sample`` is the most mutants that are tried. ``left_out`` are tests that run for long and find what others find in a
    shorter time.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int = 100
    left_out: tuple[str, ...] = ()

    def paths(self) -> list[str]:
        """The modules as paths from the root."""
        found = (ROOT.glob(module) if "*" in module else [ROOT / module] for module in self.modules)
        paths = (path.relative_to(ROOT).as_posix() for each in found for path in sorted(each))
        return [path for path in paths if not path.endswith("__init__.py")]


def _areas(*areas: Area) -> dict[str, Area]:
    return {area.name: area for area in areas}


def _rbim(folder: str, names: str) -> Sequence[str]:
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
        ("rbim/client/retry.py", "rbim/client/call.py", "rbim/wire/retry_after.py"),
        (
            "tests/client/test_retry.py",
            "tests/client/test_client.py",
            "tests/client/test_observers.py",
            "tests/client/test_rotation.py",
            "tests/client/test_admission.py",
            "tests/client/test_closing.py",
            "tests/client/test_prepare.py",
            "tests/wire/test_codec.py",
        ),
    ),
    Area(
        "limits",
        tuple(_rbim("client", "admission attempt_times demands halts lanes limits queue")),
        (
            "tests/client/test_limits.py",
            "tests/client/test_admission.py",
            "tests/client/test_retry.py",
            "tests/client/test_client.py",
            "tests/client/test_loads.py",
            "tests/client/test_manners.py",
            "tests/client/test_views.py",
            "tests/client/test_fan_out.py",
        ),
    ),
    Area(
        "failure policy",
        tuple(_rbim("bulk", "failure_policy work stop_rules states")),
        (
            "tests/bulk/test_work.py",
            "tests/bulk/test_stop_rules.py",
            "tests/bulk/test_job.py",
            "tests/bulk/test_job_limits.py",
            "tests/bulk/test_job_stops.py",
            "tests/bulk/test_job_resume.py",
        ),
    ),
    Area(
        "pace",
        ("rbim/bulk/pace/*.py",),
        ("tests/bulk/pace",),
        left_out=(
            "test_a_job_uses_nine_tenths_of_a_limit_and_recovers_from_an_outage",
            "test_a_job_with_a_hot_group_goes_on_with_the_others",
            "test_chance_does_not_slow_a_job",
        ),
    ),
    Area(
        "journal",
        ("rbim/bulk/journal/*.py",),
        (
            "tests/bulk/journal",
            "tests/bulk/test_job.py",
            "tests/bulk/test_job_resume.py",
            "tests/bulk/test_carrier.py",
        ),
        sample=80,
    ),
    Area(
        "inboxes",
        tuple(
            _rbim(
                "callbacks/inbox",
                "archive_statements arguments content erasure letters memory queues sqlite statements tables",
            )
        ),
        ("tests/callbacks/inbox", "tests/testing/test_inbox_conformance.py"),
        sample=80,
    ),
    Area(
        "worker",
        tuple(_rbim("callbacks/worker", "attempt backoff conversation router worker")),
        (
            "tests/callbacks/worker/test_worker.py",
            "tests/callbacks/worker/test_ahead.py",
            "tests/callbacks/worker/test_router.py",
            "tests/callbacks/worker/test_several_handlers.py",
        ),
        sample=80,
    ),
)
"""All areas, by name."""
