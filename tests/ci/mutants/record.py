"""The results of mutants: kept while they come, and counted for the page on reliability."""

import json
import tomllib

from attrs import asdict

from .mutation import ROOT
from .session import Result

RECORD = ROOT / "docs" / "internals" / "proof" / "mutants.json"
REASONS = ROOT / "tests" / "ci" / "mutants" / "reasons.toml"

NEW = "new"  # the kind of a survivor without a reason
NOTICED = ("killed", "timed out")


class Results:
    """The results of an area in a file, so that a run can go on where another one has ended."""

    def __init__(self, work, area):
        self._path = work / f"{area.replace(' ', '-')}.jsonl"
        self._results = {}
        if self._path.exists():
            for line in self._path.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                self._results[result.key] = result

    def of(self, mutant):
        """Return the result of a mutant, or None if there is none for this text of its function."""
        result = self._results.get(mutant.key)
        return result if result is not None and result.digest == mutant.digest else None

    def noticed(self, mutant):
        result = self.of(mutant)
        return result is not None and result.verdict in NOTICED

    def add(self, result):
        self._results[result.key] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def reasons():
    rows = tomllib.loads(REASONS.read_text(encoding="utf-8"))["survivor"]
    found = {row["mutant"]: {"kind": row["kind"], "reason": row["reason"]} for row in rows}
    assert len(found) == len(rows), "a survivor stands there twice"
    return found


def area_record(modules, every, sample, results):
    """Return the counts of an area and its survivors. A mutant without a result does not count."""
    known = reasons()
    tried = [(mutant, result) for mutant in sample if (result := results.of(mutant)) is not None]
    survivors = [
        {
            "mutant": mutant.key,
            "place": f"{mutant.path}:{mutant.line}",
            "change": mutant.change(),
            **known.get(mutant.key, {"kind": NEW, "reason": ""}),
        }
        for mutant, result in tried
        if result.verdict == "survived"
    ]
    return {
        "modules": list(modules),
        "possible": every,
        "mutants": len(tried),
        "noticed": sum(result.verdict in NOTICED for _, result in tried),
        "survived": len(survivors),
        "survivors": sorted(survivors, key=lambda row: row["mutant"]),
    }
