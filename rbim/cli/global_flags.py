"""The flags that every command takes, before or after its name, and commands of rbim as texts for a shell."""

from __future__ import annotations

import os
import sys
from collections import deque
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim._support.text import printable, visible

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

__all__ = [
    "END",
    "FLAGS",
    "GLOBAL_FLAGS_HELP",
    "JSON",
    "SWITCHES",
    "GlobalFlags",
    "WrongFlag",
    "command_line",
    "current_flags",
    "given_flags",
    "quoted_words",
    "same_with",
    "split_global_flags",
    "using_flags",
    "with_flag",
]

FLAGS = {
    "profile": ("NAME", "The profile of the configuration file (RBIM_PROFILE)."),
    "config": ("FILE", "The configuration file, in place of your own (RBIM_CONFIG)."),
    "base-url": ("URL", "The platform's address (RBIM_BASE_URL)."),
    "transport": ("NAME", "auto, httpx, httpx2, aiohttp or asyncio (RBIM_TRANSPORT; default: auto)."),
    "dialect": ("KEY=VALUE", "A field of the dialect; it may be repeated (RBIM_DIALECT). See `rbim dialect`."),
}
"""The flags with a value: the value's name in the help, and the help."""

SWITCHES = {
    "debug": "Show tracebacks, and log every attempt on standard error.",
    "version": "Show the version of rbim and exit.",
}
GLOBAL_FLAGS_HELP = (
    f"Every command also takes {', '.join(f'--{name}' for name in (*FLAGS, *SWITCHES))}. They and the exit codes are in "
    "`rbim --help`."
)
"""The sentence about them in the help of every command."""

END = "--"
JSON = ("--json", "--rbim-json")
"""The flags of commands that print a JSON document; the second one, if the operation has a field ``json``."""
JSON_NAMES = tuple(flag.removeprefix("--") for flag in JSON)


class GlobalFlags(NamedTuple):
    """The values of these flags; None for a flag that is not given.

    ``json``: the command is to print a JSON document. ``dialect`` has the text of each such flag, such as ``zone=+08:00``.
    ``words``: the whole command line.
    """

    profile: str | None = None
    config: str | None = None
    base_url: str | None = None
    transport: str | None = None
    debug: bool = False
    version: bool = False
    json: bool = False
    dialect: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


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
        with _logging_to_stderr() if flags.debug else nullcontext():
            yield
    finally:
        _current.reset(before)


@contextmanager
def _logging_to_stderr() -> Generator[None]:
    """Write the records of the logger ``rbim``, from DEBUG on, to standard error: printable lines, also of tracebacks.

    They never contain a signed address, a header or a body. Other loggers are left out: HTTP libraries log addresses.
    """
    import logging

    class Lines(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
            return printable(super().formatMessage(record))

        def format(self, record: logging.LogRecord) -> str:
            return "\n".join(visible(line) for line in super().format(record).split("\n"))

    logger = logging.getLogger("rbim")
    before, handler = logger.level, logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def given_flags() -> list[str]:
    """Return the words of the running command's flags that choose the platform."""
    flags = current_flags()
    values = [(name, getattr(flags, name.replace("-", "_"))) for name in FLAGS if name != "dialect"]
    values += [("dialect", text) for text in flags.dialect]
    return [word for name, value in values if value is not None for word in (f"--{name}", value)]


def with_flag(words: Sequence[str], flag: str, value: str) -> list[str]:
    """Return the words of a command line with a flag; it replaces those of the same name."""
    end = words.index(END) if END in words else len(words)
    kept: list[str] = []
    before = ""
    for word in words[:end]:
        if flag not in {before, word, word.partition("=")[0]}:
            kept.append(word)
        before = word
    return [*kept, flag, value, *words[end:]]


def command_line(*words: object) -> str:
    """Return a command of rbim, quoted for a shell."""
    return quoted_words("rbim", *map(str, words))


def same_with(flag: str) -> str:
    """Return the running command with one more flag."""
    words = current_flags().words
    end = words.index(END) if END in words else len(words)
    return command_line(*words[:end], flag, *words[end:])


def quoted_words(*words: str) -> str:
    """Return words quoted for a shell."""
    import shlex
    import subprocess

    return subprocess.list2cmdline(words) if os.name == "nt" else shlex.join(words)


def split_global_flags(tokens: Sequence[str]) -> tuple[GlobalFlags, list[str]]:
    """Return these flags, and the command line without them. Raises WrongFlag.

    A user-defined operation may have a field of the same name: after its command the flag is the field's; before it, the
    global one.
    """
    found: dict[str, Any] = {}  # FLAGS are texts, SWITCHES are True
    rest: list[str] = []
    remaining = deque(tokens)
    while remaining:
        token = remaining.popleft()
        name, equals, value = token.removeprefix("--").partition("=")
        key = name.replace("-", "_")
        if token == END:
            rest += [token, *remaining]
            break
        if not token.startswith("--") or name not in {*FLAGS, *SWITCHES, *JSON_NAMES} or name in _fields(rest[:COMMAND]):
            rest.append(token)
        elif name in JSON_NAMES:
            found |= {"json": True} if token in JSON else {}
            rest.append(token)
        elif key in found and name != "dialect":
            raise WrongFlag(f"--{name} is given twice")
        elif name in FLAGS:
            text = value if equals else remaining.popleft() if remaining else ""
            if not text or text.startswith("--"):
                raise WrongFlag(f"--{name} needs a value: {FLAGS[name][0]}")
            found[key] = (*found.get(key, ()), text) if name == "dialect" else text
        elif equals:
            raise WrongFlag(f"--{name} takes no value")
        else:
            found[name] = True
    return GlobalFlags(**found, words=tuple(tokens)), rest


COMMAND = 2  # the number of words in the name of an operation's command


def _fields(command: Sequence[str]) -> frozenset[str]:
    """Return the names of the flags of an operation's command; empty for any other command."""
    from rbim.operations.base import fields_of
    from rbim.operations.catalogue import entries

    name, method, *_ = *command, "", ""
    return frozenset(
        field.name.strip("_").replace("_", "-")
        for entry in entries(name)
        if entry.method.replace("_", "-") == method
        for field in fields_of(entry.operation)
    )
