"""The types of flags and arguments that several commands have, and one value of a flag that takes several."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from rbim._support.text import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import Token

__all__ = ["FileName", "Flag", "Json", "Port", "Repeated", "one_value", "whole"]

MOST_PORT = 65535


def _port(_: object, port: int) -> None:
    """Check a port; every command imports this module, and cyclopts.validators would take longer than the rest of it."""
    if port < 0:
        raise ValueError("Must be >= 0.")
    if port > MOST_PORT:
        raise ValueError(f"Must be <= {MOST_PORT}.")


def whole(_: object, tokens: Sequence[Token]) -> int:
    """Return a whole number, a converter for cyclopts, which itself would round a fraction. Raises ValueError."""
    (token,) = tokens
    if not re.fullmatch("-?[0-9]{1,100}", token.value):
        raise ValueError(f"{quoted(token.value)} is not a whole number")
    return int(token.value)


# A file although it is a text: it may also be ``-``, or an address of servers.
FileName: TypeAlias = str

Flag: TypeAlias = Annotated[bool, Parameter(negative=(), show_default=False)]
Json: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Port: TypeAlias = Annotated[int, Parameter(validator=_port)]
Repeated: TypeAlias = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]

_SEPARATORS = "[,;\uff0c\uff1b\u3001]"  # also full-width ones


def one_value(text: str, otherwise: str = "") -> str:
    """Return one of the values of a flag. Raises ValueError with the right form if commas join several in it.

    ``otherwise`` is the way to give a value that does contain a comma.
    """
    parts = [part.strip() for part in re.split(_SEPARATORS, text)]
    if len(parts) == 1:
        return text
    found, right = re.findall(_SEPARATORS, text)[0], " ".join(part for part in parts if part)
    message = f"{text!r} contains {found!r}: separate values with spaces{': ' if right else ''}{right}"
    raise ValueError(f"{message} (one value that contains {found!r}: use {otherwise})" if otherwise else message)
