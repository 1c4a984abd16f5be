"""Put derived Markdown into Chinese, with a dictionary from English texts to Chinese ones.

The generators make English. Every heading, head of a column, sentence and item of a list that they make must be in the
dictionary of its page, ``words/PAGE.toml``: a new or changed one fails here until it is translated. Cells of tables are
translated if they are in the dictionary; in the columns of ``in_full``, they must be. Code, dotted names and numbers need no
translation; blocks of code, comments and anchors are kept.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Dictionary", "dictionaries"]

WORDS = Path(__file__).parent / "words"

_KEPT = re.compile(r"(^```.*?^```$|<!--.*?-->|^\([\w-]+\)=$)", re.DOTALL | re.MULTILINE)
_LINE = re.compile(r"(#+ |- )?(.*)")
_BAR = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|\b\w+\.\w+\b|<br>")
_PLACE = re.compile(r"\{(\d#?)\}")


@frozen
class Dictionary:
    """The words of a page.

    ``{1}`` to ``{9}`` in an English text and in its Chinese one stand for what differs: a name, a number, or a text that is
    itself in the dictionary; ``{1#}`` is a number only. ``in_full`` has the English heads of the columns whose cells must
    all be in it, ``lists`` those of the columns whose cells are lists with semicolons, each item of which must be in it.
    ``sometimes`` are the texts that are on the page with some records only; they come first. Of several that fit a text, the
    first is taken.
    """

    page: str
    texts: Mapping[str, str]
    in_full: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the dictionary of a page."""
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        sometimes: dict[str, str] = document.get("sometimes", {})
        return cls(
            page=f"{path.stem}.md",
            texts={**sometimes, **document["texts"]},
            in_full=frozenset(document["in_full"]),
            lists=frozenset(document.get("lists", ())),
            sometimes=frozenset(sometimes),
        )

    def chinese(self, made: str) -> str:
        """Return what a generator made, in Chinese."""
        parts = _KEPT.split(made)
        return "".join(part if at % 2 else "\n".join(self._lines(part)) for at, part in enumerate(parts))

    def _lines(self, text: str) -> Iterator[str]:
        heads: list[str] = []  # of the table that a line is in
        for line in _unwrapped(text):
            if line.startswith("|"):
                cells = [cell.strip() for cell in _BAR.split(line)[1:-1]]
                row = [self._cell(cell, head) for cell, head in zip(cells, heads or [None] * len(cells), strict=True)]
                heads = heads or cells
                yield f"| {' | '.join(row)} |".replace("|  |", "| |")
            elif found := _LINE.fullmatch(line):
                heads = []
                yield (found[1] or "") + self._needed(found[2])

    def _cell(self, cell: str, head: str | None) -> str:
        """Return a cell in Chinese; a head of a column, which has none itself, must be in the dictionary."""
        if head in self.lists:
            return "\uff1b".join(map(self._needed, cell.split("; ")))
        return self._needed(cell) if head is None or head in self.in_full else self._known(cell) or cell

    def _needed(self, text: str) -> str:
        found = self._known(text)
        if found is None and re.search("[A-Za-z]", _CODE.sub("", text)):
            raise LookupError(f"docs/_derive/words/{self.page.replace('.md', '.toml')} has no Chinese for {text!r}")
        return found or text

    def _known(self, text: str) -> str | None:
        if text in self.texts:
            return self.texts[text]
        for english, chinese in self.texts.items():
            if "{" not in english:
                continue
            pieces = _PLACE.split(english)  # text and numbers of places, in turns
            pattern = "".join(_place(piece) if at % 2 else re.escape(piece) for at, piece in enumerate(pieces))
            if len(pieces) > 1 and (found := re.fullmatch(pattern, text)):
                for place, part in zip(pieces[1::2], found.groups(), strict=True):
                    chinese = chinese.replace(f"{{{place}}}", self._known(part) or part)  # noqa: PLW2901  # is filled
                return chinese
        return None


def _place(name: str) -> str:
    return r"([-+]?[\d,.]+)" if name.endswith("#") else "(.+?)"


def _unwrapped(text: str) -> list[str]:
    """Return the lines of a text, of which a paragraph, an item of a list and a row of a table is one."""
    lines: list[str] = []
    for line in text.split("\n"):
        goes_on = lines and lines[-1] and not lines[-1].startswith(("|", "#")) and not line.startswith(("|", "#", "- "))
        if line and goes_on:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return lines


def dictionaries() -> dict[str, Dictionary]:
    """Return the dictionary of each page that has one."""
    found = map(Dictionary.read, sorted(WORDS.glob("*.toml")))
    return {each.page: each for each in found}
