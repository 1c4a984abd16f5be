"""A few mutants that a test noticed, each with this test: a short form of the whole, for every change of rbim."""

import tomllib
from pathlib import Path

from .mutation import mutants_of


def fixed_mutants():
    """Return the mutants of ``fixed.toml`` with their tests. Raises LookupError if the code of one has changed."""
    rows = tomllib.loads(Path(__file__).with_name("fixed.toml").read_text(encoding="utf-8"))["mutant"]
    paths = dict.fromkeys(row["name"].partition(" ")[0] for row in rows)
    found = {mutant.key: mutant for path in paths for mutant in mutants_of(path)}
    if missing := [row["name"] for row in rows if row["name"] not in found]:
        raise LookupError(f"no such mutants any more, choose others: {missing}")
    return [(found[row["name"]], row["test"]) for row in rows]
