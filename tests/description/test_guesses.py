"""A guess in a comment or a docstring of rbim names the field of the dialect that holds it, or has a reason here.

The marks are the words that rbim uses where the interface description leaves something open.
"""

import ast
import io
import re
import tokenize
from itertools import groupby

import attrs

from helpers.paths import PACKAGE
from rbim import Dialect

MARKS = re.compile(
    r"\bguess|\bassum(?:es?|ed|ption)\b|\bpresumabl|\breportedly\b|\bunspecified\b"
    r"|\bnot (?:stated|shown|documented|described|named|given by the (?:interface )?description)\b"
    r"|\bno page\b|\b(?:description|interface|table|platform|page) (?:does not|says nothing|leaves|is silent)"
    r"|\bleaves? (?:\w+ ){0,3}open\b|\bthe emulator decides\b|\bonly (?:documented|described)\b"
)
FIELDS = [each.name for each in attrs.fields(Dialect)]

# The module and the beginning of the words of each mark that no field of the dialect holds, and the reason.
WITHOUT_A_FIELD = {}


def words_of(path):
    """Yield the comments and docstrings of a module, each as one line; comments that follow each other are one."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        # docstrings, and the strings below attributes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from (" ".join(paragraph.split()) for paragraph in node.value.value.split("\n\n"))
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(source).readline) if each.type == tokenize.COMMENT]
    numbered = enumerate(tokens)
    for _, block in groupby(numbered, lambda pair: pair[1].start[0] - pair[0]):
        yield " ".join(token.string.lstrip("# ") for _, token in block)


def guesses():
    """Yield the module and the words of each mark."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for words in words_of(path):
            if MARKS.search(words):
                yield path.relative_to(PACKAGE).as_posix(), words


def fields_in(words):
    return {name for name in FIELDS if re.search(rf"\b(?:Dialect\.)?{name}\b", words)}


def reason_for(module, words):
    return next((reason for (of, begin), reason in WITHOUT_A_FIELD.items() if of == module and begin in words), None)


def unsettled(found):
    return [(module, words) for module, words in found if not fields_in(words) and reason_for(module, words) is None]


def test_every_guess_names_its_field_or_has_a_reason():
    assert unsettled(guesses()) == []


def test_every_reason_is_for_a_guess_that_is_there():
    found = [*guesses()]
    left = {
        (module, begin)
        for module, begin in WITHOUT_A_FIELD
        if not any(module == of and begin in words and not fields_in(words) for of, words in found)
    }
    assert left == set()
