"""The flags that every command takes, before or after its name: profile, address of the platform, amount of output."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

__all__ = [
    "FLAGS",
    "GLOBAL_FLAGS_HELP",
    "SWITCHES",
    "GlobalFlags",
    "WrongFlag",
    "current_flags",
    "split_global_flags",
    "using_flags",
]

FLAGS = {
    "profile": ("NAME", "The profile of rbim.toml (RBIM_PROFILE)."),
    "config": ("FILE", "The only configuration file to read (RBIM_CONFIG)."),
    "base-url": ("URL", "The platform's address (RBIM_BASE_URL)."),
    "transport": ("NAME", "httpx, httpx2, aiohttp, pyreqwest or asyncio (RBIM_TRANSPORT)."),
}
"""The flags with a value: the value's name in the help, and the help."""

SWITCHES = {"debug": "Show tracebacks, and log every attempt on standard error."}
GLOBAL_FLAGS_HELP = (
    f"Every command also takes {', '.join(f'--{name}' for name in (*FLAGS, *SWITCHES))}. They and the exit codes are in "
    "`rbim --help`."
)
"""The sentence about them in the help of every command."""

END = "--"


class GlobalFlags(NamedTuple):
    """The values of these flags; None for a flag that is not given."""

    profile: str | None = None
    config: str | None = None
    base_url: str | None = None
    transport: str | None = None
    debug: bool = False


class WrongFlag(Exception):
    """A flag without its value, with a value it does not take, or given twice."""


_current: ContextVar[GlobalFlags | None] = ContextVar("rbim_flags", default=None)


def current_flags() -> GlobalFlags:
    """Return the global flags of the running command."""
    return _current.get() or GlobalFlags()


@contextmanager
def using_flags(flags: GlobalFlags) -> Generator[None]:
    """Make these the :func:`current_flags` in the block; with ``debug``, write the log of rbim to standard error."""
    before = _current.set(flags)
    try:
        if flags.debug:
            from rbim.cli.logging import logging_to_stderr

            with logging_to_stderr():
                yield
        else:
            yield
    finally:
        _current.reset(before)


def split_global_flags(tokens: Sequence[str]) -> tuple[GlobalFlags, list[str]]:
    """Return these flags, and the command line without them. Raises WrongFlag.

    A user-defined operation may have a field of the same name: after its command the flag is the field's; before it, the
    global one.
    """
    found: dict[str, Any] = {}  # FLAGS are texts, SWITCHES are True
    rest: list[str] = []
    own: Iterable[str] = ()
    remaining = iter(tokens)
    for token in remaining:
        name, equals, value = token.removeprefix("--").partition("=")
        if token == END:
            rest += [token, *remaining]
        elif not token.startswith("--") or name in own or name not in {*FLAGS, *SWITCHES}:
            rest.append(token)
            own = _fields(rest) if len(rest) == COMMAND else own
        elif name.replace("-", "_") in found:
            raise WrongFlag(f"--{name} is given twice")
        elif name in FLAGS:
            found[name.replace("-", "_")] = _value(name, value if equals else next(remaining, ""))
        elif equals:
            raise WrongFlag(f"--{name} takes no value")
        else:
            found[name] = True
    return GlobalFlags(**found), rest


COMMAND = 2
"""The number of words in the name of an operation's command."""


def _value(name: str, value: str) -> str:
    if not value or value.startswith("--"):
        raise WrongFlag(f"--{name} needs a value: {FLAGS[name][0]}")
    return value


def _fields(command: Sequence[str]) -> frozenset[str]:
    """Return the names of the flags of an operation's command; empty for any other command."""
    from rbim.operations.base import fields_of
    from rbim.operations.catalogue import entries

    namespace, method = command
    return frozenset(
        field.name.strip("_").replace("_", "-")
        for entry in entries()
        if (entry.namespace, entry.method.replace("_", "-")) == (namespace, method)
        for field in fields_of(entry.operation)
    )
