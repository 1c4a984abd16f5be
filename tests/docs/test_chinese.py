"""Every page for users is there in Chinese, too, and says the same: code, headings, tables and links are compared.

What stands in the blocks is run once, from the English pages.
"""

import re

import pytest

from helpers.chinese import CHARACTER, REGION, anchors, code, english_of, headings, prose, rows, targets, text_of
from helpers.pages import blocks_of, docs_module
from helpers.paths import ROOT

MISSING = {
    "docs/zh/CONTRIBUTING.md",
    "docs/zh/SECURITY.md",
    "docs/zh/architecture.md",
    "docs/zh/description.md",
    "docs/zh/dialect.md",
    "docs/zh/glossary.md",
    "docs/zh/performance.md",
    "docs/zh/platform.md",
    "docs/zh/reliability.md",
    "docs/zh/simulation.md",
}
"""Pages that are not translated yet."""

ENGLISH = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if ".zh." not in path.name)]
CHINESE = ["docs/README.zh.md", *sorted(f"docs/zh/{path.name}" for path in (ROOT / "docs" / "zh").glob("*.md"))]

PUNCTUATION = "[\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f]"
"""Marks of Chinese, which have no space beside them."""

FORBIDDEN = [
    "收敛",
    "限额与传输层",
    "在途请求",
    "名额",
    "打印新建",
    "制造故障",
    "有序结束",
    "都有交代",
    "残缺应答",
    "应答",
    "您",
    "观测者",
]
"""Words of a literal translation, or of another term than the glossary's."""


def test_each_page_is_there_in_both_languages():
    there = {english_of(page) for page in CHINESE}
    assert there - {*ENGLISH} == set()
    assert {page for page in ENGLISH if page not in there} == {english_of(page) for page in MISSING}


@pytest.mark.parametrize("page", CHINESE)
class TestAPageInChinese:
    def test_and_the_english_one_link_to_each_other_below_their_titles(self, page):
        here, there = (
            ("docs/README.zh.md", "../README.md")
            if page == "docs/README.zh.md"
            else (f"zh/{name(page)}", f"../{name(page)}")
        )
        assert text_of(page).splitlines()[1:4] == ["", f"[English]({there}) · 简体中文", ""]
        assert text_of(english_of(page)).splitlines()[1:4] == ["", f"English · [简体中文]({here})", ""]

    def test_has_the_same_headings_in_chinese(self, page):
        english, chinese = headings(english_of(page)), headings(page)
        assert [marks for marks, _ in chinese] == [marks for marks, _ in english]
        kept = [
            (own, theirs) for (_, own), (_, theirs) in zip(chinese, english, strict=True) if not re.search(CHARACTER, own)
        ]
        assert [own for own, theirs in kept if own != theirs] == []
        assert [own for own, _ in kept if " " in own] == []  # names alone stay

    def test_has_the_same_blocks_below_the_same_headings(self, page):
        found = []
        for each in (english_of(page), page):
            titles = [words for _, words in headings(each)]
            found.append([(titles.index(block.title), block.language, shown(block)) for block in blocks_of(each)])
        assert found[0] == found[1]

    def test_has_the_same_derived_parts(self, page):
        """What is in them is compared with the code by ``docs/derive.py``."""
        derive = docs_module("derive")
        assert REGION.findall(text_of(page)) == REGION.findall(text_of(english_of(page)))
        assert (name(page) in derive.CHINESE) == (name(page) in {*derive.PAGES, *derive.REGIONS})

    def test_has_the_same_tables_and_lists_with_the_same_code(self, page):
        assert rows(page) == rows(english_of(page))
        items = [re.findall(r"^ *(?:-|\d+\.) ", prose(each), re.MULTILINE) for each in (english_of(page), page)]
        assert items[0] == items[1]
        assert code(page) == code(english_of(page))

    def test_links_to_the_same_places(self, page):
        english, chinese = (sorted(map(place, targets(each))) for each in (english_of(page), page))
        for links in (english, chinese):
            links.remove(english_of(page))  # the link to the other language
        assert english == chinese

    def test_links_to_pages_and_headings_that_exist(self, page):
        broken = []
        for each in targets(page):
            path, _, anchor = each.partition("#")
            if each.startswith("http") or path in MISSING:
                continue
            if not (ROOT / path).exists() or (anchor and path in CHINESE and anchor not in anchors(path)):
                broken.append(each)
        assert broken == []

    def test_is_set_as_chinese_is(self, page):
        text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`a`", prose(page)))
        assert re.findall(r"[^\n]*[\u3000-\uffef]\n *[^ \n|#!\-\d(][^\n]*", text) == []  # a line break is shown as a space
        assert re.findall(rf".*{CHARACTER}[,;:?!.](?![A-Za-z0-9_/]).*", text) == []
        assert re.findall(rf".{{0,9}}(?:{CHARACTER}[A-Za-z0-9`]|[A-Za-z0-9`]{CHARACTER}).{{0,9}}", text) == []
        assert re.findall(rf".*{PUNCTUATION} .*", re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)) == []

    def test_has_no_emphasis_that_stays_open(self, page):
        """Between a mark and a character, asterisks close nothing: the bold words need a space behind them."""
        assert re.findall(rf".*{PUNCTUATION}\*\*{CHARACTER}.*", re.sub(r"\*\*[^*\n]+\*\*(?= |$)", "", prose(page))) == []

    def test_has_no_word_of_a_literal_translation(self, page):
        assert [word for word in FORBIDDEN if word in prose(page)] == []


def shown(block):
    """Return what a block shows to a reader; in tables of contents the titles are translated."""
    lines = [line for line in block.text.splitlines() if block.language != "{toctree}" or not re.search(":caption:|<", line)]
    return "\n".join(lines)


def name(page):
    return page.rpartition("/")[2]


def place(target):
    """Return where a link leads: the English page, and whether to one of its headings."""
    path, mark, _ = target.partition("#")
    return target if target.startswith("http") else english_of(path) + mark


# ----------------------------------------------------------------------------------- the glossary


def terms():
    """Return the English terms, each with the Chinese words that stand for it."""
    table = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", text_of("docs/glossary.md"), re.MULTILINE)[2:]
    for english, chinese in table:
        for each in english.split(", "):
            yield each, [word for word in re.split("[\uff08\uff09]", chinese) if word]


@pytest.mark.parametrize("page", CHINESE)
def test_a_term_of_an_english_page_has_the_word_of_the_glossary_on_the_chinese_one(page):
    english, chinese = (re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose(each)).lower() for each in (english_of(page), page))
    lost = [
        (term, words)
        for term, words in terms()
        if len(re.findall(rf"\b{re.escape(term)}s?\b", english)) >= OFTEN
        and not any(word.lower() in chinese for word in words)
    ]
    assert [each for each in lost if each[0] not in OTHERWISE] == []


OFTEN = 2
OTHERWISE = {"view", "call", "report", "safe", "account", "rate", "attempt", "answer", "group"}
"""Terms that are also words of every day, such as a group of tests."""


# --------------------------------------------------------------------- the words of derived parts


def dictionary(texts, *, in_full=()):
    return docs_module("_derive.chinese").Dictionary("page.md", texts, frozenset(in_full))


MADE = """## Title

A sentence that
goes on, with `code`.

- an item of 7

| name | meaning |
| --- | --- |
| `a` | first |
| plain | second |

```text
A sentence in code.
```
"""
TEXTS = {
    "Title": "标题",
    "A sentence that goes on, with {1}.": "一句话含 {1}。",
    "an item of {1}": "{1} 项",
    "name": "名称",
    "meaning": "含义",
    "first": "第一",
    "second": "第二",
}


def test_derived_text_is_put_into_chinese():
    made = dictionary(TEXTS, in_full=["meaning"]).chinese(MADE)
    assert made == (
        "## 标题\n\n一句话含 `code`。\n\n- 7 项\n\n| 名称 | 含义 |\n| --- | --- |\n| `a` | 第一 |\n| plain | 第二 |\n\n"
        "```text\nA sentence in code.\n```\n"
    )


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_without_its_chinese_is_an_error(text):
    texts = {english: chinese for english, chinese in TEXTS.items() if english != text}
    with pytest.raises(LookupError, match=r"words/page\.toml has no Chinese for .*" + re.escape(text.split("{")[0])):
        dictionary(texts, in_full=["meaning"]).chinese(MADE)


def test_a_cell_of_another_column_may_stay_english():
    texts = {english: chinese for english, chinese in TEXTS.items() if english != "first"}
    assert "| `a` | first |\n" in dictionary(texts).chinese(MADE)


@pytest.mark.parametrize("name", sorted(docs_module("derive").CHINESE))
def test_each_text_of_a_dictionary_is_on_its_page(name):
    english = " ".join(text_of(f"docs/{name}").split())
    pieces = {piece.strip() for text in docs_module("derive").CHINESE[name].texts for piece in re.split(r"\{\d\}", text)}
    assert [piece for piece in pieces if piece not in english] == []
