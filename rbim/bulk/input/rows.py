"""Rows of a job's input: an account and its group, and the checks of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim._support.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

__all__ = [
    "BadRow",
    "Columns",
    "Piece",
    "Row",
    "bad_row",
    "cleaned",
    "column_key",
    "damage_of",
    "excerpt_of",
    "may_be_damaged",
    "parse_row",
]

DAMAGED = (
    (re.compile(r"[+-]?[0-9](?:[.,][0-9]+)?[Ee]\+[0-9]{1,3}"), "a rounded number, its digits are lost"),
    (re.compile(r"[+-]?[0-9]\.[0-9]+[Ee](?:[7-9]|[1-9][0-9]{1,2})"), "a rounded number, its digits may be lost"),
    (re.compile(r"[+-]?[0-9]+\.0+"), "a number with decimals"),
    (re.compile(r"#(?:N/A|REF!|VALUE!|NAME\?|NUM!|NULL!|DIV/0!|SPILL!|CALC!|#+)"), "an error of a spreadsheet"),
    (re.compile(r"NULL|Null|null|\(null\)|\\N|NaN|N/A|<NA>|None"), "an empty value of an export"),
)
"""Values that are no accounts or groups, and what they are.

Spreadsheets write an exponent with ``+``. Programs (Java) write one without it, always with a decimal point and from 10
million on, so ``1E5``, ``1E10`` and ``1.5E3`` are accounts.
"""

TRACES = (
    *("E+", "e+", ".0", "#N", "#R", "#V", "#D", "#S", "#C", "##", "N/A"),
    *("NULL", "Null", "null", "\\N", "NaN", "<NA>", "None"),
)
EXPONENT = re.compile(r"\.[0-9]+[Ee][0-9]")
"""Each damaged value has at least one of the traces, or an exponent."""

FIRST_LOOK = ("+", ".", "#", "N", "null")
"""Each of the traces, and an exponent, has one of these, which are found faster."""


def damage_of(value: str) -> str | None:
    """Return what a damaged value is, and how to keep it; None if it is not damaged."""
    what = next((what for form, what in DAMAGED if form.fullmatch(value)), None)
    return None if what is None else f"{value!r} looks like {what} (--allow-damaged accepts it)"


def may_be_damaged(lines: Iterable[str]) -> bool:
    """Return whether any value in the lines may be damaged; False for nearly all sound input, and fast."""
    text = "".join(lines)
    if not any(trace in text for trace in FIRST_LOOK):
        return False
    return any(trace in text for trace in TRACES) or EXPONENT.search(text) is not None


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


class Columns(NamedTuple):
    """Rows as columns of the same length. A bad row stands among the accounts, with an empty group.

    Millions of rows are faster in this form: a few lists instead of a tuple for each row, which the garbage collector looks
    at again and again.
    """

    groups: list[str]
    accounts: list[str | BadRow]
    user_names: list[str | None]

    @classmethod
    def of(cls, rows: Iterable[Row | BadRow]) -> Self:
        """Return rows as columns."""
        columns = cls([], [], [])
        for row in rows:
            group, account, user_name = ("", row, None) if isinstance(row, BadRow) else row
            columns.groups.append(group)
            columns.accounts.append(account)
            columns.user_names.append(user_name)
        return columns

    @staticmethod
    def in_batches(pieces: Iterable[Piece], size: int) -> Iterator[Columns]:
        """Yield the rows of all pieces, ``size`` at a time; a piece of single rows is read no further than needed."""
        waiting = Columns([], [], [])
        for piece in pieces:
            for part in (piece,) if isinstance(piece, Columns) else _parts(piece, size):
                waiting.groups.extend(part.groups)
                waiting.accounts.extend(part.accounts)
                waiting.user_names.extend(part.user_names)
                while len(waiting.accounts) >= size:
                    yield waiting.between(0, size)
                    waiting = waiting.between(size, None)
        if waiting.accounts:
            yield waiting

    def between(self, begin: int, end: int | None) -> Self:
        """Return the rows from ``begin`` until before ``end`` (None: to the last)."""
        return type(self)(self.groups[begin:end], self.accounts[begin:end], self.user_names[begin:end])

    def where(self, flags: Sequence[bool]) -> Self:
        """Return the rows whose flag is True."""
        groups, accounts = list(compress(self.groups, flags)), list(compress(self.accounts, flags))
        return type(self)(groups, accounts, list(compress(self.user_names, flags)))

    def rows(self) -> Iterator[Row | BadRow]:
        """Return the rows one by one."""
        for group, account, user_name in zip(*self, strict=True):
            yield account if isinstance(account, BadRow) else Row(group, account, user_name)


Piece = Columns | Iterable[Row | BadRow]
"""Rows that were read together."""


def _parts(rows: Iterable[Row | BadRow], size: int) -> Iterator[Columns]:
    left = iter(rows)
    while (part := Columns.of(islice(left, size))).accounts:
        yield part
