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


EXPECTED: tuple[ExpectedFailure, ...] = (
    # The inbox.
    ExpectedFailure(
        name="killing-message-buries-others",
        scenario="inbox",
        invariant="innocents are never buried",
        trouble="killing-message",
        finding="attempts that were begun when a process died count like failures: a message that kills its process buries"
        " those that were handled beside it",
        seeds=(85, 120),
    ),
    ExpectedFailure(
        name="killed-processes-bury-events",
        scenario="inbox",
        invariant="innocents are never buried",
        trouble="kill",
        finding="attempts that were begun when a process died count like failures: a slow handler whose process is killed"
        " again and again is buried",
        seeds=(11, 211),
    ),
    ExpectedFailure(
        name="worker-ends-and-receiver-goes-on",
        scenario="inbox",
        invariant="what is acknowledged is handled",
        trouble="ended-worker",
        finding="what handlers share fails and ends the worker for good, and the receiver goes on answering 200",
        seeds=(53, 77),
    ),
    ExpectedFailure(
        name="hot-conversation-loses-group-commit",
        scenario="inbox",
        invariant="a hot conversation is accepted as fast as many",
        trouble="hot-conversation",
        finding="in normal mode the deliveries of one conversation are committed one by one",
        seeds=(33, 43),
    ),
    ExpectedFailure(
        name="same-key-other-content",
        scenario="inbox",
        invariant="what is acknowledged is kept",
        trouble="same-key",
        finding="a delivery whose msgId is known is answered 200 and dropped although its content is another one",
        seeds=(2, 19),
    ),
    ExpectedFailure(
        name="lost-inbox",
        scenario="inbox",
        invariant="nothing is acknowledged without an inbox",
        trouble="lost-inbox",
        finding="a receiver whose inbox was deleted goes on answering 200",
        seeds=(6, 9),
    ),
    ExpectedFailure(
        name="policy-older-than-retention",
        scenario="inbox",
        invariant="a recorded delivery is handled once",
        trouble="short-retention",
        finding="a policy may accept deliveries that are older than the keys that the inbox remembers",
        seeds=(10, 39),
    ),
    ExpectedFailure(
        name="lease-survives-one-failed-renewal",
        scenario="inbox",
        invariant="one handler at a time in a conversation",
        trouble="failed-renewals",
        finding="a renewal of leases that failed is not tried again before the next third of the lease",
        seeds=(12, 15),
    ),
)


def expected_in(scenario: str, result: Mapping[str, Any]) -> dict[str, ExpectedFailure]:
    """Return the entries that may break an invariant in such a run, by invariant."""
    troubles = result["troubles"]
    return {each.invariant: each for each in reversed(EXPECTED) if each.scenario == scenario and each.trouble in troubles}


def unexpected(scenario: str, result: Mapping[str, Any]) -> Iterable[str]:
    """Return the invariants that were broken and that no entry expects to be."""
    known = expected_in(scenario, result)
    return [each for each in invariants(result) if each not in known]
