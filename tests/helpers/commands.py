"""The commands of ``rbim``, read from the application itself."""

from collections.abc import Callable
from functools import cache

from cyclopts import App

from rbim.cli import build_app


def commands(app: App | None = None, above: tuple[str, ...] = ()) -> list[str]:
    """Return every command of the tree, groups of commands before what is in them."""
    app = app or build_app()
    found: list[str] = []
    for name in app:
        if not name.startswith("-"):
            found += [" ".join([*above, name]), *commands(app[name], (*above, name))]
    return found


@cache
def leaves() -> tuple[str, ...]:
    return tuple(command for command in commands() if function_of(command) is not None)


def function_of(command: str) -> Callable[..., object] | None:
    """Return the function of a command; None for a group of commands that does nothing itself."""
    app = build_app()
    for word in command.split():
        app = app[word]
    return app.default_command
