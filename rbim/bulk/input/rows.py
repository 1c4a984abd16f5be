"""Rows of a job's input: an account and its group, and the checks of their values."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rbim._support.text import one_line
from rbim.bulk.input.damage import damage_of

__all__ = ["BadRow", "Row", "bad_row", "cleaned", "column_key", "excerpt_of", "parse_row"]


MAX_EXCERPT = 200
"""Characters of a bad row that are kept."""

# the characters that str.strip() removes, and the byte order mark, which joined files contain anywhere
_SPACE = (
    "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680"
    + "".join(map(chr, range(0x2000, 0x200B)))
    + "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
_FORBIDDEN = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def cleaned(text: str) -> str:
    """Return the text without surrounding white space, ideographic spaces and byte order marks included."""
    return text.strip(_SPACE)


def column_key(name: str) -> str:
    """Return the form in which column names are compared: without regard to case and surrounding space."""
    return cleaned(name).casefold()


def excerpt_of(text: str) -> str:
    """Return the beginning of a row as one printable line of at most 200 characters."""
    return one_line(text, MAX_EXCERPT - len("..."))


def bad_row(line: int, reason: str, text: str) -> BadRow:
    """Return a bad row; ``text`` is the row as it was read."""
    return BadRow(line, one_line(reason, MAX_EXCERPT), excerpt_of(text))


def _text(name: str, value: Any) -> tuple[str, str | None]:
    """Return the text of a value and None, or any text and the error."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value), None
    if not isinstance(value, str):
        return "", f"{name}: invalid value {one_line(repr(value), 40)}: use a string or a whole number"
    text = cleaned(value)
    forbidden = _FORBIDDEN.search(text)
    if forbidden is None:
        return text, None
    what = "a line break" if forbidden[0] in "\r\n" else f"the character U+{ord(forbidden[0]):04X}"
    return text, f"{name}: contains {what}"


def parse_row(
    group: Any, account: Any, user_name: Any, default_group: str | None, *, allow_damaged: bool = True
) -> Row | str:
    """Return the row of these values, or the reason why they are invalid.

    None stands for a missing value. ``default_group``: the group of rows without one; a row with another group is invalid.
    ``allow_damaged``: accept values that look damaged, see :func:`damage_of`.
    """
    if account is None:
        return "no account"
    account, error = _text("account", account)
    if error or not account:
        return error or "empty account"
    group, error = (default_group or "", None) if group is None else _text("group", group)
    if error:
        return error
    if default_group is not None and group not in {"", default_group}:
        return f"group: {group!r}, but {default_group!r} is given for all rows"
    if not (group := group or default_group):
        return "empty group"
    user_name, error = ("", None) if user_name is None else _text("user name", user_name)
    if not error and not allow_damaged:
        values = (("account", account), ("group", group), ("user name", user_name))
        error = next((f"{name}: {damage}" for name, value in values if (damage := damage_of(value)) is not None), None)
    return error or Row(group, account, user_name or None)


class Row(NamedTuple):
    """An account for a group. ``user_name`` is the acting account, if the row names one."""

    group: str
    account: str
    user_name: str | None = None


class BadRow(NamedTuple):
    """A row that cannot be used: its ``line`` in the input (from 1), the reason, and an excerpt of it."""

    line: int
    reason: str
    raw: str
