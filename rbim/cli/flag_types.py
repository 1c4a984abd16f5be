"""The types of flags and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from cyclopts import Parameter
from cyclopts.validators import Number

__all__ = ["FileName", "Flag", "Json", "Port", "Repeated"]

# A file although it is a text: it may also be ``-``, or an address of servers.
FileName: TypeAlias = str

Flag: TypeAlias = Annotated[bool, Parameter(negative=(), show_default=False)]
Json: TypeAlias = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Port: TypeAlias = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Repeated: TypeAlias = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
