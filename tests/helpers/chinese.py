"""The pages in Chinese beside those in English: their text without code, their headings, tables, links and anchors."""

from __future__ import annotations

import os
import re
from pathlib import Path

from helpers.pages import FENCE
from helpers.paths import ROOT

CHARACTER = "[\u4e00-\u9fff]"
REGION = re.compile(r"<!-- derived: (.+?) -->\n.*?<!-- end -->\n", re.DOTALL)
COMMENT = re.compile(r"(?<!`)<!--.*?-->\n?", re.DOTALL)
INCLUDE = re.compile(r"^```(\{\w+\}) (\S+)\n.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """Return a page without its code, its comments and what is derived from the code."""
    return COMMENT.sub("", REGION.sub("", FENCE.sub("", INCLUDE.sub("", text_of(page)))))


def includes(page: str) -> list[tuple[str, str]]:
    """Return the files that a page includes, as paths from the root, each with the directive that includes it."""
    return [(directive, _from_root(path, page)) for directive, path in INCLUDE.findall(text_of(page))]


def english_of(chinese: str) -> str:
    """Return the English page of a Chinese one, both as paths from the root."""
    if chinese == "docs/README.zh.md":
        return "README.md"
    return chinese.replace("docs/zh/", "docs/").replace("README.zh.md", "README.md")


def headings(page: str) -> list[tuple[str, str]]:
    """Return a page's headings, each with its marks."""
    return re.findall(r"^(#+) (.*)$", COMMENT.sub("", FENCE.sub("", text_of(page))), re.MULTILINE)


def rows(page: str) -> list[list[list[str]]]:
    """Return the rows of a page's tables, each as the code in each of its cells."""
    cells = (re.split(r"(?<!\\)\|", line.strip("|")) for line in prose(page).splitlines() if line.startswith("|"))
    return [[sorted(re.findall(r"`[^`]+`", cell)) for cell in row] for row in cells]


def code(page: str) -> set[str]:
    """Return the code in a page's sentences."""
    return {" ".join(each.split()) for each in re.findall(r"`[^`]+`", prose(page))}


def targets(page: str) -> list[str]:
    """Return where a page's links and pictures lead: addresses, and files as paths from the root, with their anchors."""
    found = LINK.findall(COMMENT.sub("", FENCE.sub("", text_of(page))))
    return [each if each.startswith("http") else _from_root(each, page) for each in found]


def _from_root(target: str, page: str) -> str:
    path, mark, anchor = target.partition("#")
    return (os.path.normpath(Path(page).parent / path) if path else page) + mark + anchor


def anchors(page: str) -> set[str]:
    """Return the anchors of a page: the slugs of its headings as GitHub and the site make them, and its own labels."""
    found: set[str] = set()
    for _, title in headings(page):
        slug = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        found.add(next(each for each in (slug, *(f"{slug}-{number}" for number in range(1, 99))) if each not in found))
    return found | set(re.findall(r"^\(([\w-]+)\)=$", text_of(page), re.MULTILINE))
