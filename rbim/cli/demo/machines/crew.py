"""Processes by name: started, killed, started again, and all ended with the block."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["RBIM", "Crew"]

_PATHS = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100  # entries are texts; they may be relative
RBIM = (
    sys.executable,
    "-X",
    "utf8",
    "-c",
    f"import sys; sys.path[:] = {_PATHS!r}; from rbim.cli.entry_point import main; main()",
)
"""The command line of this program, also if it runs from an archive (zipapp), which its interpreter does not know."""

LAST_LINES = 3  # of a log, in an error

# Ctrl-C of the terminal is for the demo alone: it ends the others.
_APART: dict[str, Any] = (
    {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)} if os.name == "nt" else {"start_new_session": True}
)


@define(eq=False)
class Crew:
    """The processes. Each writes to a log of its name in ``folder``, which is its working directory, too."""

    folder: Path
    environment: Mapping[str, str]
    _commands: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = field(init=False, factory=dict[str, Any])
    _processes: dict[str, subprocess.Popen[Any]] = field(init=False, factory=dict[str, Any])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with ExitStack() as stack:  # also the others, if one cannot be ended
            for name in self._processes:
                stack.callback(self.kill, name)

    def start(self, name: str, *command: str, **variables: str) -> None:
        """Start a process of this name with further environment variables."""
        self._commands[name] = command, variables
        self.start_again(name)

    def start_again(self, name: str) -> None:
        """Start a process that has ended, with the same command."""
        command, variables = self._commands[name]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603  # commands of the demo
                command,
                cwd=self.folder,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **_APART,
            )

    def kill(self, name: str) -> None:
        """End a process at once (``kill -9``) and wait until it is gone."""
        process = self._processes[name]
        process.kill()
        process.wait()

    def number(self, name: str) -> int:
        """Return the number of a process."""
        return self._processes[name].pid

    def code(self, name: str) -> int | None:
        """Return the exit code of a process, None while it runs."""
        return self._processes[name].poll()

    def said(self, name: str) -> str:
        """Return the last lines that a process wrote, as one line."""
        log = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return " / ".join(log.splitlines()[-LAST_LINES:])
