"""Values of flags that take several: separated by spaces, not by commas."""

from __future__ import annotations

import re

__all__ = ["one_value"]

_SEPARATORS = re.compile("[,;\uff0c\uff1b\u3001]")  # also full-width ones


def one_value(text: str, otherwise: str = "") -> str:
    """Return one of the values of a flag. Raises ValueError with the right form if commas join several in it.

    ``otherwise`` is the way to give a value that does contain a comma.
    """
    parts = [part.strip() for part in _SEPARATORS.split(text)]
    if len(parts) == 1:
        return text
    found, right = _SEPARATORS.findall(text)[0], " ".join(part for part in parts if part)
    message = f"{text!r} contains {found!r}: separate values with spaces{': ' if right else ''}{right}"
    raise ValueError(f"{message} (one value that contains {found!r}: use {otherwise})" if otherwise else message)
