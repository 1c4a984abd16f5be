"""rbim's command line in a process that kills itself at one moment of a job.

Run by tests: ``python killed_at.py POINT MOMENT NTH COMMAND...``. ``POINT`` is a function of rbim, as ``module:name`` or
``module:Class.name``, whose n-th call ends the process: ``after`` it, or ``committed``, after the next commit of the
journal. ``-`` for ``POINT``: the process lives.
"""

import os
import signal
import sys
from functools import wraps
from importlib import import_module

from rbim.bulk.journal import loading
from rbim.bulk.journal.journal import Journal
from rbim.cli.entry_point import main


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def plant(point: str, moment: str, nth: int) -> None:
    module, _, names = point.partition(":")
    *inside, name = names.split(".")
    owner = import_module(module)
    for each in inside:
        owner = getattr(owner, each)
    real, commit = getattr(owner, name), Journal.commit
    calls, due = [], []

    @wraps(real)
    def planted(*args, **options):
        calls.append(point)
        result = real(*args, **options)
        if len(calls) == nth and moment == "after":
            die()
        if len(calls) == nth:
            due.append(point)
        return result

    def committed(*args, **options):
        result = commit(*args, **options)
        if due:
            die()
        return result

    setattr(owner, name, planted)
    if moment == "committed":
        Journal.commit = committed


if __name__ == "__main__":
    loading.BATCH = 50
    if sys.argv[1] != "-":
        plant(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    sys.argv[1:] = sys.argv[4:]
    main()
