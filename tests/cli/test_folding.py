"""How lines are folded for a terminal."""

from hypothesis import given, settings, strategies as st
from rich.cells import cell_len

from rbim.cli.folding import columns_of, fold


@settings(max_examples=100)
@given(st.lists(st.text(alphabet="ab-é产́", min_size=1, max_size=30), max_size=12), st.integers(0, 6), st.integers(20, 60))
def test_no_word_is_broken_or_lost(words, indent, columns):
    line = " " * indent + " ".join(words)
    lines = fold(line, columns).split("\n")
    assert [word for each in lines for word in each.split()] == line.split()
    for each in lines:
        assert cell_len(each) == columns_of(each)
        assert cell_len(each) <= columns or len(each.split()) == 1
    assert all(each.startswith(" " * (indent + 2)) for each in lines[1:])
