"""What ``--debug`` lets be seen: what rbim logs. Nothing of it holds a signed address, a header or a body."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rbim.cli.printable import printable

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["logging_to_stderr"]


class _Lines(logging.Formatter):
    """One line for each record, as a terminal can bear it; the lines of a traceback below it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return printable(super().formatMessage(record))


@contextmanager
def logging_to_stderr() -> Generator[None]:
    """Write what the logger ``rbim`` is told, from DEBUG on, to standard error.

    No other logger: HTTP libraries log addresses, and those are signed.
    """
    logger = logging.getLogger("rbim")
    before, handler = logger.level, logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("%(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
