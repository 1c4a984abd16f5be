"""The type of an argument that names a file although it is a text: it may also be ``-``, or an address of servers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

__all__ = ["FileName"]

FILE_NAME = object()  # marks an annotation: completion offers the names of files

FileName: TypeAlias = Annotated[str, FILE_NAME]
