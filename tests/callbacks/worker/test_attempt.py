"""What an attempt's failure keeps of an exception."""

import pytest

from rbim.callbacks.worker.attempt import MOST_OF_TRACE, failure_of


@pytest.mark.parametrize(("more", "whole"), [(0, True), (1, False)])
def test_a_traceback_of_the_longest_length_is_kept_whole_and_a_longer_one_without_its_middle(more, whole):
    said = "x" * (MOST_OF_TRACE - len("ValueError: \n") + more)
    error = ValueError(said)
    failure = failure_of(error)
    written = f"ValueError: {said}\n"
    assert (failure.trace == written) is whole
    assert failure.error is error
    assert failure.shown is (error if whole else None)
    if not whole:
        assert failure.trace == f"{written[: MOST_OF_TRACE // 2]}\n[...]\n{written[-MOST_OF_TRACE // 2 :]}"


def test_an_exception_without_a_text_is_a_failure_like_others():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert "Mute" in failure_of(Mute()).line
