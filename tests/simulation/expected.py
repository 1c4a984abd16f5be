"""Known findings: invariants that rbim breaks, and the seeds that show it.

Each is an expected failure until rbim is mended. Its pinned seeds must break its invariant (a seed that no longer does is an
error: take the entry out) and no other one, unless another entry expects that. In a run over many seeds an invariant
is expected to break where the ``trouble`` of its entry happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from .runner import invariants

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["EXPECTED", "ExpectedFailure", "expected_in", "unexpected"]


@frozen(kw_only=True)
class ExpectedFailure:
    """A finding: ``name`` in short, ``finding`` in full; what it breaks, after which trouble, and seeds that show it."""

    name: str
    scenario: str
    invariant: str
    trouble: str
    finding: str
    seeds: tuple[int, ...]


EXPECTED: tuple[ExpectedFailure, ...] = ()


def expected_in(scenario: str, result: Mapping[str, Any]) -> dict[str, ExpectedFailure]:
    """Return the entries that may break an invariant in such a run, by invariant."""
    troubles = result["troubles"]
    return {each.invariant: each for each in reversed(EXPECTED) if each.scenario == scenario and each.trouble in troubles}


def unexpected(scenario: str, result: Mapping[str, Any]) -> Iterable[str]:
    """Return the invariants that were broken and that no entry expects to be."""
    known = expected_in(scenario, result)
    return [each for each in invariants(result) if each not in known]
