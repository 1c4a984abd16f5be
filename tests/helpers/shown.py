"""What an error could show to somebody who looks at it closely."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from helpers.paths import PACKAGE


def frames_of_rbim(error: BaseException) -> Iterator[FrameType]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            yield frame


def shown(error: BaseException | None) -> str:
    """Return all that error and whatever led to it could show, with the local variables of rbim's frames."""
    parts: list[str] = []
    while error is not None:
        parts += [str(error), repr(error), repr(vars(error)), repr(error.args), "".join(traceback.format_exception(error))]
        parts += [repr(value) for frame in frames_of_rbim(error) for value in frame.f_locals.values()]
        error = error.__cause__ or error.__context__
    return " ".join(parts)
