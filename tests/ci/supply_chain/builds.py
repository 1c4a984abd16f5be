"""Two builds are the same bytes; the source distribution has all that its tests need."""

import hashlib
import os
import sys
import tarfile
import time

from .environments import Failed, run, sources, tracked

PLACES = (
    ("a", 0o022, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    ("another folder with a longer name", 0o077, {"TZ": "Asia/Shanghai", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
)
"""The folder, the umask and the environment of each build; their times differ by a day."""

DAY = 86_400
LEFT_OUT = {".gitignore"}  # files of the repository that the source distribution does not need

SHORT = (
    "tests/description/test_table.py",
    "tests/ci/docs/test_contributing.py",
    "tests/ci/docs/test_readme.py",
    "tests/test_public_api.py",
    "tests/test_public_names.py",
    "tests/test_earlier_files.py",
)
"""Tests that read files of the repository, of every kind, and take seconds."""


def built(folder, out, environment=None):
    run([sys.executable, "-m", "hatchling", "build", "-d", out], cwd=folder, environment=environment)
    return {path.suffix.removeprefix("."): path for path in out.iterdir()}


def reproducible(folder):
    """Build twice, at other places, times, modes, languages and hash seeds, and compare the bytes."""
    sums = []
    for number, (name, mask, environment) in enumerate(PLACES):
        before = os.umask(mask)
        try:
            copy = sources(folder / name)
            for path in copy.rglob("*"):
                if path.is_file():
                    path.chmod((0o755 if path.stat().st_mode & 0o100 else 0o644) & ~mask)
                    os.utime(path, (time.time() - number * DAY,) * 2)
            made = built(copy, folder / f"out {number}", environment)
        finally:
            os.umask(before)
        sums.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made.values()})
    if sums[0] != sums[1]:
        raise Failed(f"two builds differ: {sums}")
    wheel = next(digest for name, digest in sums[0].items() if name.endswith(".whl"))
    return {"same": sorted(sums[0]), "sha256 of the wheel": wheel}  # that of the other changes with the record of it


def source_distribution(folder):
    """Unpack the source distribution elsewhere, compare its files with the repository's, and run its own tests there."""
    out = folder / "out"
    path = built(sources(folder / "sources"), out)["gz"]
    with tarfile.open(path) as opened:
        opened.extractall(folder / "unpacked", filter="data")
    (place,) = (folder / "unpacked").iterdir()
    found = {each.relative_to(place).as_posix() for each in place.rglob("*") if each.is_file()}
    missing = set(tracked()) - found - LEFT_OUT
    if missing:
        raise Failed(f"the source distribution has no {', '.join(sorted(missing)[:10])}")
    text = (place / "README.md").read_text(encoding="utf-8")
    if "python -m pytest -n auto" not in text:
        raise Failed("README.md has no command for the tests")
    environment = {"PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    told = run([sys.executable, "-c", "import rbim; print(rbim.__file__)"], cwd=place, environment=environment).strip()
    if told != str(place / "rbim" / "__init__.py"):
        raise Failed(f"the tests would run with {told}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    passed = run([*command, *SHORT], cwd=place, environment=environment).splitlines()[-1]
    return {"files": len(found), "passed": passed.strip("= ")}
