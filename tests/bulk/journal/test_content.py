"""The accounts of a chunk as the journal stores them: JSON that any reader of the file understands."""

import json

import pytest
from hypothesis import example, given, strategies as st

from rbim.bulk.journal.content import Content

ACCOUNT = st.text(st.sampled_from('a",\\é[中'), min_size=1, max_size=6)


@given(st.lists(ACCOUNT, min_size=1, max_size=6))
@example(['a"b"c', "d"])
@example(['","', '"'])
def test_accounts_are_read_as_they_were_given_whatever_signs_they_have(accounts):
    content = Content.of(accounts, range(1, len(accounts) + 1))
    assert json.loads(content.accounts) == content.names() == accounts


@pytest.mark.parametrize(
    ("rows", "step", "listed"),
    [
        ([7], 1, None),
        ([7, 8, 9], 1, None),
        ([7, 10, 13], 3, None),
        ([7, 9, 13], 2, "[7,9,13]"),
        ([7, 8, 10], 1, "[7,8,10]"),
        ([7, 10, 11, 16], 3, "[7,10,11,16]"),
    ],
)
def test_rows_at_equal_distances_are_stored_as_three_numbers_and_others_as_a_list(rows, step, listed):
    content = Content.of([f"a{number}" for number in rows], rows)
    assert content[:4] == (len(rows), 7, step, listed)
    assert list(content.numbers()) == rows
