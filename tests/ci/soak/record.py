"""Write the results of a soak as a document from which the page on reliability and its chart are made."""

import json
import os
import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

from .verdict import BOUNDS

POINTS = 60  # of a course
DRAWN = ("memory", "descriptors", "connections", "threads", "tasks")
PACKAGES = ("aiohttp", "anyio", "httpx", "httpx2", "uvicorn")


def thinned(values):
    """Return at most so many values: the highest of each stretch, so that no peak is lost."""
    number = min(POINTS, len(values))
    edges = [round(each * len(values) / number) for each in range(number + 1)]
    return [max(values[begin:end]) for begin, end in pairwise(edges)]


def record(results, path):
    """Write the document: versions, and of each run its counts, its verdicts, and the courses that are drawn."""
    document = {
        "commit": results[0]["commit"],
        "date": results[0]["date"],
        "versions": {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version, **_versions()},
        "machine": f"{platform.system()}, {os.cpu_count()} processors, with other work beside it",
        "runs": [_run(each) for each in results],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _versions():
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _run(result):
    samples = result["samples"]
    files = [each["figure"] for each in result["verdicts"] if each["figure"] not in BOUNDS]
    return {
        "scenario": result["scenario"],
        "minutes": result["minutes"],
        "rate": result["rate"],
        "samples": len(samples),
        "counts": dict(sorted(result["counts"].items(), key=lambda item: -item[1])),
        "verdicts": [_rounded(each) for each in result["verdicts"]],
        "losses": result["losses"],
        "courses": {name: thinned([each[name] for each in samples]) for name in (*DRAWN, *files)},
    }


def _rounded(verdict):
    return {name: round(value, 1) if isinstance(value, float) else value for name, value in verdict.items()}
