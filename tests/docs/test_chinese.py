"""Every page for users is there in Chinese, too, and says the same: code, headings, tables and links are compared.

So is the README of each example. What stands in the blocks is run once, from the English pages.
"""

import re

import pytest

from helpers.chinese import CHARACTER, REGION, anchors, code, english_of, headings, includes, prose, rows, targets, text_of
from helpers.pages import blocks_of, docs_module
from helpers.paths import ROOT
from rbim import Dialect

INCLUDING = "changelog.md"
"""A page that includes CHANGELOG.md, which is in English alone: there is nothing else in it to compare."""

ENGLISH = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if ".zh." not in path.name)]
CHINESE = ["docs/README.zh.md", *sorted(f"docs/zh/{path.name}" for path in (ROOT / "docs" / "zh").glob("*.md"))]
ENGLISH.remove(f"docs/{INCLUDING}")
CHINESE.remove(f"docs/zh/{INCLUDING}")
for own, pages in (("README.md", ENGLISH), ("README.zh.md", CHINESE)):  # of the examples
    pages.extend(sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "examples").rglob(own)))

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
    assert there == {*ENGLISH}


def test_both_sites_include_the_changelog():
    pages = (f"docs/{INCLUDING}", f"docs/zh/{INCLUDING}")
    assert [includes(page) for page in pages] == [[("{include}", "CHANGELOG.md")]] * 2
    assert "只有英文" in text_of(pages[1])  # a reader is told why


@pytest.mark.parametrize("page", CHINESE)
class TestAPageInChinese:
    def test_and_the_english_one_link_to_each_other_below_their_titles(self, page):
        if page == "docs/README.zh.md":
            here, there = "docs/README.zh.md", "../README.md"
        elif page.startswith("docs/examples/"):
            here, there = "README.zh.md", "README.md"
        else:
            here, there = f"zh/{name(page)}", f"../{name(page)}"
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

    def test_includes_the_same_files(self, page):
        assert includes(page) == includes(english_of(page))

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
            if each.startswith("http"):
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


def test_both_glossaries_have_the_same_terms():
    tables = [
        re.findall(r"^(\| .+? \| .+? \|)", text_of(page), re.MULTILINE)
        for page in ("docs/glossary.md", "docs/zh/glossary.md")
    ]
    assert tables[0][1:] == tables[1][1:]
    assert len(tables[0]) > 50


@pytest.mark.parametrize("page", CHINESE)
def test_a_term_of_an_english_page_has_the_word_of_the_glossary_on_the_chinese_one(page):
    english, chinese = (WORDLESS.sub("", prose(each)).lower() for each in (english_of(page), page))
    lost = [
        (term, words)
        for term, words in terms()
        if len(re.findall(rf"\b{re.escape(term)}s?\b", english)) >= OFTEN
        and not any(word.lower() in chinese for word in words)
    ]
    assert [each for each in lost if each[0] not in OTHERWISE] == []


OFTEN = 2
WORDLESS = re.compile(r"`[^`]*`(: [^|<`]+)?|\]\([^)]*\)")
"""Code, with the names of tests that stand behind that of their file, and the targets of links."""
OTHERWISE = {"view", "call", "report", "safe", "account", "rate", "attempt", "answer", "group", "burst"}
"""Terms that are also words of every day, such as a group of tests or a burst of callers."""


# --------------------------------------------------------------------- the words of derived parts


def dictionary(texts, *, in_full=(), lists=()):
    made = docs_module("_derive.chinese").Dictionary
    return made("page.md", texts, in_full=frozenset(in_full), lists=frozenset(lists))


MADE = """## Title

A sentence that
goes on, with `code`.

- an item of 7
- an item that goes on
  for three lines,
  and ends

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
    "an item that goes on for three lines, and ends": "三行的一项",
    "name": "名称",
    "meaning": "含义",
    "first": "第一",
    "second": "第二",
}


def test_derived_text_is_put_into_chinese():
    made = dictionary(TEXTS, in_full=["meaning"]).chinese(MADE)
    assert made == (
        "## 标题\n\n一句话含 `code`。\n\n- 7 项\n- 三行的一项\n\n"
        "| 名称 | 含义 |\n| --- | --- |\n| `a` | 第一 |\n| plain | 第二 |\n\n```text\nA sentence in code.\n```\n"
    )


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_without_its_chinese_is_an_error(text):
    texts = {english: chinese for english, chinese in TEXTS.items() if english != text}
    with pytest.raises(LookupError, match=r"words/page\.toml has no Chinese for .*" + re.escape(text.split("{")[0])):
        dictionary(texts, in_full=["meaning"]).chinese(MADE)


def test_each_item_of_a_cell_that_is_a_list_is_needed():
    table = "| faults |\n| --- |\n| reset; silence |\n"
    texts = {"faults": "故障", "reset": "重置", "silence": "无响应"}
    assert "| 重置\uff1b无响应 |\n" in dictionary(texts, lists=["faults"]).chinese(table)
    for missing in ("reset", "silence"):
        with pytest.raises(LookupError, match=missing):
            dictionary({each: texts[each] for each in texts if each != missing}, lists=["faults"]).chinese(table)


def test_a_place_for_a_number_takes_no_words():
    texts = {"figure": "数值", "{1#} of {2#}": "{1#} / {2#}"}
    made = dictionary(texts).chinese("| figure |\n| --- |\n| +1,234 of 0.5 |\n| most of them |\n")
    assert made.endswith("| +1,234 / 0.5 |\n| most of them |\n")


@pytest.mark.parametrize("name", sorted(docs_module("derive").CHINESE))
def test_the_chinese_of_a_text_has_its_places(name):
    place = re.compile(r"\{\d+#?\}")
    for english, chinese in docs_module("derive").CHINESE[name].texts.items():
        assert set(place.findall(chinese)) <= set(place.findall(english)), (english, chinese)


def test_texts_may_stand_beside_their_chinese_elsewhere(tmp_path):
    page = tmp_path / "page.toml"
    page.write_text('in_full = []\n[texts]\n"a b" = "甲乙"\n[sometimes]\n"c d" = "丙丁"\n', encoding="utf-8")
    read = docs_module("_derive.chinese").Dictionary.read(page, {"e f": "戊己"})
    assert read.chinese("a b\n\nc d\n\ne f\n") == "甲乙\n\n丙丁\n\n戊己\n"
    assert read.sometimes == {"c d"}


def test_a_cell_of_another_column_may_stay_english():
    texts = {english: chinese for english, chinese in TEXTS.items() if english != "first"}
    assert "| `a` | first |\n" in dictionary(texts).chinese(MADE)


@pytest.mark.parametrize("name", sorted(docs_module("derive").CHINESE))
def test_each_text_of_a_dictionary_is_on_its_page(name):
    english = " ".join(text_of(f"docs/{name}").split())
    dictionary = docs_module("derive").CHINESE[name]
    pieces = {piece for text in {*dictionary.texts} - dictionary.sometimes for piece in re.split(r"\{\d#?\}", text)}
    assert [piece for piece in pieces if " ".join(piece.split()) not in english] == []


def test_each_choice_of_the_dialect_and_its_section_are_in_chinese():
    """They stand in a cell with another value: a pattern of the dictionary takes any text in it."""
    texts = docs_module("derive").CHINESE["dialect.md"].texts
    assert [gap.name for gap in Dialect.gaps() if gap.choice not in texts] == []
    sections = {gap.section for gap in Dialect.gaps()}
    assert {section for section in sections if section not in texts and not section.isalnum()} == set()  # names stay
