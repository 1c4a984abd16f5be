"""JSON bytes to values and back: the two roads, orjson and the standard library, lead to the same place."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import example, given, settings, strategies as st

from helpers.tables import each_row
from rbim._support import json as rbim_json
from rbim._support.json import MOST_LEVELS, NotJson, dumps, loads, loads_repaired

pytest.importorskip("orjson")

ORJSON = rbim_json.orjson


def both(function, value):
    """Return what the function makes of the value with orjson and without; an exception counts as a result."""
    results = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (ORJSON, None):
            patch.setattr(rbim_json, "orjson", module)
            try:
                results.append(function(value))
            except ValueError as error:
                results.append((type(error), str(error)))
    return results


def exact(value):
    """Return the value in a form that tells 1 from 1.0 and 0.0 from -0.0."""
    return repr(value)


NUMBERS = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(2**62, 2**66)
    | st.integers(10**18, 10**40)
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=20
)


@settings(deadline=None)
@given(value=VALUES, escaped=st.booleans(), bom=st.booleans())
@example(value=[2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30], escaped=False, bom=False)
def test_both_roads_read_the_same_values(value, escaped, bom):
    text = json.dumps(value, ensure_ascii=escaped)
    body = b"\xef\xbb\xbf" * bom + b" \r\n" + text.encode() + b"\t\n"
    fast, slow = both(loads, body)
    assert exact(fast) == exact(slow) == exact(value)


@settings(deadline=None)
@given(value=VALUES)
@example(value={"a": 10**30, "b": None})
def test_both_roads_write_what_reads_back_the_same(value):
    for body in both(dumps, value):
        assert exact(json.loads(body)) == exact(value)


@each_row("value", [{"群": "🎉", "a": [1, None, True]}, [], "\u2028\x00\x7f", 10**20])
def test_both_roads_write_compact_utf_8(value):
    fast, slow = both(dumps, value)
    assert fast == slow == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@settings(deadline=None)
@given(
    body=st.binary(max_size=30)
    | st.text(st.sampled_from('[]{}",:0123456789.eE+-truefalsn \\u\ud800'), max_size=12).map(
        lambda text: text.encode("utf-8", "replace")
    )
)
@example(body=b'"\\ud800"')
@example(body=b'{"a":1,"a":2}')
@example(body=b"-0")
@example(body=b"-0.0")
@example(body=b"1e400")
@example(body=b"123456789012345678901234567890.5")
def test_both_roads_agree_on_any_bytes(body):
    fast, slow = both(loads, body)
    assert exact(fast) == exact(slow)


ENDLESS = [
    (b"", "not JSON at character 0"),
    (b"{", "not JSON at character 1"),
    (b"\xef\xbb\xbf", "not JSON at character 0"),
    (b"[1,]", "not JSON at character"),
    (b"{'a':1}", "not JSON at character 1"),
    (b"[1] 2", "not JSON at character 4"),
    (b"NaN", "NaN is not JSON"),
    (b"[Infinity]", "Infinity is not JSON"),
    (b"[-Infinity]", "-Infinity is not JSON"),
    (b"1e999", "too large for a float"),
    (b"-1e999", "too large for a float"),
    (b"1" * 5000, "too many digits"),
    (b"[" * 200_000 + b"]" * 200_000, "nested more than 64 levels deep"),
    (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "nested more than 64 levels deep"),
    (b'"\xff"', "not UTF-8 at byte 1"),
    (b'"\xed\xa0\x80"', "not UTF-8 at byte 1"),
    ('"a"'.encode("utf-16"), "not UTF-8 at byte 0"),
]


@each_row("body, reason", ENDLESS)
def test_what_is_not_json_is_refused_on_both_roads_with_the_same_words(body, reason):
    fast, slow = both(loads, body)
    assert fast == slow
    kind, text = fast
    assert kind is NotJson
    assert issubclass(NotJson, ValueError)
    assert reason in text


@each_row("left, right", [(b"[", b"]"), (b'{"a":', b"}"), (b'[1, {"b": 0, "a":', b"}, 2]")])
def test_the_levels_of_a_document_are_counted_and_not_left_to_the_parser(left, right):
    """Every parser can read these: what refuses them is a limit of our own."""
    each = left.count(b"[") + left.count(b"{")
    for levels in (MOST_LEVELS // each, MOST_LEVELS // each + 1):
        body = left * levels + b'"' + b"[{" * 99 + b'"' + right * levels  # in a text they are no levels
        document = json.loads(body)
        allowed = levels * each <= MOST_LEVELS
        assert both(loads, body) == [document if allowed else (NotJson, "nested more than 64 levels deep")] * 2


def test_half_a_character_is_read_but_not_written():
    assert both(loads, b'"a\\ud83c"') == ["a\ud83c"] * 2
    fast, slow = both(dumps, {"a": ["\ud83c"]})
    assert fast == slow
    assert issubclass(fast[0], ValueError)


@each_row("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_json_does_not_know_is_not_written(number):
    for value in (number, [None, number], {"a": number}):
        fast, slow = both(dumps, value)
        assert fast == slow
        assert fast[0] is ValueError


def test_long_integers_keep_every_digit():
    assert both(loads, b"[18446744073709551616, -9223372036854775809]") == [[2**64, -(2**63) - 1]] * 2
    assert both(loads, b"12345678901234567890123") == [12345678901234567890123] * 2


def test_without_orjson_the_standard_library_does_it_all():
    program = (
        "import sys; sys.modules['orjson'] = None\n"  # as if it were not installed
        "from rbim._support import json as rbim_json\n"
        "print(rbim_json.orjson, rbim_json.loads(b'[1]'), rbim_json.dumps({'a': None}).decode())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == 'None [1] {"a":null}'


CHINESE = st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5) | st.sampled_from("😀🎉a1 "), min_size=1)


def in_halves(text):
    """Return a text in CESU-8: each character above U+FFFF as two of three bytes."""
    units = text.encode("utf-16-be")
    return "".join(chr(int.from_bytes(units[at : at + 2])) for at in range(0, len(units), 2)).encode(
        "utf-8", "surrogatepass"
    )


@given(text=CHINESE)
def test_characters_in_halves_are_joined(text):
    document, body = loads_repaired(b'{"a":"%b"}' % in_halves(text))
    assert document == {"a": text}
    assert json.loads(body) == document


@given(before=CHINESE, after=CHINESE, bad=st.sampled_from([b"\xff", b"\xc0\xaf", b"\x80", b"\xe4\xb8", b"\xed\xa0\xbd"]))
@example(before="研发", after="部", bad=b"\xe7\xbb")
def test_one_bad_sequence_leaves_the_rest_as_it_is(before, after, bad):
    document, _ = loads_repaired(b'{"a":"%b%b%b","b":"%b"}' % (before.encode(), bad, after.encode(), "公告通知".encode()))
    assert document["a"].replace("\N{REPLACEMENT CHARACTER}", "") == before + after
    assert document["b"] == "公告通知"


@each_row("text", ["成功", "群组不存在", "参数错误请检查后重试", "系统繁忙", "爱", "研发部😀"])
def test_a_whole_text_in_gb18030_is_read_as_one(text):
    assert loads_repaired(b'{"a":"%b"}' % text.encode("gb18030"))[0] == {"a": text}
