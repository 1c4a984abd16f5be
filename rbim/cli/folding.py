"""Lines for a terminal, folded at blanks: a terminal itself would fold them in the middle of a word."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import IO

__all__ = ["columns_of", "fold", "fold_for", "terminal_columns"]

_PART = re.compile(r"\s*\S+")
INDENT = "  "
NARROWEST = 20


def terminal_columns(stream: IO[str]) -> int | None:
    """Return the width of the terminal that a stream writes to; None if it is no terminal."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not a terminal, or not a file
        return None
    return columns if columns >= NARROWEST else None


def fold_for(stream: IO[str], text: str) -> str:
    """Return lines of text folded for the terminal that a stream writes to; unchanged if it is no terminal."""
    columns = terminal_columns(stream)
    return text if columns is None else "\n".join(fold(line, columns) for line in text.split("\n"))


def fold(line: str, columns: int, hanging: str = INDENT) -> str:
    """Return a line as lines of at most so many columns. A word that is longer, such as a path, stays whole.

    Further lines are indented like the first, and by ``hanging``.
    """
    if columns_of(line) <= columns:
        return line
    indent = f"{line[: len(line) - len(line.lstrip())]}{hanging}"
    lines = [""]
    for part in _PART.findall(line):
        if lines[-1].strip() and columns_of(lines[-1]) + columns_of(part) > columns:
            lines.append(f"{indent}{part.lstrip()}")
        else:
            lines[-1] += part
    return "\n".join(lines)


def columns_of(text: str) -> int:
    """Return the columns that a text takes: two for a Chinese character."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
