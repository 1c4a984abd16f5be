"""JSON on standard output: the document of a command, or the document of its error.

With ``--json`` the last line of standard output is always a document: that of the command, or ``{"error": {...}}``.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rbim._support.json_values import json_values
from rbim.cli.exit_codes import Exit
from rbim.errors import InvalidRequest, Outcome, RbimError

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["JsonOutput", "escaped", "json_line", "record_error", "recording_json", "show_json", "writes_unicode"]

KINDS = {Exit.REFUSED: Outcome.REFUSED, Exit.USAGE: Outcome.NOT_SENT, Exit.NOT_SENT: Outcome.NOT_SENT}
"""The outcome of an error that is no RbimError, by exit code; for others it is unknown."""


class JsonOutput:
    """What a command has printed: whether its document or one of several, and its first error."""

    def __init__(self) -> None:
        self.has_document = self.has_part = False
        self.error: dict[str, Any] | None = None
        self.exception: str | None = None

    def finish(self, code: int) -> None:
        """Write the document of the error, unless the command succeeded or has printed its own document."""
        if code in {Exit.DONE, Exit.READER_LEFT} or self.has_document or (self.has_part and self.error is None):
            return
        known = next((each for each in Exit if int(each) == code), None)
        found = self.error or {"message": "failed" if known is None else known.meaning, "hint": None}
        document = {
            "class": InvalidRequest.__name__ if known is Exit.USAGE else self.exception if known is Exit.FAULT else None,
            "outcome": KINDS.get(known or Exit.FAULT, Outcome.UNKNOWN).value,
            "code": None,
            "status": None,
            "docs": InvalidRequest().docs if known is Exit.USAGE else None,
            **found,
            "exit_code": int(code),
        }
        sys.stdout.write(f"{json_line({'error': document}, ascii_only=not writes_unicode())}\n")
        sys.stdout.flush()


_current: ContextVar[JsonOutput | None] = ContextVar("rbim_json_output", default=None)


@contextmanager
def recording_json() -> Generator[JsonOutput]:
    """Record what a command prints in the block."""
    output = JsonOutput()
    before = _current.set(output)
    try:
        yield output
    finally:
        _current.reset(before)


def record_error(message: str, hints: list[str], error: BaseException | None) -> None:
    """Record the error of the command; later ones follow from the first."""
    output = _current.get()
    if output is None or output.error is not None:
        return
    output.error = {"message": message, "hint": "\n".join(hints) or None}
    output.exception = None if error is None else type(error).__name__
    if isinstance(error, RbimError):
        facts = error.to_dict()
        output.error |= {name: facts.get(name) or None for name in ("class", "outcome", "code", "status", "docs")}


def show_json(value: object, *, more: bool = False) -> None:
    """Write a value as one line of JSON to standard output, by the rules of ``to_dict``.

    Unprintable characters are escaped, and all that are not ASCII unless its encoding is UTF. ``more``: this is one of
    several documents.
    """
    sys.stdout.write(f"{json_line(json_values(value), ascii_only=not writes_unicode())}\n")
    if (output := _current.get()) is not None:
        output.has_document, output.has_part = output.has_document or not more, True


def json_line(document: Any, *, ascii_only: bool = False) -> str:  # JSON
    r"""Return a document as one line of JSON in which each unprintable character is escaped (``\u202e``).

    It is the same document: such characters can only stand inside its texts.
    """
    return escaped(json.dumps(document, ensure_ascii=ascii_only))


def escaped(text: str) -> str:
    r"""Return the text with each unprintable character escaped as in JSON (``\u202e``)."""
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def writes_unicode() -> bool:
    """Return whether standard output takes characters that are not ASCII."""
    return (sys.stdout.encoding or "").lower().startswith("utf")
