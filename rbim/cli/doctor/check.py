"""The result of one check."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

from attrs import frozen

__all__ = ["Check", "Report", "State"]


class State(StrEnum):
    """The state that a check found."""

    OK = "ok"
    WARN = "warn"
    """It works now, and may not work later or elsewhere."""

    FAIL = "fail"
    SKIP = "skip"
    """Not checked, because it is not configured, or an earlier check failed."""


@frozen
class Check:
    """The ``name`` of a check, the ``state`` it found, a ``text`` about it, and the ``advice`` what to do, if any."""

    name: str
    state: State
    text: str
    advice: str = ""


Report: TypeAlias = Callable[[Check], object]
"""Gets each check when it is done."""
