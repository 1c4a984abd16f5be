"""``rbim completion``: print or install a completion script for a shell."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from cyclopts import Parameter

from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.global_flags import DIALECT_FLAGS, FLAGS, SWITCHES
from rbim.config.keys import TRANSPORTS
from rbim.dialect_text import dialect_fields

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["completion"]

Shell = Literal["bash", "zsh", "fish"]


def completion(
    shell: Shell | None = None, /, *, install: Annotated[bool, Parameter(negative=(), show_default=False)] = False
) -> int:
    """Print a script with which a shell completes commands and flags.

    Operations of the modules in RBIM_IMPORT are included.

    Parameters
    ----------
    shell
        The shell (default: the one that runs this command).
    install
        Write the script to the shell's directory for completions, and add a line to the shell's start-up file if it is
        needed. Print the name of the script's file.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from rbim.cli.app import build

    try:
        found = shell or detect_shell()
    except ShellDetectionError:
        print_error("cannot detect the shell: name it (bash, zsh or fish)", "See: rbim completion --help")
        return Exit.USAGE
    app = build()
    app.default(_global_flags())
    if not install:
        sys.stdout.write(app.generate_completion(prog_name="rbim", shell=found))
        return Exit.DONE
    path = app.install_completion(shell=found)
    sys.stdout.write(f"{path}\n")
    return Exit.DONE


def _global_flags() -> Callable[..., None]:
    """Return a function whose parameters are the global flags, which the parser of commands never sees."""

    def unused() -> None:
        raise AssertionError

    kinds: dict[str, Any] = dict.fromkeys(FLAGS, str | None) | dict.fromkeys(SWITCHES, bool)
    kinds |= {"config": Path | None, "transport": cast("Any", Literal)[TRANSPORTS] | None}
    helps = {name: text for name, (_, text) in FLAGS.items()} | SWITCHES
    for name, field in DIALECT_FLAGS.items():
        choices = dialect_fields()[field].form.choices
        kinds[name] = cast("Any", Literal)[choices] | None if choices else str | None
        helps[name] = dialect_fields()[field].gap.choice
    unused.__annotations__ = {}
    parameters = [
        inspect.Parameter(
            name.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=False if kind is bool else None,
            annotation=Annotated[kind, Parameter(name=f"--{name}", negative=(), help=helps[name])],
        )
        for name, kind in kinds.items()
    ]
    unused.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
    return unused
