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
from typing import TYPE_CHECKING, Self

from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Dictionary", "dictionaries"]

WORDS = Path(__file__).parent / "words"

_KEPT = re.compile(r"(^```.*?^```$|<!--.*?-->|^\([\w-]+\)=$)", re.DOTALL | re.MULTILINE)
_WRAPPED = re.compile(r"^(?![|#\n])(.*)\n *(?![ |#\n]|- |$)", re.MULTILINE)
_LINE = re.compile(r"(#+ |- )?(.*)")
_BAR = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|\b\w+\.\w+\b|<br>")
_PLACE = re.compile(r"\{(\d)\}")


@frozen
class Dictionary:
    """The words of a page.

    ``{1}`` to ``{9}`` in an English text and in its Chinese one stand for what differs: a name, a number, or a text that is
    itself in the dictionary. ``in_full`` has the English heads of the columns whose cells must all be in it.
    """

    page: str
    texts: Mapping[str, str]
    in_full: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the dictionary of a page."""
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(f"{path.stem}.md", document["texts"], frozenset(document["in_full"]))

    def chinese(self, made: str) -> str:
        """Return what a generator made, in Chinese."""
        parts = _KEPT.split(made)
        return "".join(part if at % 2 else "\n".join(self._lines(part)) for at, part in enumerate(parts))

    def _lines(self, text: str) -> Iterator[str]:
        heads: list[str] = []  # of the table that a line is in
        for line in _WRAPPED.sub(r"\1 ", text).split("\n"):
            if line.startswith("|"):
                cells = [cell.strip() for cell in _BAR.split(line)[1:-1]]
                needed = [not heads or head in self.in_full for head in heads or cells]
                heads = heads or cells
                row = [
                    self._needed(cell) if need else self._known(cell) or cell
                    for cell, need in zip(cells, needed, strict=True)
                ]
                yield f"| {' | '.join(row)} |".replace("|  |", "| |")
            elif found := _LINE.fullmatch(line):
                heads = []
                yield (found[1] or "") + self._needed(found[2])

    def _needed(self, text: str) -> str:
        found = self._known(text)
        if found is None and re.search("[A-Za-z]", _CODE.sub("", text)):
            raise LookupError(f"docs/_derive/words/{self.page.replace('.md', '.toml')} has no Chinese for {text!r}")
        return found or text

    def _known(self, text: str) -> str | None:
        if text in self.texts:
            return self.texts[text]
        for english, chinese in self.texts.items():
            pieces = _PLACE.split(english)  # text and numbers of places, in turns
            pattern = "".join(f"(?P<p{piece}>.+?)" if at % 2 else re.escape(piece) for at, piece in enumerate(pieces))
            if len(pieces) > 1 and (found := re.fullmatch(pattern, text)):
                for place, part in found.groupdict().items():
                    chinese = chinese.replace(f"{{{place[1:]}}}", self._known(part) or part)  # noqa: PLW2901  # is filled
                return chinese
        return None


def dictionaries() -> dict[str, Dictionary]:
    """Return the dictionary of each page that has one."""
    return {each.page: each for each in map(Dictionary.read, sorted(WORDS.glob("*.toml")))}
