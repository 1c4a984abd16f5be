"""What an attempt's failure keeps of an exception, and whose a GeneratorExit is."""

import anyio
import pytest

from rbim.callbacks.worker.attempt import MOST_OF_TRACE, ForeignCode, HandlerFailure, failure_of


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


def test_a_failure_is_its_texts_whichever_exception_they_are_of():
    one, other = failure_of(ValueError("a")), failure_of(ValueError("a"))
    assert one == other == HandlerFailure("ValueError: a\n", "ValueError: a")
    assert repr(one) == repr(other) == r"HandlerFailure(trace='ValueError: a\n', line='ValueError: a')"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_coroutine_that_is_closed_outside_its_event_loop_has_not_failed(backend):
    async def begin():
        code = ForeignCode()
        assert code.failed(GeneratorExit())  # in its own task it is the handler's
        return code

    assert not anyio.run(begin, backend=backend).failed(GeneratorExit())
