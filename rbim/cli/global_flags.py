"""The flags that every command takes, before or after its name: profile, address, dialect, amount of output."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim.dialect_text import NAMES, dialect_fields, flag_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

__all__ = [
    "DIALECT_FLAGS",
    "END",
    "FLAGS",
    "GLOBAL_FLAGS_HELP",
    "JSON",
    "SWITCHES",
    "GlobalFlags",
    "WrongFlag",
    "current_flags",
    "given_flags",
    "split_global_flags",
    "using_flags",
    "with_flag",
]

FLAGS = {
    "profile": ("NAME", "The profile of rbim.toml (RBIM_PROFILE)."),
    "config": ("FILE", "The only configuration file to read (RBIM_CONFIG)."),
    "base-url": ("URL", "The platform's address (RBIM_BASE_URL)."),
    "transport": ("NAME", "auto, httpx, httpx2, aiohttp or asyncio (RBIM_TRANSPORT; default: auto)."),
}
"""The flags with a value: the value's name in the help, and the help."""

DIALECT_FLAGS = {flag_of(name).removeprefix("--"): name for name in NAMES}
"""The flags of the dialect, and their fields."""

SWITCHES = {
    "debug": "Show tracebacks, and log every attempt on standard error.",
    "version": "Show the version of rbim and exit.",
}
GLOBAL_FLAGS_HELP = (
    f"Every command also takes {', '.join(f'--{name}' for name in (*FLAGS, *SWITCHES))}. They and the exit codes are in "
    "`rbim --help`. The flags of the dialect, such as --api-version, are in `rbim dialect`."
)
"""The sentence about them in the help of every command."""

END = "--"
JSON = ("--json", "--rbim-json")
"""The flags of commands that print a JSON document; the second one, if the operation has a field ``json``."""


class GlobalFlags(NamedTuple):
    """The values of these flags; None for a flag that is not given.

    ``json``: the command is to print a JSON document. ``dialect`` has the texts of each given field of the dialect, several
    if the flag of a list is repeated. ``words``: the whole command line.
    """

    profile: str | None = None
    config: str | None = None
    base_url: str | None = None
    transport: str | None = None
    debug: bool = False
    version: bool = False
    json: bool = False
    dialect: tuple[tuple[str, tuple[str, ...]], ...] = ()
    words: tuple[str, ...] = ()


class WrongFlag(Exception):
    """A flag without its value, with a value it does not take, or given twice. ``see`` is the command that explains it."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.see = f"rbim dialect {DIALECT_FLAGS[name]}" if name in DIALECT_FLAGS else "rbim --help"


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


def given_flags() -> list[str]:
    """Return the words of the running command's flags that choose the platform."""
    flags = current_flags()
    values = [(name, getattr(flags, name.replace("-", "_"))) for name in FLAGS]
    given = [(f"--{name}", value) for name, value in values if value is not None]
    given += [(flag_of(field), text) for field, texts in flags.dialect for text in texts]
    return [word for pair in given for word in pair]


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


def split_global_flags(tokens: Sequence[str]) -> tuple[GlobalFlags, list[str]]:
    """Return these flags, and the command line without them. Raises WrongFlag.

    A user-defined operation may have a field of the same name: after its command the flag is the field's; before it, the
    global one.
    """
    found: dict[str, Any] = {}  # FLAGS are texts, SWITCHES are True
    dialect: dict[str, tuple[str, ...]] = {}
    rest: list[str] = []
    own: Iterable[str] = ()
    remaining = deque(tokens)
    while remaining:
        token = remaining.popleft()
        name, equals, value = token.removeprefix("--").partition("=")
        if token == END:
            rest += [token, *remaining]
            break
        if not token.startswith("--") or name in own or name not in {*FLAGS, *SWITCHES, *DIALECT_FLAGS}:
            found |= {"json": True} if token in JSON and name not in own else {}
            rest.append(token)
            own = _fields(rest) if len(rest) == COMMAND else own
        elif name in DIALECT_FLAGS:
            text = _value(name, value if equals else remaining.popleft() if remaining else "")
            field = DIALECT_FLAGS[name]
            if field in dialect and not dialect_fields()[field].form.several:
                raise WrongFlag(f"--{name} is given twice", name)
            dialect[field] = (*dialect.get(field, ()), text)
        elif name.replace("-", "_") in found:
            raise WrongFlag(f"--{name} is given twice", name)
        elif name in FLAGS:
            found[name.replace("-", "_")] = _value(name, value if equals else remaining.popleft() if remaining else "")
        elif equals:
            raise WrongFlag(f"--{name} takes no value", name)
        else:
            found[name] = True
    return GlobalFlags(**found, dialect=tuple(dialect.items()), words=tuple(tokens)), rest


COMMAND = 2
"""The number of words in the name of an operation's command."""


def _value(name: str, value: str) -> str:
    if value and not value.startswith("--"):
        return value
    wanted = FLAGS[name][0] if name in FLAGS else dialect_fields()[DIALECT_FLAGS[name]].form.metavar
    raise WrongFlag(f"--{name} needs a value: {wanted}", name)


def _fields(command: Sequence[str]) -> frozenset[str]:
    """Return the names of the flags of an operation's command; empty for any other command."""
    from rbim.operations.base import fields_of
    from rbim.operations.catalogue import entries

    name, method = command
    return frozenset(
        field.name.strip("_").replace("_", "-")
        for entry in entries(name)
        if entry.method.replace("_", "-") == method
        for field in fields_of(entry.operation)
    )
