"""Values that a spreadsheet or a database export has damaged: 1.38E+10, #N/A, NULL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["damage_of", "may_be_damaged"]

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
