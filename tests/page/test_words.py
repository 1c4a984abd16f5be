"""The words of the pages: both languages say the same things, and every word is used."""

import json
import re
from pathlib import Path

import rbim.page
from helpers.tables import each_row

STATIC = Path(rbim.page.__file__).with_name("static")
PAGES = sorted(each.parent.name for each in STATIC.glob("*/words.js") if each.parent.name != "parts")
TABLE = re.compile(r"(?:export const words|const SHARED) = (\{.*?^\});", re.DOTALL | re.MULTILINE)


def words_of(folder):
    """The table of a module of words, which is written as JSON."""
    return json.loads(TABLE.search((STATIC / folder / "words.js").read_text(encoding="utf-8"))[1])


def scripts(folder):
    return [each.read_text(encoding="utf-8") for each in (STATIC / folder).glob("*.js") if each.name != "words.js"]


def keys_in(texts):
    """The keys that modules name: whole ones, and the beginnings of those that are put together."""
    whole, begun = set(), set()
    for text in texts:
        for call in re.finditer(r"\bt\(((?:[^()]|\([^()]*\))*)\)", text):
            whole.update(re.findall(r'"([^"]+)"', call[1]))
            begun.update(re.findall(r"`([^`$]+)\$\{", call[1]))
    return whole, tuple(begun)


@each_row("folder", ["parts", *PAGES])
def test_both_languages_have_the_same_keys_with_the_same_places_to_fill(folder):
    words = words_of(folder)
    assert list(words) == ["en", "zh"]
    assert list(words["en"]) == list(words["zh"])
    for key, text in words["en"].items():
        assert sorted(re.findall(r"\{(\w+)\}", text)) == sorted(re.findall(r"\{(\w+)\}", words["zh"][key])), key
        assert text.strip()
        assert words["zh"][key].strip()


@each_row("page", PAGES)
def test_every_word_of_a_page_is_used_and_every_used_word_exists(page):
    own, shared = words_of(page)["en"], words_of("parts")["en"]
    assert own.keys() & shared.keys() == set()
    whole, begun = keys_in(scripts(page))
    used = {key for key in own if key in whole or key.startswith(begun)}
    # a key that stands in a table of the module, and is passed on by a variable
    named = {key for key in own.keys() - used if any(f'"{key}"' in text for text in scripts(page))}
    assert own.keys() - used - named == set()
    known = own.keys() | shared.keys()
    for text in scripts(page):
        for key in re.findall(r'\bt\("([^"]+)"', text):
            assert key in known, key
        for beginning in re.findall(r"\bt\(`([^`$]+)\$\{", text):
            assert any(key.startswith(beginning) for key in known), beginning


def test_the_shared_words_are_used():
    whole, _ = keys_in([text for folder in ("parts", *PAGES) for text in scripts(folder)])
    texts = "".join(text for folder in ("parts", *PAGES) for text in scripts(folder))
    assert {key for key in words_of("parts")["en"] if key not in whole and f'"{key}"' not in texts} == set()


def test_the_chinese_of_a_page_is_chinese():
    for page in PAGES:
        words = words_of(page)
        same = {key for key, text in words["en"].items() if text == words["zh"][key]}
        assert {key for key in same if re.search("[a-z]{3}", words["en"][key])} == set()
