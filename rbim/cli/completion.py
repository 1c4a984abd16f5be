"""``rbim completion``: what makes a shell complete commands and flags."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from rbim.cli.errors import complain
from rbim.cli.exit_codes import Exit
from rbim.cli.global_flags import FLAGS, SWITCHES
from rbim.config.keys import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["completion"]

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Shell | None = None, /, *, install: Annotated[bool, Parameter(negative=(), show_default=False)] = False
) -> int:
    """Print what makes a shell complete commands and flags: operations of one's own, too, where RBIM_IMPORT names them.

    Parameters
    ----------
    shell
        The shell: that from which this is called, unless told.
    install
        Write it to where the shell looks for such things, and have the shell's start-up file load it where that is needed.
        Both are printed.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from rbim.cli.app import build

    try:
        found = shell or detect_shell()
    except ShellDetectionError:
        complain("which shell? It could not be found out: say bash, zsh or fish", "See: rbim completion --help")
        return Exit.USAGE
    app = build()
    app.default(_everywhere())
    if not install:
        sys.stdout.write(app.generate_completion(prog_name="rbim", shell=found))
        return Exit.DONE
    path = app.install_completion(shell=found)
    sys.stdout.write(f"{path}\n")
    return Exit.DONE


def _everywhere() -> Callable[..., None]:
    """Return a function whose parameters are the flags of every command, which the parser of commands never sees."""

    def nothing() -> None:
        raise AssertionError

    kinds: dict[str, Any] = dict.fromkeys(FLAGS, str | None) | dict.fromkeys(SWITCHES, bool)
    kinds |= {"config": Path | None, "transport": cast("Any", Literal)[TRANSPORTS] | None}
    words = {name: what for name, (_, what) in FLAGS.items()} | SWITCHES
    nothing.__annotations__ = {}
    parameters = [
        inspect.Parameter(
            name.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=False if kind is bool else None,
            annotation=Annotated[kind, Parameter(name=f"--{name}", negative=(), help=words[name])],
        )
        for name, kind in kinds.items()
    ]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
    return nothing
