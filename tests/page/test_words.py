"""The words of the pages: both languages say the same things, and every word is used."""

import json
import re
from pathlib import Path

import rbim.page
from helpers.tables import each_row

STATIC = Path(rbim.page.__file__).with_name("static")
PAGES = sorted(each.parent.name for each in STATIC.glob("*/words.js") if each.parent.name != "parts")
WORD = re.compile(r'^    (".+?"): (\[.*\]),$', re.MULTILINE)


def words_of(folder):
    """The words of a module, by key: in English and in Chinese."""
    text = (STATIC / folder / "words.js").read_text(encoding="utf-8")
    found = [(json.loads(key), json.loads(both)) for key, both in WORD.findall(text)]
    assert len(dict(found)) == len(found) == len(re.findall(r'^    "', text, re.MULTILINE))
    return dict(found)


def scripts(folder):
    return [each.read_text(encoding="utf-8") for each in (STATIC / folder).glob("*.js") if each.name != "words.js"]


def keys_in(texts):
    """The keys that modules name: whole ones, and patterns of those that are put together."""
    whole, patterns = set(), set()
    for text in texts:
        for call in re.finditer(r"\bt\(((?:[^()]|\([^()]*\))*)\)", text):
            whole.update(re.findall(r'"([^"]+)"', call[1]))
        for template in re.findall(r"`([^`$\n]*(?:\$\{[\w.]+\}[^`$\n]*)+)`", text):
            patterns.add(".+".join(map(re.escape, re.split(r"\$\{[\w.]+\}", template))))
    return whole, [each for each in patterns if re.sub(r"\.\+|\W", "", each)]


@each_row("folder", ["parts", *PAGES])
def test_both_languages_have_the_same_places_to_fill(folder):
    for key, (english, chinese) in words_of(folder).items():
        assert sorted(re.findall(r"\{(\w+)\}", english)) == sorted(re.findall(r"\{(\w+)\}", chinese)), key
        assert english.strip()
        assert chinese.strip()


@each_row("page", PAGES)
def test_every_word_of_a_page_is_used_and_every_used_word_exists(page):
    own, shared = words_of(page), words_of("parts")
    assert own.keys() & shared.keys() == set()
    whole, patterns = keys_in(scripts(page))
    used = {key for key in own if key in whole or any(re.fullmatch(each, key) for each in patterns)}
    # a key that stands in a table of the module, and is passed on by a variable
    named = {key for key in own.keys() - used if any(re.search(rf'"{key}"|\b{key}: ', text) for text in scripts(page))}
    assert own.keys() - used - named == set()
    known = own.keys() | shared.keys()
    for text in scripts(page):
        for key in re.findall(r'\bt\("([^"]+)"', text):
            assert key in known, key


def test_the_shared_words_are_used():
    whole, _ = keys_in([text for folder in ("parts", *PAGES) for text in scripts(folder)])
    texts = "".join(text for folder in ("parts", *PAGES) for text in scripts(folder))
    assert {key for key in words_of("parts") if key not in whole and f'"{key}"' not in texts} == set()


def test_the_chinese_of_a_page_is_chinese():
    for page in PAGES:
        same = {english for english, chinese in words_of(page).values() if english == chinese}
        assert {text for text in same if re.search("[a-z]{3}", text)} == set()
