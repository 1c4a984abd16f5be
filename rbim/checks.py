"""What settings are checked for, as attrs validators: limits, rates, retrying, the dialect. They raise InvalidRequest."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, Any

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import attrs

__all__ = ["above_zero", "at_least_one", "finite", "or_none"]

Validator = Callable[[Any, Any, Any], None]


def above_zero(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: a number above 0; infinity is one."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        reason = f"{attribute.name}: a number above 0 is needed, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def finite(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
    """Validator: any number but infinity."""
    if not isfinite(value):
        reason = f"{attribute.name}: a number that is not infinite is needed, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name)


def at_least_one(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: a whole number of at least 1; None as well, where it is the default."""
    if value is None and attribute.default is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        reason = f"{attribute.name}: at least 1, not {value!r}"
        raise InvalidRequest(reason, field=attribute.name, limit=1)


def or_none(validate: Validator) -> Validator:
    """Validator: what another one lets through, or None."""

    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if value is not None:
            validate(instance, attribute, value)

    return check
