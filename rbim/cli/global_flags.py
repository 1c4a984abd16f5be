"""The flags that every command takes, before or behind it: which profile, where the platform is, and how much is said."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

__all__ = [
    "EVERYWHERE",
    "FLAGS",
    "SWITCHES",
    "GlobalFlags",
    "WrongFlag",
    "current_flags",
    "split_global_flags",
    "using_flags",
]

FLAGS = {
    "profile": ("NAME", "The profile of rbim.toml (RBIM_PROFILE)."),
    "config": ("FILE", "The only configuration file that is read (RBIM_CONFIG)."),
    "base-url": ("URL", "The platform's address (RBIM_BASE_URL)."),
    "transport": ("NAME", "httpx, httpx2, aiohttp, pyreqwest or asyncio (RBIM_TRANSPORT)."),
}
"""The flags with a value: what it is called, and what it says."""

SWITCHES = {"debug": "Show tracebacks, and log every attempt on standard error."}
EVERYWHERE = (
    f"Every command takes {', '.join(f'--{name}' for name in (*FLAGS, *SWITCHES))}, too. These and the exit codes: "
    "`rbim --help`."
)
"""What the help of a command says of them."""

END = "--"


class GlobalFlags(NamedTuple):
    """What these flags say; None where they say nothing."""

    profile: str | None = None
    config: str | None = None
    base_url: str | None = None
    transport: str | None = None
    debug: bool = False


class WrongFlag(Exception):
    """One of these flags has no value, or two."""


_told: ContextVar[GlobalFlags | None] = ContextVar("rbim_flags", default=None)


def current_flags() -> GlobalFlags:
    """Return what the flags of the command that is being carried out say."""
    return _told.get() or GlobalFlags()


@contextmanager
def using_flags(flags: GlobalFlags) -> Generator[None]:
    """Let :func:`current_flags` return these flags, and with ``debug`` what rbim logs go to standard error."""
    before = _told.set(flags)
    try:
        if flags.debug:
            from rbim.cli.logging import logging_to_stderr

            with logging_to_stderr():
                yield
        else:
            yield
    finally:
        _told.reset(before)


def split_global_flags(tokens: Sequence[str]) -> tuple[GlobalFlags, list[str]]:
    """Return what these flags say, and the command line without them. Raises WrongFlag.

    A command's own flag of such a name, as an operation of somebody's own may have, stays with the command: there, the one
    that is meant for every command goes before the command.
    """
    found: dict[str, Any] = {}  # FLAGS are texts, SWITCHES are True
    rest: list[str] = []
    own: Iterable[str] = ()
    waiting = iter(tokens)
    for token in waiting:
        name, equals, value = token.removeprefix("--").partition("=")
        if token == END:
            rest += [token, *waiting]
        elif not token.startswith("--") or name in own or name not in {*FLAGS, *SWITCHES}:
            rest.append(token)
            own = _fields(rest) if len(rest) == COMMAND else own
        elif name.replace("-", "_") in found:
            raise WrongFlag(f"--{name} is given twice")
        elif name in FLAGS:
            found[name.replace("-", "_")] = _value(name, value if equals else next(waiting, ""))
        elif equals:
            raise WrongFlag(f"--{name} takes no value")
        else:
            found[name] = True
    return GlobalFlags(**found), rest


COMMAND = 2
"""Words in the name of an operation's command."""


def _value(name: str, value: str) -> str:
    if not value or value.startswith("--"):
        raise WrongFlag(f"--{name} needs a value: {FLAGS[name][0]}")
    return value


def _fields(command: Sequence[str]) -> frozenset[str]:
    """Return the names of the flags of an operation's command; none for any other."""
    from rbim.operations.base import fields_of
    from rbim.operations.catalogue import entries

    namespace, method = command
    return frozenset(
        field.name.strip("_").replace("_", "-")
        for entry in entries()
        if (entry.namespace, entry.method.replace("_", "-")) == (namespace, method)
        for field in fields_of(entry.operation)
    )
