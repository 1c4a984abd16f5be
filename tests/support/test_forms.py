"""Values by type, as documents and as text: what is read, what is refused in which words, and that nothing gets lost."""

from collections.abc import Mapping
from datetime import UTC, timedelta, timezone, tzinfo
from enum import StrEnum
from types import MappingProxyType
from zoneinfo import ZoneInfo

import pytest
from attrs import frozen

from rbim._support.forms import form_of


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Shape(StrEnum):
    ROUND = "round"
    FLAT = "flat"


class Fruit:
    pass


class Apple(Fruit):
    pass


class Cox(Apple):
    pass


@frozen(kw_only=True)
class Bowl:
    fruit: type[Fruit]
    ripe: bool = False
    weights: tuple[float, ...] = ()


EIGHT = timezone(timedelta(hours=8))

# type, text, document, value
READ = [
    (bool, "true", True, True),
    (bool, "No", False, False),
    (int, "-7", -7, -7),
    (float, "2.5", 2.5, 2.5),
    (float, "3", 3, 3.0),
    (str, "a, b=c", "a, b=c", "a, b=c"),
    (Colour, "blue", "blue", Colour.BLUE),
    (int | None, "none", "none", None),
    (int | None, "5", 5, 5),
    (tzinfo, "UTC", "UTC", UTC),
    (tzinfo, "+08:00", "+08:00", EIGHT),
    (tzinfo, "UTC-0330", "UTC-0330", timezone(-timedelta(hours=3, minutes=30))),
    (tzinfo, "Asia/Tokyo", "Asia/Tokyo", ZoneInfo("Asia/Tokyo")),
    (tuple[float, ...], "5, 30,120", [5, 30, 120], (5.0, 30.0, 120.0)),
    (tuple[float, ...], "[]", [], ()),
    (frozenset[str], "b,a", ["b", "a"], frozenset({"a", "b"})),
    (frozenset[str], '["a, b", "c"]', ["a, b", "c"], frozenset({"a, b", "c"})),
    (type[Fruit], "Cox", "Cox", Cox),
    (Mapping[str, str], "a=1, b=x=y", {"a": "1", "b": "x=y"}, {"a": "1", "b": "x=y"}),
    (Mapping[str, str], "{}", {}, {}),
    (Mapping[str, frozenset[str]], "a=1,2,b=3", {"a": ["1", "2"], "b": ["3"]}, {"a": {"1", "2"}, "b": {"3"}}),
    (Mapping[Colour, int], "red=1", {"red": 1}, {Colour.RED: 1}),
    (Mapping[str, Bowl], "b=Apple", {"b": "Apple"}, {"b": Bowl(fruit=Apple)}),
    (
        Mapping[str, Bowl],
        '{"b": {"fruit": "Cox", "ripe": true, "weights": [1]}}',
        {"b": {"fruit": "Cox", "ripe": True, "weights": [1]}},
        {"b": Bowl(fruit=Cox, ripe=True, weights=(1.0,))},
    ),
]


CASES = [f"{kind} {text}" for kind, text, *_ in READ]


@pytest.mark.parametrize(("kind", "text", "document", "value"), READ, ids=CASES)
def test_text_becomes_a_document_and_a_document_a_value(kind, text, document, value):
    form = form_of(kind)
    assert form.parse(text) == document
    assert form.read(document) == value
    assert type(form.read(document)) is not list
    assert form.read(value) == value  # programs say the value itself


@pytest.mark.parametrize(("kind", "_", "__", "value"), READ, ids=CASES)
def test_what_is_written_is_read_again(kind, _, __, value):
    form = form_of(kind)
    document = form.write(value)
    assert form.read(document) == value
    assert form.parse(form.spell(document)) == document


@pytest.mark.parametrize(
    ("kind", "document", "says"),
    [
        (bool, "maybe", "true or false is needed, not 'maybe'"),
        (bool, 1, "true or false is needed, not 1"),
        (int, True, "a whole number is needed, not True"),
        (int, 2.5, "a whole number is needed, not 2.5"),
        (int, "x", "a whole number is needed, not 'x'"),
        (float, "fast", "a number is needed, not 'fast'"),
        (str, 2013, "a text is needed, not 2013"),
        (Colour, "pink", "one of red, blue, green is needed, not 'pink'"),
        (Shape, "square", "round or flat is needed, not 'square'"),
        (int | None, "many", "a whole number is needed, not 'many' (none is allowed, too)"),
        (tzinfo, "Asia/Nowher", "a time zone such as Asia/Shanghai or +08:00 is needed, not 'Asia/Nowher'"),
        (tzinfo, "Asia", "a time zone such as Asia/Shanghai or +08:00 is needed, not 'Asia'"),
        (tzinfo, "+99:00", "a time zone such as Asia/Shanghai or +08:00 is needed, not '+99:00'"),
        (tzinfo, "", "a time zone such as Asia/Shanghai or +08:00 is needed, not ''"),
        (tuple[float, ...], "5", "a list, each entry a number, is needed, not '5'"),
        (tuple[float, ...], [1, "x"], "a number is needed, not 'x'"),
        (frozenset[str], [1], "a text is needed, not 1"),
        (type[Fruit], "Stone", "one of Fruit, Apple, Cox is needed, not 'Stone'"),
        (Mapping[str, str], ["a"], "a table, or entries such as KEY=VALUE, is needed, not ['a']"),
        (Mapping[str, str], {"a": 1}, "a: a text is needed, not 1"),
        (Mapping[str, str], {"a": "none"}, "a: no such entry to remove; the default has none"),
        (Mapping[str, str], {"*": "x"}, "*: only none is allowed, which removes every entry of the default"),
        (Mapping[Colour, int], {"pink": 1}, "pink: one of red, blue, green is needed, not 'pink'"),
        (Bowl, {"fruit": "Apple", "size": 1}, "unknown key size; the keys are fruit, ripe, weights"),
        (Bowl, {"ripe": True}, "fruit is needed"),
        (Bowl, {"fruit": "Apple", "ripe": "very"}, "ripe: true or false is needed, not 'very'"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_with_what_is_allowed(kind, document, says):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        form_of(kind).read(document)
    assert str(caught.value) == says


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (Mapping[str, str], "a", "a table, or entries such as KEY=VALUE, is needed, not 'a'"),
        (Mapping[str, str], "a=1,a=2", "a is given twice"),
        (Mapping[str, str], "{a}", "it begins like JSON, but is not: not JSON at character 1"),
        (frozenset[str], "[a", "it begins like JSON, but is not: not JSON at character 1"),
    ],
)
def test_a_text_that_is_no_list_is_refused(kind, text, says):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole message is compared
        form_of(kind).parse(text)
    assert str(caught.value) == says


DEFAULT = MappingProxyType({"a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("value", "document", "text"),
    [
        ({"a": "1", "b": "2"}, {}, "{}"),
        ({"a": "1", "b": "2", "c": "3"}, {"c": "3"}, "c=3"),
        ({"a": "9", "b": "2"}, {"a": "9"}, "a=9"),
        ({"b": "2"}, {"a": "none"}, "a=none"),
        ({}, {"*": "none"}, "*=none"),
        ({"c": "3"}, {"*": "none", "c": "3"}, "*=none,c=3"),
        ({"a": "x,y", "b": "2"}, {"a": "x,y"}, '{"a":"x,y"}'),
    ],
)
def test_a_mapping_is_written_as_its_changes_of_the_default(value, document, text):
    form = form_of(Mapping[str, str], DEFAULT)
    assert form.write(value) == document
    assert form.read(document) == value
    assert form.spell(document) == text
    assert form.parse(text) == document


def test_a_mapping_without_changes_is_the_default_itself():
    assert form_of(Mapping[str, str], DEFAULT).read({}) is DEFAULT


def test_a_zone_is_written_by_its_offset_whatever_its_name():
    form = form_of(tzinfo)
    assert form.write(timezone(timedelta(hours=9), "JST")) == "UTC+09:00"
    assert form.write(UTC) == "UTC"


@pytest.mark.parametrize("kind", [bytes, int | str, dict[str, str], tuple[int, str]])
def test_a_type_without_a_form_is_an_error_of_the_programmer(kind):
    with pytest.raises(TypeError, match="has no form"):
        form_of(kind)


def test_choices_are_for_completion():
    assert form_of(bool).choices == ("true", "false")
    assert form_of(Colour | None).choices == ("red", "blue", "green", "none")
    assert form_of(int | None).choices == ()
