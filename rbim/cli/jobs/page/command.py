"""The page as the command of a job sees it: a process to which it writes what it knows, and never waits for.

The process gets lines of JSON on its standard input: the journal, then the progress twice a second, then the end. It
answers with one line, the address. A thread writes the lines: if the page is stuck, its progress is left out, and the job
does not notice. The process has none of the credentials, and ends when its standard input does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from rbim._support import json
from rbim.cli.global_flags import current_flags
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from rbim.bulk.progress import Snapshot

__all__ = ["JobPage"]

STARTS_WITHIN = 20.0  # seconds
ENDS_WITHIN = 1.0  # seconds; most that the page delays the end of the command
MOST_OF_CAUSE = 1000  # characters

_CODE = (
    "import sys, json; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from rbim.cli.jobs.page.process import main; main()"
)
"""The program of the process, also where rbim runs from an archive (zipapp), which the interpreter does not know."""

# Ctrl-C of the terminal is for the job alone, which ends the page.
_APART: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)} if os.name == "nt" else {"start_new_session": True}
)


class JobPage:
    """The page of a job in a process of its own, while its block runs; ``url`` is its address, with the token.

    Entering starts the process and waits for the address. Raises InvalidRequest if it cannot be started.
    """

    def __init__(self, journal: Path, command: str) -> None:
        self.url = ""
        self._first = {"journal": str(journal), "command": command}
        self._process: subprocess.Popen[Any] | None = None
        self._writer: threading.Thread | None = None
        self._changed = threading.Condition()
        self._next: Mapping[str, Any] | None = None
        self._ending: Mapping[str, Any] | None = None
        self._closed = False

    def __enter__(self) -> Self:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
        try:
            self._process = process = subprocess.Popen(  # noqa: S603  # this program
                [sys.executable, "-X", "utf8", "-c", _CODE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if current_flags().debug else subprocess.DEVNULL,
                env=variables,
                **_APART,
            )
            self.url = self._started(process)
        except BaseException as error:
            self._kill()
            if isinstance(error, OSError):
                cause = error.strerror or error
                raise InvalidRequest(f"--page: the page cannot be started: {cause}", field="page") from None
            raise
        self._writer = threading.Thread(target=self._write, name="rbim page", daemon=True)
        self._writer.start()
        return self

    def _started(self, process: subprocess.Popen[Any]) -> str:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018  # pipes
        watchdog = threading.Timer(STARTS_WITHIN, process.kill)
        watchdog.start()
        try:
            paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100  # also the name of an archive
            with suppress(OSError):  # it has ended already: then there is no line
                process.stdin.write(json.dumps(paths) + b"\n" + json.dumps(self._first) + b"\n")
                process.stdin.flush()
            line = process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise InvalidRequest("--page: the page's process ended at once: run the command without --page", field="page")
        return str(json.loads(line)["url"])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the page: it gets a second for what its watchers have not received yet."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        process = self._process
        if process is None:
            return
        try:
            process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            if self._writer is not None:
                self._writer.join(ENDS_WITHIN)  # nothing reads the pipe any more
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def update(self, snapshot: Snapshot) -> None:
        """Show a snapshot of the progress. Never waits."""
        document = attrs.asdict(snapshot)
        document["cause"] = snapshot.cause[:MOST_OF_CAUSE]
        with self._changed:
            self._next = {"progress": document}
            self._changed.notify()

    def end(self, document: Mapping[str, Any]) -> None:
        """Show the end of the command, and the report."""
        with self._changed:
            self._ending = {"end": document}
            self._changed.notify()

    def _write(self) -> None:
        """Write lines until the end; a thread that is stuck in it ends with the process."""
        pipe = None if self._process is None else self._process.stdin
        assert pipe is not None  # noqa: S101  # a pipe
        try:
            while (line := self._taken()) is not None:
                rest = json.dumps(line) + b"\n"
                while rest:
                    rest = rest[os.write(pipe.fileno(), rest) :]
            pipe.close()
        except (OSError, ValueError):  # the page has ended
            return

    def _taken(self) -> Mapping[str, Any] | None:
        """Wait for the next line: the newest progress, then the end; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._next or self._ending or self._closed)
            line, self._next = self._next, None
            if line is None and self._ending is not None:
                line, self._ending = self._ending, None
            return line
