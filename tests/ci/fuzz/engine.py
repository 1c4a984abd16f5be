"""One process of the engine, which :mod:`tests.ci.fuzz.runner` starts: atheris, with one target.

It does not stop at a finding: the input and the traceback go into the folder of findings, one of each kind.
"""

import contextlib
import hashlib
import importlib
import io
import json
import os
import sys
import traceback
from pathlib import Path

from . import planted_faults
from .broken import Broken

STOPPED = 3  # the exit code after a finding, with ``stop``
ROOT = Path(__file__).parents[3]


def main():
    """Run the engine with the settings of the first argument, a JSON object; the others go to libFuzzer."""
    settings = json.loads(sys.argv[1])
    import atheris

    name = settings["target"]
    notes = io.StringIO()
    findings = Findings(Path(settings["findings"]), stop=settings["stop"])
    with contextlib.redirect_stderr(notes), atheris.instrument_imports(include=settings["instrument"]):
        target = importlib.import_module(f"tests.ci.fuzz.targets.{name}")
        if settings["fault"] is not None:
            planted_faults.plant(settings["fault"])
        check = findings.checked(target.check)
        for seed in target.seeds():  # they import what rbim imports late, so that it is instrumented too
            check(seed)
    atheris.Setup([settings.get("program", sys.argv[0]), *sys.argv[2:]], check)
    atheris.Fuzz()


class Findings:
    """The folder of findings: an input and its traceback for each kind."""

    def __init__(self, folder, *, stop):
        self._folder = folder
        self._stop = stop
        self._known = set()

    def checked(self, check):
        """Return the function that notes a finding in place of raising it."""

        def checked(data):
            try:
                check(data)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._note(data, error)

        return checked

    def _note(self, data, error):
        kind = kind_of(error)
        if kind in self._known:
            return
        self._known.add(kind)
        path = self._folder / hashlib.sha256(kind.encode()).hexdigest()[:12]
        path.with_suffix(".txt").write_text(f"{kind}\n{data!r}\n\n{''.join(traceback.format_exception(error))}")
        path.with_suffix(".input").write_bytes(data)
        sys.stderr.write(f"FINDING: {kind}\n")
        if self._stop:
            sys.stderr.flush()
            os._exit(STOPPED)


def kind_of(error):
    """Return the rule of a broken promise, or the exception's class and the place in the project that raised it."""
    if isinstance(error, Broken):
        return error.rule
    places = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(str(ROOT))]
    place = places[-1] if places else None
    return type(error).__name__ if place is None else f"{type(error).__name__} in {place.name}: {place.line}"


if __name__ == "__main__":
    main()
