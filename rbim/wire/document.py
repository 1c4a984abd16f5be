"""The JSON object of an answer, in any charset and within limits, and the status code in it."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from rbim._support import json

__all__ = ["MAX_VALUES", "code_of", "document_of"]

DIGITS = 6
"""Digits of a status code."""


def code_of(value: object) -> str | None:
    """Return the code in a field of an answer, or None; a code of zeros may have lost some, a number all of them."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:0{DIGITS}d}"
    if not isinstance(value, str) or not value:
        return None
    return value.rjust(DIGITS, "0") if value.strip("0") == "" else value


MAX_VALUES = 120_000
"""Values that an answer has at most, so that it blocks the event loop for about half a second at most. A search that finds
15,000 groups with all their fields has fewer."""


def document_of(body: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON object of an answer, or None, and the reason why it cannot be read, or not as it was written.

    A body that is not UTF-8 is read as GB18030 (which includes GBK and GB 2312); if it is not that either, the bytes that
    are not UTF-8 are replaced, so that a code can be read.
    """
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:  # each value follows one of them
        return None, f"more than {MAX_VALUES:,} values"
    reason = ""
    try:
        document = json.loads(body)
    except json.NotJson as error:
        document, replaced = _in_another_charset(body)
        reason = str(error) if body.strip() else "an empty answer"
        if document is None:
            return None, reason
        reason = reason if replaced else ""
    if not isinstance(document, dict):
        return None, reason or f"an object is needed, not {type(document).__name__}"
    return cast("dict[str, Any]", document), reason


def _in_another_charset(body: bytes) -> tuple[Any, bool]:  # JSON
    """Return the document of an answer that is not UTF-8, or None; and whether bytes had to be replaced."""
    try:
        body.decode()
    except UnicodeDecodeError:
        pass
    else:
        return None, False
    for replaced, decode in enumerate((partial(body.decode, "gb18030"), partial(body.decode, errors="replace"))):
        try:
            return json.loads(decode().encode()), bool(replaced)
        except ValueError:
            continue
    return None, False
