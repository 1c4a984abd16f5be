"""The four scenarios by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .driver import Account, Subject
    from .probe import Plan, Probe
    from .verdict import Bound

__all__ = ["SCENARIOS", "Scenario", "scenario"]

SCENARIOS = ("client", "job", "receiver", "emulator")


class Scenario(Protocol):
    """A module of a scenario. ``BOUNDS`` are those of its own figures; the others hold for all."""

    BOUNDS: Mapping[str, Bound]

    async def subject(self, probe: Probe, *words: str) -> None:
        """Run in the process under observation until ``probe.stopping``."""

    async def drive(self, plan: Plan, seconds: float, account: Account) -> Subject:
        """Run the subject for so many seconds; return it with its samples."""


def scenario(name: str) -> Scenario:
    """Return the module of a scenario."""
    return cast("Any", import_module(f"{__package__}.{name}"))
