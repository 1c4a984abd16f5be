"""The Chinese page on several machines says what the English one says: code, headings, tables and links are compared."""

import re

from helpers.pages import FENCE, blocks_of
from helpers.paths import ROOT

ENGLISH, CHINESE = "docs/machines.md", "docs/machines.zh.md"


def prose(page):
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def headings(page):
    return re.findall(r"^(#+) (.*)$", prose(page), re.MULTILINE)


def rows(page):
    """Return the tables' rows, each as the number of its cells and the code in them."""
    lines = [line for line in prose(page).splitlines() if line.startswith("|")]
    return [(line.count(" | "), sorted(re.findall(r"`[^`]+`", line))) for line in lines]


def links(page):
    """Return where the page's links lead, in order; to itself only that they do, for its headings are translated."""
    targets = re.findall(r"\]\(([^)]+)\)", prose(page))
    return ["#" if each.startswith("#") else each for each in targets]


def code(page):
    return sorted(set(re.findall(r"`[^`]+`", prose(page).replace("\n", " "))))


def test_the_blocks_are_the_same():
    blocks = [[(block.language, block.text) for block in blocks_of(page)] for page in (ENGLISH, CHINESE)]
    assert blocks[0] == blocks[1]
    assert len(blocks[0]) > 10


def test_the_headings_are_as_many_and_as_deep_and_in_chinese():
    english, chinese = headings(ENGLISH), headings(CHINESE)
    assert [depth for depth, _ in english] == [depth for depth, _ in chinese]
    assert [words for _, words in chinese if not re.search(r"[\u4e00-\u9fff]", words)] == []


def test_the_blocks_stand_under_the_same_headings():
    places = []
    for page in (ENGLISH, CHINESE):
        titles = [words for _, words in headings(page)]
        places.append([titles.index(block.title) for block in blocks_of(page)])
    assert places[0] == places[1]


def test_the_tables_and_the_lists_are_as_long_with_the_same_code():
    assert rows(ENGLISH) == rows(CHINESE)
    items = [re.findall(r"^- ", prose(page), re.MULTILINE) for page in (ENGLISH, CHINESE)]
    assert items[0] == items[1]


def test_the_code_in_sentences_is_the_same():
    assert code(ENGLISH) == code(CHINESE)


def test_the_links_are_the_same_and_those_within_the_page_lead_to_headings():
    english, chinese = links(ENGLISH), links(CHINESE)
    assert (english[0], chinese[0]) == ("machines.zh.md", "machines.md")
    assert english[1:] == chinese[1:]
    named = {words for _, words in headings(CHINESE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", prose(CHINESE))) <= named


def test_both_readmes_and_the_site_link_to_it():
    for page in ("README.md", "docs/README.zh.md", "docs/index.md"):
        assert "machines.zh" in (ROOT / page).read_text(encoding="utf-8")


def test_chinese_paragraphs_are_lines():
    """A line break between two Chinese characters is shown as a space."""
    text = prose(CHINESE)
    assert re.findall(r"[^\n]*[\u3000-\uffef]\n[^\n|#!-][^\n]*", text) == []
    assert re.findall(r"[\u4e00-\u9fff][,;:?!](?![\w/])", text) == []
