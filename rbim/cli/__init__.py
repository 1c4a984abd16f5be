"""The command line ``rbim``: operations derived from the catalogue, and a demonstration. Needs the extra ``cli``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from rbim.cli.exits import Exit
from rbim.cli.extras import MissingExtra, needed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App

__all__ = ["Exit", "build_app", "main", "run"]


def main(tokens: Sequence[str] | None = None) -> NoReturn:
    """Carry out the command line (that of this process unless ``tokens`` are given) and exit; see :class:`Exit`."""
    sys.exit(run(tokens))


def run(tokens: Sequence[str] | None = None) -> int:
    """Carry out the command line and return its exit code."""
    try:
        needed("cli", "cyclopts", "rich")
    except MissingExtra as missing:
        sys.stderr.write(f"rbim: {missing}\n")
        return Exit.USAGE
    from rbim.cli.app import run_app

    return run_app(build_app(), sys.argv[1:] if tokens is None else tokens)


def build_app() -> App:
    """Return the command line as a cyclopts application, with a command for every operation that is declared by now."""
    from rbim.cli.app import build

    return build()
