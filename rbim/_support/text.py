"""Shorten and clean text for error messages, logs and tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "counted",
    "empty",
    "excerpt",
    "headline",
    "install_command",
    "listed",
    "looks_secret",
    "missing_extra",
    "one_line",
    "printable",
    "quoted",
    "quoted_key",
    "storable",
    "visible",
]

EXCERPT = 120  # characters of an unreadable answer that an error message shows at most


SECRET = re.compile(r"[^\s'\"\[\](){},:=]{12,}")  # a word that is long enough to be a token or a password
QUOTED = 60  # characters of a wrong value that an error message shows at most


empty: Callable[[], dict[str, Any]] = dict
"""Makes an empty dictionary: a default factory three times as fast as ``dict[str, str]``."""


def excerpt(body: bytes) -> str:
    """Return the beginning of an answer as one printable line in quotes."""
    shown = one_line(body[: EXCERPT * 4].decode("utf-8", "replace"), EXCERPT)
    cut = len(body) > EXCERPT * 4 and not shown.endswith("...")
    return f"'{shown}...'" if cut else f"'{shown}'"


def missing_extra(user: str, module: str | None, extra: str) -> str:
    """Return the error message for a missing module: its ``user``, and the command that installs the extra."""
    return f"{user} needs {module}; install it with: {install_command(extra)}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listed(counts: Iterable[tuple[int, str]]) -> str:
    """Return numbers with what they count, without the zeros: 2,000 done, 1 failed."""
    return ", ".join(f"{number:,} {what}" for number, what in counts if number)


def printable(text: str) -> str:
    """Return the text as one line without control characters."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Return the text with each unprintable character replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str, at_most: int) -> str:
    """Return foreign text as one printable line of ``at_most`` characters, so that it cannot forge log lines."""
    line = " ".join(text[: at_most * 4].split())
    shown = visible(line[:at_most])
    return f"{shown}..." if len(line) > at_most or len(text) > at_most * 4 else shown


def looks_secret(text: str) -> bool:
    """Return whether a text may be a token or a password: it has a word of 12 characters or more."""
    return SECRET.search(text) is not None


def quoted(value: object, at_most: int = QUOTED) -> str:
    """Return a wrong value for an error message, or only its length if it may be a secret in the wrong place."""
    if isinstance(value, str) and looks_secret(value):
        return f"a text of {len(value)} characters"
    try:
        text = SECRET.sub("***", repr(value))
    except (ValueError, RecursionError):  # an integer with thousands of digits; a document that is nested too deeply
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= at_most else f"{text[:at_most]}..."


def quoted_key(name: object) -> str:
    """Return a wrong key for an error message, or only its length if it may be a secret in the wrong place."""
    return f"a key of {len(name)} characters" if isinstance(name, str) and looks_secret(name) else str(name)


def headline(error: str) -> str:
    """Return the first line of an error; of a traceback, the line of its last exception."""
    lines = [line for line in error.splitlines() if line.strip()]
    heads = [at for at, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    group = [at for at in heads if "Exception Group" in lines[at]]
    if heads:
        for line in lines[(group or heads[-1:])[0] + 1 :]:
            text = line.removeprefix("  | ") if group else line
            if text and not text[0].isspace():
                return text
    return lines[0] if lines else ""


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra to this installation.

    Where rbim is installed, from an index or from a clone, its name is enough: pip only adds what the extra needs. Where it
    is not, such as in a zip file or on PYTHONPATH, the command is for a clone of the repository.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("rbim")
    except PackageNotFoundError:
        return f'python -m pip install ".[{extra}]", in a clone of the repository of rbim'
    return f'python -m pip install "rbim[{extra}]"'


def storable(text: str) -> str:
    """Return a text without lone surrogates, which a traceback may quote and no store can hold."""
    return text.encode("utf-8", "backslashreplace").decode()
