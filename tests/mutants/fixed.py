"""A few mutants that a test noticed, each with this test: a short form of the whole, for every change of rbim."""

from __future__ import annotations

from .mutation import Mutant, mutants_of

__all__ = ["FIXED", "fixed_mutants"]

FIXED: dict[str, str] = {}


def fixed_mutants() -> list[tuple[Mutant, str]]:
    """Return the mutants with their tests. Raises LookupError if the code of one has changed: choose another one then."""
    paths = dict.fromkeys(key.partition(" ")[0] for key in FIXED)
    found = {mutant.key: mutant for path in paths for mutant in mutants_of(path)}
    if missing := [key for key in FIXED if key not in found]:
        raise LookupError(f"no such mutants any more: {missing}")
    return [(found[key], test) for key, test in FIXED.items()]
