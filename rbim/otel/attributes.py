"""Attributes of all spans and metrics of one observer: constants, and the name of a client or receiver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Literal, cast

from rbim._support.text import quoted
from rbim.errors import InvalidRequest
from rbim.validators import require

if TYPE_CHECKING:
    from typing import TypeAlias

__all__ = ["MOST", "Attributes", "CommonAttributes", "Value"]

Value: TypeAlias = "str | bool | int | float"
Attributes: TypeAlias = "dict[str, Value]"

MOST = 8
"""The most constant attributes of an observer."""

LONGEST = 200
"""The most characters of a key and of a text."""

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_RESERVED = ("rbim", "http", "url", "server", "error", "messaging", "otel", "exception")
_LE = "le"  # Prometheus writes the bounds of histograms under this name


class CommonAttributes:
    """The attributes of an observer: ``constants`` are on all spans and metrics.

    Without ``names_in_metrics``, names are on spans only. Raises InvalidRequest.
    """

    def __init__(self, constants: Mapping[str, Value] | None, *, names_in_metrics: bool) -> None:
        require("names_in_metrics", names_in_metrics, bool, "True or False")
        self.constants = _checked({} if constants is None else constants)
        self._names_in_metrics = names_in_metrics

    def of_span(self, key: Literal["rbim.client", "rbim.receiver"], name: str) -> Attributes:
        """Return the attributes of a span of the client or receiver ``name``, as a new dictionary."""
        return {**self.constants, key: name} if name else {**self.constants}

    def of_metric(self, key: Literal["rbim.client", "rbim.receiver"], name: str) -> Attributes:
        """Return the attributes of a point of the client or receiver ``name``, as a new dictionary."""
        return self.of_span(key, name if self._names_in_metrics else "")


def _checked(given: Mapping[str, Value]) -> Attributes:
    require("attributes", given, Mapping, "a mapping such as {'deployment.environment.name': 'test'}")
    if len(given) > MOST:
        raise _invalid(f"at most {MOST} attributes, not {len(given)}")
    labels: dict[str, str] = {}
    for key, value in given.items():
        _check_key(key)
        _check_value(key, value)
        other = labels.setdefault(_label(key), key)
        if other != key:
            raise _invalid(f"{other!r} and {key!r} are the same label in Prometheus; rename one")
    return dict(given)


def _check_key(key: object) -> None:
    if not isinstance(key, str) or len(key) > LONGEST or not _KEY.fullmatch(key):
        raise _invalid(f"a key is letters, digits, '.', '_' and '-' after a letter, not {quoted(key)}")
    label = _label(key)
    if label == _LE or label.partition("_")[0] in _RESERVED:
        raise _invalid(f"{key!r} is reserved; use a key that does not begin with {', '.join(_RESERVED)}, and is not {_LE}")


def _check_value(key: str, given: object) -> None:
    value = cast("Value", given)
    if not isinstance(given, (str, int, float)):
        raise _invalid(f"{key}: a text, a number or a boolean is needed, not {type(given).__name__}")
    if isinstance(value, float) and not isfinite(value):
        raise _invalid(f"{key}: a finite number is needed")
    if isinstance(value, str) and len(value) > LONGEST:
        raise _invalid(f"{key}: at most {LONGEST} characters, not {len(value)}")


def _label(key: str) -> str:
    return re.sub(r"[.-]", "_", key)


def _invalid(reason: str) -> InvalidRequest:
    return InvalidRequest(f"attributes: {reason}", field="attributes")
