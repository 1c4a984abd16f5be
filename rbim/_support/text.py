"""Shorten and clean text for error messages, logs and tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "empty",
    "excerpt",
    "formula_of",
    "headline",
    "install_command",
    "looks_secret",
    "missing_extra",
    "no_formula",
    "one_line",
    "quoted",
    "quoted_key",
    "storable",
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


def one_line(text: str, at_most: int) -> str:
    """Return foreign text as one printable line of ``at_most`` characters, so that it cannot forge log lines."""
    line = " ".join(text[: at_most * 4].split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:at_most])
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


_SIGNS = "=+\\-@\uff1d\uff0b\uff0d\uff20"  # also in full width
_STARTS_FORMULA = re.compile(f"[\\s\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u2069\\ufeff]*[{_SIGNS}]|[\\t\\r\\n]")
_CELL_IN_CELL = re.compile(f'([;,|\\t\\r\\n]["\\s]*)(?=[{_SIGNS}])')
_SIGN_IN_CELL = re.compile(f"([;,|\\t\\r\\n][\"\\s]*)'(?=[{_SIGNS}])")
_SIGNED_DIGITS = re.compile("[+-]?[0-9]+")


def no_formula(text: str) -> str:
    """Return a cell of a table that a spreadsheet does not evaluate as a formula (OWASP: CSV injection).

    An apostrophe is put before a cell that begins with ``= + - @``, a tab or a line end, also after blanks and in full
    width. It is also put before such a sign behind ``; , |`` or a line end, which begins a cell in a spreadsheet with that
    separator. A sign with only digits behind it (``+8613800138000``) is a number, and stays.
    """
    if text.isalnum() or _SIGNED_DIGITS.fullmatch(text):
        return text
    begun = f"'{text}" if _STARTS_FORMULA.match(text) else text
    return _CELL_IN_CELL.sub(r"\1'", begun)


def formula_of(cell: str) -> str:
    """Return the text of which :func:`no_formula` made this cell, or the cell itself if it made it of none other."""
    text = _SIGN_IN_CELL.sub(r"\1", cell.removeprefix("'")) if "'" in cell else cell
    return text if text != cell and no_formula(text) == cell else cell


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
