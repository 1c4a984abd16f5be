"""The log of rbim on standard error with ``--debug``. It never contains a signed address, a header or a body."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rbim.cli.printable import printable, visible

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["logging_to_stderr"]


class _Lines(logging.Formatter):
    """One printable line for each record, with the printable lines of its traceback below."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # logging's name
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(visible(line) for line in super().format(record).split("\n"))


@contextmanager
def logging_to_stderr() -> Generator[None]:
    """Write the records of the logger ``rbim``, from DEBUG on, to standard error.

    Other loggers are left out: HTTP libraries log addresses, which are signed.
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
