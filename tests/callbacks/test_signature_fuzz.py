"""Whatever comes instead of a signature: nothing raises, and nothing is authentic."""

import pytest
from hypothesis import given, settings, strategies as st

from helpers.signatures import check, signed
from rbim.callbacks.signature import Reason, Rejected

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


def test_what_is_no_headers_is_refused():
    for headers in odd_headers():
        result = check(headers)
        assert isinstance(result, Rejected)
        assert result.reason in (Reason.BAD_FORMAT, Reason.MISSING_HEADER)
        assert result.detail
        assert str(result.error)


def test_what_ends_the_process_is_not_swallowed():
    for error in (KeyboardInterrupt, SystemExit, GeneratorExit):
        with pytest.raises(error):
            check(raising(error()))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.sampled_from(["MD5", "CheckSum"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.binary() | st.none(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(headers=ANYTHING, body=ANYTHING)
def test_nothing_at_all_raises_and_nothing_at_all_is_authentic(headers, body):
    assert isinstance(check(headers, body), Rejected)
