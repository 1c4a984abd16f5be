"""``rbim completion``: print or install a completion script for a shell."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args

from cyclopts import App, Parameter

from rbim.cli.errors import print_error
from rbim.cli.exit_codes import Exit
from rbim.cli.file_names import FILE_NAME
from rbim.cli.global_flags import DIALECT_FLAGS, FLAGS, SWITCHES
from rbim.dialect_text import dialect_fields
from rbim.transports import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = ["completion"]

Shell = Literal["bash", "zsh", "fish"]

NEWLINE = "\n"
COMPLETES = re.compile("compinit|oh-my-zsh|prezto|zinit|zplug|antigen|antidote")
"""Words in a start-up file of zsh that sets up completion."""


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
        Write the script to the shell's directory for completions, and make the shell's start-up file load it if that is
        needed. Print the name of the script's file, and of the start-up file if it was changed. New shells use it.
    """
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from rbim.cli.app import build

    try:
        found = shell or detect_shell()
    except ShellDetectionError:
        print_error("cannot detect the shell: name it (bash, zsh or fish)", "See: rbim completion --help")
        return Exit.USAGE
    app = _with_dialect_flags(build())
    app.default(_parameters([*_global_flags(), *_dialect_flags(EVERY)]))
    if not install:
        sys.stdout.write(app.generate_completion(prog_name="rbim", shell=found))
        return Exit.DONE
    start_up = _start_up_file(found)
    before = _text_of(start_up)
    path = app.install_completion(shell=found, add_to_startup=found != "zsh")
    if found == "zsh" and start_up is not None:
        _load_in_zsh(path, start_up, before)
    changed = [] if _text_of(start_up) == before else [start_up]
    sys.stdout.write("".join(f"{each}\n" for each in (path, *changed)))
    return Exit.DONE


def _start_up_file(shell: str) -> Path | None:
    """Return the file that an interactive shell reads at its start; None for fish, which finds the script by itself."""
    if shell == "zsh":
        return Path(os.environ.get("ZDOTDIR") or Path.home(), ".zshrc")
    return Path.home() / ".bashrc" if shell == "bash" else None


def _text_of(file: Path | None) -> str:
    return "" if file is None or not file.exists() else file.read_text(encoding="utf-8", errors="surrogateescape")


def _load_in_zsh(script: Path, start_up: Path, text: str) -> None:
    """Let zsh find the script before it sets up completion, and let it set up completion if nothing does.

    Without ``compinit`` zsh completes nothing but file names. Frameworks call it themselves; oh-my-zsh has its own folder.
    """
    lines = text
    if not any(name in os.environ for name in ("ZSH", "ZSH_CUSTOM")) and str(script.parent) not in text:
        lines = f"# rbim completion\nfpath=({shlex.quote(str(script.parent))} $fpath)\n{lines}"
    if not COMPLETES.search(text):
        lines += f"{'' if lines.endswith(NEWLINE) or not lines else NEWLINE}autoload -Uz compinit && compinit\n"
    if lines != text:
        start_up.parent.mkdir(parents=True, exist_ok=True)
        start_up.write_text(lines, encoding="utf-8", errors="surrogateescape")


EVERY = ("", "emulator and receiver", "receiver", "emulator")
USED: Mapping[str, Collection[str]] = MappingProxyType(
    {
        **dict.fromkeys(("emulator", "demo", "config"), EVERY),
        "callback": ("emulator and receiver", "receiver"),
        **dict.fromkeys(("operations", "dialect", "completion"), ()),
    }
)
"""The only users of the fields whose flags are completed after a command; for all others, the fields of the client."""


def _with_dialect_flags(app: App, used: Collection[str] | None = None) -> App:
    """Return a copy whose commands have the flags of the dialect, too: only those that change something there.

    The application's own commands are those of this process, and stay as they are.
    """
    copy = App(name=app.name, help=app.help, help_format=app.help_format)
    if callable(app.default_command):
        copy.default(_parameters(_dialect_flags(used or ()), app.default_command))
    for name in (name for name in app if not name.startswith("-")):
        here = USED.get(name, ("",)) if used is None else used
        copy.command(_with_dialect_flags(app[name], here), name=name)
    return copy


def _parameters(flags: list[inspect.Parameter], command: Callable[..., object] | None = None) -> Callable[..., None]:
    """Return a function with the parameters of a command, and these that it does not have; it is never called."""

    def unused() -> None:
        raise AssertionError

    own = {} if command is None else {each.name: _with_files(each) for each in _own(command)}
    more = [flag for flag in flags if flag.name not in own]  # a field of an operation hides the flag
    unused.__doc__ = None if command is None else command.__doc__
    unused.__annotations__ = {}
    unused.__signature__ = inspect.Signature([*own.values(), *more])  # type: ignore[attr-defined]  # read by inspect
    return unused


def _own(command: Callable[..., object]) -> Iterable[inspect.Parameter]:
    return inspect.signature(command, eval_str=True).parameters.values()


def _with_files(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter that names a file as one whose type is a path, for which shells complete file names."""
    metadata = get_args(parameter.annotation)[1:]
    return parameter.replace(annotation=Annotated[(Path, *metadata)]) if FILE_NAME in metadata else parameter


def _global_flags() -> list[inspect.Parameter]:
    """Return the global flags, which the parser of commands never sees."""
    kinds: dict[str, Any] = dict.fromkeys(FLAGS, str | None) | dict.fromkeys(SWITCHES, bool)
    kinds |= {"config": Path | None, "transport": cast("Any", Literal)[TRANSPORTS] | None}
    helps = {name: text for name, (_, text) in FLAGS.items()} | SWITCHES
    return [_parameter(name, kind, helps[name]) for name, kind in kinds.items()]


def _dialect_flags(used: Collection[str]) -> list[inspect.Parameter]:
    """Return the flags of the dialect's fields with one of these only users."""
    fields = {name: dialect_fields()[field] for name, field in DIALECT_FLAGS.items()}
    return [
        _parameter(
            name, cast("Any", Literal)[choices] | None if (choices := field.form.choices) else str | None, field.gap.choice
        )
        for name, field in fields.items()
        if field.gap.only in used
    ]


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    return inspect.Parameter(
        name.replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=False if kind is bool else None,
        annotation=Annotated[kind, Parameter(name=f"--{name}", negative=(), help=text)],
    )
