"""A guess in a comment or a docstring of rbim names the field of the dialect that holds it, or has a reason here.

The marks are the words that rbim uses where the interface description leaves something open.
"""

import ast
import io
import re
import tokenize
from functools import cache

import attrs

from helpers.paths import PACKAGE
from rbim import Dialect

MARKS = re.compile(
    r"\bguess|\bassum(?:es?|ed|ption)\b|\bpresumabl|\breportedly\b|\bunspecified\b|\bno page\b"
    r"|\bnot (?:stated|shown|documented|described)\b|\bonly (?:documented|described)\b"
    r"|\b(?:description|interface|table)(?:'s \w+)? (?:does not|says nothing|leaves|is silent)|\bthe emulator decides\b"
)
FIELDS = [each.name for each in attrs.fields(Dialect)]

WHOLE = "it speaks of the dialect as a whole"
ITSELF = "the mechanism that the fields use"
# A module, words of the comment or docstring with the mark, and the reason why no field of the dialect holds it.
WITHOUT_A_FIELD = {
    ("callbacks/events/types.py", "A place. The description"): "an event keeps all fields, whichever has the place",
    ("callbacks/receiver/receiver.py", "the choices that the interface leaves open"): WHOLE,
    ("client/client.py", "``dialect``: the choices that the interface leaves open"): WHOLE,
    ("client/client.py", "The client's dialect"): WHOLE,
    ("emulator/__init__.py", "the emulator does as the same"): WHOLE,
    ("emulator/emulator.py", "The platform's applications make them somehow"): (
        "methods of the emulator alone, which no client can call"
    ),
    ("emulator/messaging.py", "an event that is not described"): "the caller gives the whole body",
    ("emulator/platform/rules.py", "The effect of a request is not described"): ITSELF,
    ("emulator/platform/rules.py", "where the description says nothing"): ITSELF,
    ("operations/call_tasks.py", "The only documented type"): "the description states the type; others are refused",
    ("wire/signing.py", "The interface description does not show it"): "a Signer replaces the whole scheme",
}


def words_of(path):
    """Yield the paragraphs of the docstrings of a module, and its comments, each as one line."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        # docstrings, and the strings below attributes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from (" ".join(paragraph.split()) for paragraph in node.value.value.split("\n\n"))
    yield from comments_of(source)


def comments_of(source):
    """Yield the comments of a module; lines of comment alone continue the comment on the line above."""
    found, last = [], None
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            if alone and token.start[0] - 1 == last:
                found[-1].append(token.string)
            else:
                found.append([token.string])
            last = token.start[0]
    return [" ".join(line.lstrip("# ") for line in block) for block in found]


@cache
def guesses(package=PACKAGE):
    """Return the module and the words of each mark."""
    paths = sorted({*package.rglob("*.py")} - {package / "dialect.py", package / "codes.py"})  # the fields themselves
    return [
        (path.relative_to(package).as_posix(), words) for path in paths for words in words_of(path) if MARKS.search(words)
    ]


def fields_in(words):
    """Return the fields that the words name, as ``field`` or as Dialect.field."""
    return {name for name in FIELDS if f"``{name}``" in words or f"Dialect.{name}" in words}


def reason_for(module, words):
    return next((reason for (of, begin), reason in WITHOUT_A_FIELD.items() if of == module and begin in words), None)


def unsettled(found):
    return [(module, words) for module, words in found if not fields_in(words) and reason_for(module, words) is None]


def test_every_guess_names_its_field_or_has_a_reason():
    assert unsettled(guesses()) == []


def test_every_reason_is_for_a_guess_that_is_there():
    left = {
        (module, begin)
        for module, begin in WITHOUT_A_FIELD
        if not any(module == of and begin in words and not fields_in(words) for of, words in guesses())
    }
    assert left == set()


PLANTED = '''
"""A module.

The interface description does not say how. A guess: `zone`.
"""

class Group:
    """A group, as the description states it."""

    size: int
    """At most 7: this is assumed."""

LIMIT = 7  # the description leaves it open,
# so it is ``invite_limit``
NAME = "a guess"  # rbim's own
FIRST = 1  # which is first is not
           # documented
'''


def test_a_guess_without_a_field_is_found(tmp_path):
    (tmp_path / "planted.py").write_text(PLANTED, encoding="utf-8")
    assert [words for _, words in unsettled(guesses(tmp_path))] == [
        "The interface description does not say how. A guess: `zone`.",
        "At most 7: this is assumed.",
        "which is first is not documented",
    ]
