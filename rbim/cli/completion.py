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
    app.default(_parameters(_global_flags()))
    emulator = app["emulator"]  # the flags of the dialect also after its name; elsewhere they would hide the command's own
    assert callable(emulator.default_command)  # noqa: S101  # it is declared
    emulator.default_command = _parameters(_dialect_flags(), emulator.default_command)
    if not install:
        sys.stdout.write(app.generate_completion(prog_name="rbim", shell=found))
        return Exit.DONE
    path = app.install_completion(shell=found)
    sys.stdout.write(f"{path}\n")
    return Exit.DONE


def _parameters(flags: list[inspect.Parameter], command: Callable[..., object] | None = None) -> Callable[..., None]:
    """Return a function with these parameters, and those of a command; it is never called."""

    def unused() -> None:
        raise AssertionError

    own = [] if command is None else list(inspect.signature(command, eval_str=True).parameters.values())
    unused.__doc__ = None if command is None else command.__doc__
    unused.__annotations__ = {}
    unused.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]  # read by inspect
    return unused


def _global_flags() -> list[inspect.Parameter]:
    """Return the global flags, which the parser of commands never sees."""
    kinds: dict[str, Any] = dict.fromkeys(FLAGS, str | None) | dict.fromkeys(SWITCHES, bool)
    kinds |= {"config": Path | None, "transport": cast("Any", Literal)[TRANSPORTS] | None}
    helps = {name: text for name, (_, text) in FLAGS.items()} | SWITCHES
    return [*(_parameter(name, kind, helps[name]) for name, kind in kinds.items()), *_dialect_flags()]


def _dialect_flags() -> list[inspect.Parameter]:
    """Return the flags of the dialect."""
    fields = {name: dialect_fields()[field] for name, field in DIALECT_FLAGS.items()}
    return [
        _parameter(
            name, cast("Any", Literal)[choices] | None if (choices := field.form.choices) else str | None, field.gap.choice
        )
        for name, field in fields.items()
    ]


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    return inspect.Parameter(
        name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[kind, Parameter(name=f"--{name}", negative=(), help=text)],
    )
