"""What was run, for the page on reliability: pieces of :data:`PIECE` seeds, and the planted faults that were found.

docs/_derive/simulation.py turns the file into a table. A piece that was recorded for the same code of rbim is not run again,
so that a long run can be interrupted and goes on where it was.
"""

import hashlib
import json
import platform
import subprocess
from pathlib import Path

from .runner import invariants
from .virtual_time import real_today

PIECE = 250
ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "docs" / "internals" / "proof" / "simulation.json"
UNDER_TEST = ("rbim", "tests/simulation")


def pieces(seeds):
    """Divide seeds into whole pieces. Raises ValueError for seeds that are none."""
    wanted = sorted(set(seeds))
    firsts = [seed for seed in wanted if seed % PIECE == 1]
    found = [range(first, first + PIECE) for first in firsts]
    if [seed for piece in found for seed in piece] != wanted:
        raise ValueError(f"--record takes whole pieces of {PIECE} seeds, such as 1-{PIECE} or {PIECE + 1}-{3 * PIECE}")
    yield from found


def _git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _code_of_rbim():
    """Return a digest of the code of rbim."""
    return hashlib.blake2b(_git("ls-tree", "-r", "HEAD", "rbim").encode(), digest_size=6).hexdigest()


class Record:
    """The record of one scenario. Raises ValueError where the code under test is not committed: nobody could repeat it."""

    def __init__(self, scenario):
        if changed := _git("status", "--porcelain", "--", *UNDER_TEST):
            raise ValueError(f"--record needs committed code; changed:\n{changed}")
        self._scenario = scenario
        self._code = _code_of_rbim()
        self._about = {
            "commit": _git("rev-parse", "--short=12", "HEAD"),
            "rbim": self._code,
            "date": f"{real_today():%Y-%m-%d}",
            "python": platform.python_version(),
        }

    def has_piece(self, piece):
        """Tell whether a piece was recorded for this code."""
        return self._is_ours(_read()["pieces"].get(self._scenario, {}).get(_name(piece)))

    def add_piece(self, piece, results):
        """Add what became of the seeds of a piece."""
        told = {
            **self._about,
            "failures": {str(each["seed"]): invariants(each) for each in results if each["broken"]},
            "steps": sum(each["steps"] for each in results),
            "hours": round(sum(each["virtual"] for each in results) / 3600, 2),
            "served": sum(each["served"] for each in results),
        }
        content = _read()
        content["pieces"].setdefault(self._scenario, {})[_name(piece)] = told
        _write(content)

    def has_fault(self, fault):
        """Tell whether the search for a fault was recorded for this code."""
        return self._is_ours(_read()["faults"].get(fault))

    def add_fault(self, fault, last, found):
        """Add the end of a search: the last seed, and the invariants that the fault broke there, if any."""
        content = _read()
        told = {"seed": last["seed"], "broke": list(found)}
        content["faults"][fault] = {"scenario": self._scenario, **self._about, **told}
        _write(content)

    def _is_ours(self, recorded):
        return recorded is not None and recorded["rbim"] == self._code


def _name(piece):
    return f"{piece[0]}-{piece[-1]}"


def _read():
    return json.loads(RECORDED.read_text(encoding="utf-8"))


def _write(content):
    pieces_of = {
        scenario: dict(sorted(found.items(), key=lambda each: int(each[0].partition("-")[0])))
        for scenario, found in sorted(content["pieces"].items())
    }
    ordered = {"pieces": pieces_of, "faults": dict(sorted(content["faults"].items()))}
    RECORDED.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
