"""Rows of a job's input: an account and its group, the checks of their values, and the format to write them back in."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from attrs import field, frozen

from rbim._support.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

__all__ = [
    "ADDED",
    "PLAIN",
    "BadRow",
    "Columns",
    "Format",
    "Row",
    "bad_row",
    "cleaned",
    "column_key",
    "excerpt_of",
    "no_formula",
    "parse_row",
    "unescaped",
]

KEPT_AS_TEXT = re.compile(r'="([^"]*)"')
"""A formula that keeps a number as it is (``="0138"``): the text inside is the value."""

DAMAGED = (
    (r"[+-]?[0-9](?:[.,][0-9]+)?[Ee]\+[0-9]{1,3}", "a rounded number, its digits are lost"),
    (r"[+-]?[0-9]\.[0-9]+[Ee](?:[7-9]|[1-9][0-9]{1,2})", "a rounded number, its digits may be lost"),
    (r"[+-]?[0-9]+\.0+", "a number with decimals"),
    (r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", "a number with thousands separators"),
    (r"[0-9]{4}(?:-[0-9]{2}-[0-9]{2}|/[0-9]{1,2}/[0-9]{1,2})(?:[ T][0-9:.]+)?", "a date"),
    (r"#(?:N/A|GETTING_DATA|[A-Z0/]+[!?]|#+)|Err:[0-9]{3}", "an error of a spreadsheet"),
    (r"NULL|Null|null|[(<\[](?i:null)[)>\]]|\\N|NaN|N/A|<NA>|None|undefined", "an empty value of an export"),
    (r"TRUE|FALSE", "a truth value of a spreadsheet"),
    (r"=.*", "a formula"),
    (r"'.*", "a text with the apostrophe of a spreadsheet"),
    (r'".*"', "a text in quotes that an export has added"),
    ("(?s:.*\ufffd.*)", "a text with a character that was lost"),
)
"""The marks that spreadsheets and database exports leave: values that are no accounts or groups, and what they are.

Spreadsheets write an exponent with ``+``. Programs (Java) write one without it, always with a decimal point and from 10
million on, so ``1E5``, ``1E10`` and ``1.5E3`` are accounts.
"""

_DAMAGED = re.compile("|".join(f"({form})" for form, _ in DAMAGED))

_FILLERS = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
_VARIATION = re.compile("[\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
"""Variation selectors, which change how the character before them looks, if at all."""

_LETTER = rf"[^\W{_FILLERS}]"
_WORDS = rf"{_LETTER}+(?:[.-]{_LETTER}+)*"
PLAIN = re.compile(
    r"(?!(?:NULL|Null|null|NaN|None|TRUE|FALSE|undefined)\Z)"
    rf"(?:[0-9A-Za-z]+|[A-Za-z][0-9A-Za-z_.-]*[0-9A-Za-z_]|{_LETTER}+|{_WORDS}@{_WORDS})"
)
"""Letters, digits and underscores, names with hyphens and dots, addresses of mail: the values that need no further look."""

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


def parse_row(
    group: Any, account: Any, user_name: Any, default_group: str | None, *, allow_damaged: bool = True
) -> Row | str:
    """Return the row of these values, or the reason why they are invalid.

    None stands for a missing value. ``default_group``: the group of rows without one; a row with another group is invalid.
    ``allow_damaged``: accept values that a spreadsheet or an export seems to have damaged (:data:`DAMAGED`), or that have
    invisible characters.
    """
    if account is None:
        return "no account"
    try:
        account = _text("account", account, allow_damaged=allow_damaged)
        group = "" if group is None else _text("group", group, allow_damaged=allow_damaged)
        user_name = None if user_name is None else _text("user name", user_name, allow_damaged=allow_damaged)
    except ValueError as error:
        return str(error)
    if group and default_group is not None and group != default_group:
        return f"group: {group!r}, but {default_group!r} is given for all rows"
    group = group or default_group
    if not account:
        return "empty account"
    return Row(group, account, user_name or None) if group else "empty group"


def unescaped(cell: str) -> str:
    """Return the text for which a cell of CSV stands: a number kept by ``="0138"``, or a formula made harmless."""
    cell = cleaned(cell)
    kept = KEPT_AS_TEXT.fullmatch(cell)
    return kept[1] if kept else _formula_of(cell)


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


def _formula_of(cell: str) -> str:
    """Return the text of which :func:`no_formula` made this cell, or the cell itself if it made it of none other."""
    text = _SIGN_IN_CELL.sub(r"\1", cell.removeprefix("'")) if "'" in cell else cell
    return text if text != cell and no_formula(text) == cell else cell


def _text(name: str, value: Any, *, allow_damaged: bool) -> str:
    """Return the text of a value. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and abs(value) >= 1e15:  # noqa: PLR2004  # a cell of a workbook
        raise ValueError(f"{name}: {value:.5E} is a rounded number, its digits are lost: enter such numbers as text")
    if not isinstance(value, str):
        raise ValueError(f"{name}: invalid value {one_line(repr(value), 40)}: use a string or a whole number")  # noqa: TRY004
    text = cleaned(value)
    if PLAIN.fullmatch(text):
        return text
    forbidden = _FORBIDDEN.search(text)
    if forbidden is not None:
        what = "a line break" if forbidden[0] in "\r\n" else f"the character U+{ord(forbidden[0]):04X}"
        raise ValueError(f"{name}: contains {what}")
    if allow_damaged:
        return text
    damage = _DAMAGED.fullmatch(text)
    if damage is not None:
        what = DAMAGED[(damage.lastindex or 1) - 1][1]
        raise ValueError(f"{name}: {text!r} looks like {what} (--allow-damaged accepts it)")
    unseen = None if text.isascii() else next(filter(_is_invisible, text), None)
    if unseen is not None:
        named = f"U+{ord(unseen):04X} {unicodedata.name(unseen, '')}".rstrip()
        raise ValueError(f"{name}: contains the invisible character {named} (--allow-damaged accepts it)")
    return text


def _is_invisible(character: str) -> bool:
    """Return whether a character cannot be seen, or looks like an ordinary space."""
    if character == " ":
        return False
    unseen = unicodedata.category(character) in {"Cf", "Zs"} or character in _FILLERS
    return unseen or _VARIATION.match(character) is not None


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

    ``lines``: the lines of the input where the rows begin, from 1; of an iterable, their places. Millions of rows are faster
    in this form: a few lists instead of a tuple for each row, which the garbage collector looks at again and again.
    """

    groups: list[str]
    accounts: list[str | BadRow]
    user_names: list[str | None]
    lines: Sequence[int]

    def extend(self, other: Columns) -> None:
        """Append the rows of others to these, whose columns are lists."""
        for column, more in zip(self, other, strict=True):
            cast("list[Any]", column).extend(cast("Iterable[Any]", more))

    @classmethod
    def of(cls, rows: Iterable[Row | BadRow], lines: Sequence[int]) -> Self:
        """Return rows as columns."""
        columns = cls([], [], [], lines)
        for row in rows:
            group, account, user_name = ("", row, None) if isinstance(row, BadRow) else row
            columns.groups.append(group)
            columns.accounts.append(account)
            columns.user_names.append(user_name)
        return columns

    def rows(self) -> Iterator[Row | BadRow]:
        """Return the rows one by one."""
        for group, account, user_name in zip(*self[:3], strict=True):
            yield account if isinstance(account, BadRow) else Row(group, account, user_name)


ADDED = ("state", "reason")
"""The columns that are added when rows are written back; no other column may have these names."""


@frozen(kw_only=True)
class Format:
    r"""The format in which rows of a file are written back: found when it is read, and kept in the journal.

    ``columns``: the names of those that the file has among ``group``, ``account`` and ``user_name``, in this order.
    ``delimiter`` is for CSV. ``line_end`` is ``\n``, ``\r\n`` or ``\r``.
    """

    kind: Literal["csv", "jsonl"] = "csv"
    encoding: str = "utf-8"
    bom: bool = False
    delimiter: str = ","
    line_end: str = "\n"
    columns: dict[str, str] = field(factory=lambda: {name: name for name in Row._fields})
