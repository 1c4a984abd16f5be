"""Every page for users is there in Chinese, too, with the same sections, blocks and derived parts.

Its links are checked by test_links.py; what stands in the blocks is run once, from the English pages.
"""

import re

import pytest

from helpers.pages import FENCE, blocks_of, docs_module
from helpers.paths import ROOT
from helpers.tables import each_row
from rbim import Dialect
from rbim.emulator import Rules

DOCS = ROOT / "docs"
READMES = sorted(path.relative_to(ROOT).as_posix() for path in (DOCS / "examples").rglob("README.md"))
COMMENT = re.compile(r"(^|\s+)(#|//|--) .*$", re.MULTILINE)
PAGES = [f"docs/{path.name}" for path in sorted(DOCS.glob("*.md")) if path.name not in {"README.zh.md", "changelog.md"}]
CHINESE = {page: page.replace("docs/", "docs/zh/", 1) for page in PAGES}
CHINESE |= {page: page.replace("README.md", "README.zh.md") for page in READMES} | {"README.md": "docs/README.zh.md"}
DICTIONARIES = docs_module("derive").CHINESE


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def test_each_page_is_there_in_both_languages():
    there = {f"docs/zh/{path.name}" for path in (DOCS / "zh").glob("*.md")}
    there |= {path.relative_to(ROOT).as_posix() for path in DOCS.rglob("README.zh.md")}
    assert there == {*CHINESE.values(), "docs/zh/changelog.md"}  # which includes CHANGELOG.md, in English alone


def headings(page):
    return re.findall(r"^(#+) (.*)$", FENCE.sub("", text_of(page)), re.MULTILINE)


def shown(page):
    """Return blocks without comments, each with the number of its section; tables of contents without their titles."""
    titles = [title for _, title in headings(page)]
    return [
        (titles.index(block.title), block.language, "" if block.language == "{toctree}" else COMMENT.sub("", block.text))
        for block in blocks_of(page)
        if block.language != "{include}"  # whose paths are others
    ]


@each_row("english, chinese", sorted(CHINESE.items()))
def test_a_page_has_the_same_sections_blocks_and_derived_parts_in_chinese(english, chinese):
    assert [marks for marks, _ in headings(english)] == [marks for marks, _ in headings(chinese)]
    assert shown(english) == shown(chinese)
    parts = [re.findall(r"<!-- derived: (.+?) -->", text_of(page)) for page in (english, chinese)]
    assert parts[0] == parts[1]
    assert "简体中文" in text_of(chinese).splitlines()[2]  # the links to each other
    assert "简体中文" in text_of(english).splitlines()[2]


def test_a_derived_text_without_its_chinese_is_an_error():
    texts = {"Title": "标题", "A sentence that goes on, with {1}.": "一句话含 {1}。", "{1#} of {2#}": "{1#} / {2#}"}
    made = docs_module("_derive.chinese").Dictionary("page.md", texts, in_full=frozenset(), lists=frozenset())
    english = "## Title\n\nA sentence that\ngoes on, with `code`.\n"
    assert made.chinese(english) == "## 标题\n\n一句话含 `code`。\n"
    with pytest.raises(LookupError, match=r"words/page\.toml has no Chinese for .*Another"):
        made.chinese(english + "\nAnother sentence.\n")


def test_the_chinese_of_a_derived_text_has_its_places():
    place = re.compile(r"\{\d+#?\}")
    texts = [pair for dictionary in DICTIONARIES.values() for pair in dictionary.texts.items()]
    assert [pair for pair in texts if not set(place.findall(pair[1])) <= set(place.findall(pair[0]))] == []


def test_each_choice_of_the_dialect_is_in_chinese():
    """It stands in a cell with another value: a pattern of the dictionary takes any text in it."""
    assert [
        gap.name for gap in (*Dialect.gaps(), *Rules.gaps()) if gap.settles not in DICTIONARIES["dialect.md"].texts
    ] == []
