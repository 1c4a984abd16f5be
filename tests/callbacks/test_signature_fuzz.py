"""Whatever comes instead of a signature: nothing raises, and nothing is authentic."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from helpers.signatures import ARABIC, BODY, MINE, NOW, OLD_TOKEN, assert_refused, check, credentials, signed
from rbim.callbacks.signature import Keys, Reason, Rejected, Verified, verify

# ------------------------------------------------------------------------------------ nothing raises


class Explosive:
    """Raises on every touch."""

    def __getattr__(self, name):
        raise RuntimeError(name)

    def __iter__(self):
        reason = "no"
        raise OSError(reason)


class ExplosiveMapping(dict):
    def items(self):
        raise LookupError


class Speechless(Exception):
    """An exception that cannot even be shown."""

    def __str__(self):
        reason = "no words"
        raise RuntimeError(reason)


def raising(error, pairs=()):
    yield from pairs
    raise error


def odd_headers():
    """Yield what is no headers at all."""
    pairs = list(signed().items())
    yield from (None, 0, 1.5, True, "", "CheckSum", b"CheckSum", [], {}, (), set(), object(), Explosive(), len, Explosive)
    yield from ([None], [1], ["ab", "cd"], [()], [("a",)], [("a", "b", "c")], [[]], [[[]]], [pairs], {"CheckSum": None})
    yield from (
        {None: None},
        {1: 2},
        {"MD5": ["a"]},
        {"MD5": {}},
        [(None, "a")],
        [([], "a")],
        [(b"MD5", 5)],
        ExplosiveMapping(a=1),
    )
    yield from ([("MD5", bytearray(b"a"))], [(Explosive(), Explosive())], [("MD5", Explosive())], [*pairs, ("MD5", None)])
    yield [*pairs, None]
    yield from (
        range(3),
        iter([1]),
        raising(ValueError("no")),
        raising(RecursionError(), pairs),
        raising(MemoryError(), pairs),
    )


@pytest.mark.parametrize("headers", list(odd_headers()), ids=lambda headers: type(headers).__name__)
def test_what_is_no_headers_is_refused(headers):
    result = check(headers)
    assert isinstance(result, Rejected)
    assert result.reason in (Reason.BAD_FORMAT, Reason.MISSING_HEADER)
    assert result.detail
    assert str(result.error)


def test_an_error_that_cannot_be_shown_is_refused_as_any_other():
    assert_refused(check(raising(Speechless(), signed().items())), Reason.BAD_FORMAT)


def test_what_ends_the_process_is_not_swallowed():
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(error):
            check(raising(error()))


FUZZED = 100_000
HARMLESS = [("Host", "example.com"), (b"accept", b"*/*"), ("Content-Encoding", "identity"), ("X-Half", "\ud800")]
VALUES = [
    *(None, 0, 1767323045000, 1.5, True, [], {}, (), object(), bytearray(b"1"), ["a"], {"a": ["b"]}, Explosive()),
    *(
        "",
        b"",
        "\n",
        "\0",
        "\ud800",
        "\ud83d\ude00",
        "\u0663" * 13,
        "1" * 13,
        "a" * 32,
        "A" * 20_000,
        b"\xff" * 32,
        b"0" * 13,
    ),
]
NAMES = [
    "checksum",
    "MD5",
    b"CURTIME",
    b"md5",
    "CurTime",
    "Content-Encoding",
    b"\xff",
    "",
    "\ud800",
    "校验",
    None,
    5,
    ("MD5",),
]
CHANGES = [
    *(lambda text, each=each: text + each for each in ("\n", " ", "\0", "0", "\ud800", "\u0663", ",", "\r\n")),
    *(
        lambda text, each=each: each + text[1:]
        for each in ("\u0663", "1", "0", "f", "F", "\n", "-", "é", "\udfff", "\u017f")
    ),
    *(str.swapcase, str.lower, str.upper, str.title),
    *(lambda text: text[1:], lambda text: text[::-1], lambda text: text * 2, lambda text: text.translate(ARABIC)),
    lambda text: text.encode("utf-8", "surrogatepass"),
    lambda text: text.encode("utf-16", "surrogatepass"),
]
NO_BODIES = [None, 0, "", "{}", {}, [], [b"a"], object(), bytearray(b"{}"), memoryview(b"{}"), True, Explosive()]


def changed(draw, pairs):
    """Return pairs with one thing done to them."""
    pairs = list(pairs)
    act = draw.randrange(7)
    place = draw.randrange(len(pairs)) if pairs else 0
    if act == 0 and pairs:
        del pairs[place]
    elif act == 1:
        pairs.insert(place, (draw.choice(NAMES), draw.choice(VALUES)))
    elif act == 2 and pairs:
        pairs.append(draw.choice(pairs))
    elif act == 3:
        draw.shuffle(pairs)
    elif act == 4 and pairs:
        pairs[place] = (pairs[place][0], draw.choice(VALUES))
    elif pairs and isinstance(pairs[place][1], str):
        pairs[place] = (pairs[place][0], draw.choice(CHANGES)(pairs[place][1]))
    return pairs


def shaped(draw, pairs):
    """Return pairs in one of the shapes that headers have, or in one that they do not."""
    act = draw.randrange(12)
    if act == 0:
        return raising(draw.choice([ValueError("no"), OSError(), RecursionError()]), pairs)
    if act == 1:
        return draw.choice([None, 5, "MD5", b"MD5", [pairs], [None], {}, Explosive(), [*pairs[:1], ()]])
    if act < 7 and all(isinstance(name, (str, bytes)) for name, _ in pairs):
        return dict(pairs)
    return iter(pairs) if act == 7 else pairs


def test_a_hundred_thousand_inputs_raise_nothing_and_forge_nothing():
    draw = random.Random(20260102)
    bodies = [b"", b"{}", BODY, b"\0" * 64, b"\xff\xfe", draw.randbytes(200)]
    captured = [(body, list(signed(body, by=MINE).items())) for body in bodies]
    forged = [(body, list(signed(body, by=credentials(token=OLD_TOKEN)).items())) for body in bodies]
    authentic = {
        (body, told["MD5"], told["CurTime"], told["CheckSum"]) for body, pairs in captured for told in [dict(pairs)]
    }
    keys = Keys(MINE)
    results = Counter()
    for _ in range(FUZZED):
        body, pairs = draw.choice(captured if draw.random() < 0.7 else forged)
        if draw.random() < 0.2:
            pairs = [*pairs, *draw.sample(HARMLESS, 2)]
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            pairs = changed(draw, pairs)
        if draw.random() < 0.2:
            body = draw.choice([*bodies, *NO_BODIES, draw.randbytes(20)])
        result = verify(shaped(draw, pairs), body, credentials=keys, now=NOW)
        if isinstance(result, Verified):
            told = {text(name).lower(): text(value) for name, value in pairs if isinstance(name, (str, bytes))}
            assert (body, told["md5"], told["curtime"], told["checksum"].upper()) in authentic
            results[Verified] += 1
        else:
            assert type(result) is Rejected
            results[result.reason] += 1
    assert results.total() == FUZZED
    assert results[Verified] > 1000
    for reason in (Reason.MISSING_HEADER, Reason.DUPLICATE_HEADER, Reason.BAD_FORMAT, Reason.CHECKSUM_MISMATCH):
        assert results[reason] > 1000
    assert results[Reason.BODY_MISMATCH] > 1000


def text(value):
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.sampled_from(["MD5", "CheckSum"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.binary() | st.none(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(headers=ANYTHING, body=ANYTHING)
def test_nothing_at_all_raises_and_nothing_at_all_is_authentic(headers, body):
    assert isinstance(check(headers, body), Rejected)
