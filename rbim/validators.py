"""Checks of values: numbers, texts, accounts, enums, addresses, arguments. They raise InvalidRequest.

Operations and settings use them on construction; a check that needs a clock is not here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from math import isfinite
from sys import float_info
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from rbim._support.text import quoted
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    import attrs

__all__ = [
    "Accounts",
    "above_zero",
    "accounts",
    "at_least_one",
    "each_account",
    "finite",
    "longest",
    "one_of",
    "or_none",
    "origin",
    "require",
    "require_clock",
    "require_methods",
    "require_name",
    "require_path",
    "seconds",
    "text",
    "whole_number",
]

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _number(needed: str, fits: Callable[[float], bool]) -> Validator:
    """Return a validator of numbers that fit; True and False are none."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        _refuse_huge(attribute, value)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not fits(value):
            raise InvalidRequest(f"{attribute.name}: {needed}, not {quoted(value)}", field=attribute.name)

    validate.__doc__ = f"Validator: {needed}."
    return validate


def _refuse_huge(attribute: attrs.Attribute[Any], value: object) -> None:
    """Raise InvalidRequest for a whole number that no float can hold: computing with it would fail later."""
    if isinstance(value, int) and abs(value) > float_info.max:
        raise InvalidRequest(f"{attribute.name}: {quoted(value)} is too large", field=attribute.name)


above_zero = _number("a number above 0 is needed", lambda value: value > 0)  # infinity is allowed
seconds = _number("use a number of seconds from 0 on", lambda value: value >= 0)  # infinity is allowed
whole_number = _number("a whole number from 0 on is needed", lambda value: isinstance(value, int) and value >= 0)
finite = _number("a finite number is needed", isfinite)


def at_least_one(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: a whole number of at least 1, or None if None is the default."""
    if value is None and attribute.default is None:
        return
    _refuse_huge(attribute, value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidRequest(f"{attribute.name}: at least 1, not {quoted(value)}", field=attribute.name, limit=1)


def or_none(validate: Validator) -> Validator:
    """Return a validator: None, or a value that ``validate`` accepts."""
    return partial(_check_or_none, validate)


def _check_or_none(validate: Validator, instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        validate(instance, attribute, value)


class Accounts(Protocol):
    """Any collection of accounts except a bare ``str``: lists, tuples, sets, keys of a mapping.

    ``__contains__`` excludes ``str`` for type checkers: that of ``str`` takes only ``str``.
    """

    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...


def accounts(value: Accounts) -> tuple[str, ...]:
    """Convert to a tuple of accounts, each once; leave anything else as it is, for :func:`each_account` to reject."""
    # the common case first: the check for Iterable takes longer than the rest
    several = isinstance(value, (list, tuple)) or (
        isinstance(cast("object", value), Iterable) and not isinstance(value, (str, bytes))
    )
    if not several:
        return cast("tuple[str, ...]", value)
    found = tuple(cast("Iterable[str]", value))
    try:
        return found if len(frozenset(found)) == len(found) else tuple(dict.fromkeys(found))
    except TypeError:  # a value that cannot be hashed is no account
        return found


def each_account(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: at least one account, each a non-empty text; a bare ``str`` is never split into letters."""
    name = attribute.name
    if not isinstance(value, tuple):
        shown = f"a bare str: write [{value!r}]" if isinstance(value, str) else repr(value)
        raise InvalidRequest(f"{name}: a list of accounts is needed, not {shown}", field=name)
    members = cast("tuple[object, ...]", value)
    if not members:
        raise InvalidRequest(f"{name}: at least one account is needed", field=name, length=0)
    try:
        "".join(cast("tuple[str, ...]", members))  # checks every value, at the speed of C
        texts = all(members)
    except TypeError:
        texts = False
    if not texts:
        wrong = next(member for member in members if not isinstance(member, str) or not member)
        raise InvalidRequest(f"{name}: each account is a text that is not empty, not {quoted(wrong)}", field=name)


def text(*, at_most: int | None = None, optional: bool = False) -> Validator:
    """Return a validator of texts: ``at_most`` characters; None and empty are allowed only if ``optional``.

    It counts code points. If the dialect counts UTF-16 units, :meth:`Operation.check_lengths` does so before sending.
    """
    return partial(_check_text, at_most, optional)


def _check_text(
    at_most: int | None,
    optional: bool,  # noqa: FBT001  # positional, as `partial` calls a validator
    _: object,
    attribute: attrs.Attribute[Any],
    value: object,
) -> None:
    name = attribute.name
    if optional and value is None:
        return
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: a text is needed, not {type(value).__name__}", field=name)
    if not value and not optional:
        raise InvalidRequest(f"{name}: must not be empty", field=name, length=0)
    if at_most is not None and len(value) > at_most:
        raise InvalidRequest(
            f"{name}: at most {at_most} characters, not {len(value)}", field=name, limit=at_most, length=len(value)
        )


def longest(validator: object) -> int | None:
    """Return the ``at_most`` of a validator that :func:`text` made, or None; also one in :func:`or_none` or in a list."""
    if isinstance(validator, partial):
        made = cast("partial[None]", validator)
        first = made.args[0]
        if made.func is _check_text:
            return cast("int | None", first)
        return longest(first) if made.func is _check_or_none else None
    several: tuple[object, ...] = getattr(validator, "_validators", ())  # attrs' and_(...)
    return min((each for each in map(longest, several) if each is not None), default=None)


def one_of(kind: type[Any], *, optional: bool = False) -> Validator:
    """Return a validator: an instance of ``kind`` (True and False are not integers), or None if ``optional``."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            choices = f" ({', '.join(kind.__members__)})" if issubclass(kind, Enum) else ""
            raise InvalidRequest(
                f"{attribute.name}: {kind.__name__}{choices} is needed, not {quoted(value)}", field=attribute.name
            )

    return validate


# ------------------------------------------------------------------------------ arguments of constructors


def require(name: str, value: object, kind: type[Any] | tuple[type[Any], ...], form: str) -> None:
    """Raise InvalidRequest unless ``value`` is an instance of ``kind``; ``form`` describes the right one.

    The message shows only the type of the value, because a token may stand there by mistake.
    """
    if not isinstance(value, kind):
        raise _wrong(name, value, form)


def require_methods(name: str, value: object, methods: Iterable[str], form: str) -> None:
    """Raise InvalidRequest unless ``value`` is an object with these methods; a class is refused."""
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        raise _wrong(name, value, form)


def require_path(name: str, path: object) -> None:
    """Raise InvalidRequest unless ``path`` is the path of a file."""
    if path == "":
        raise InvalidRequest(f"{name}: the path of a file is needed, not an empty text", field=name)
    require(name, path, (str, os.PathLike), "the path of a file")


MOST_OF_NAME = 100  # characters of a name that its user gives to an object


def require_name(name: str, value: object) -> None:
    """Raise InvalidRequest unless ``value`` is a name for logs and metrics: a printable text of at most 100 characters."""
    require(name, value, str, "a text")
    text = cast("str", value)
    if len(text) > MOST_OF_NAME or not text.isprintable():
        raise InvalidRequest(f"{name}: a printable text of at most {MOST_OF_NAME} characters is needed", field=name)


def require_clock(clock: object) -> None:
    """Raise InvalidRequest unless ``clock`` has the methods of :class:`~rbim.Clock`."""
    require_methods("clock", clock, ("now", "monotonic", "sleep", "scope"), "a clock such as SystemClock()")


def _wrong(name: str, value: object, form: str) -> InvalidRequest:
    given = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return InvalidRequest(f"{name}: {form} is needed, not {'None' if value is None else given}", field=name)


# ------------------------------------------------------------------------------ addresses

_UNFIT = re.compile(r"[?#\s\x00-\x1f\x7f]")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def origin(url: object, version: str = "") -> str:
    """Return a base URL as the origin of requests: without a slash at its end.

    Raises ValueError with the right form: for a URL that is none, and for one with the version of the platform, a date or
    ``version``, in its path.
    """
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        fits = (
            parts is not None
            and parts.scheme in {"http", "https"}
            and parts.hostname
            and "@" not in parts.netloc
            and parts.port != 0
        )
    except ValueError:  # an incomplete IPv6 address, a port that is not a number
        fits = False
    if not fits or _UNFIT.search(cast("str", url)):
        if isinstance(url, str) and not url.startswith(("http://", "https://")):
            raise ValueError(
                "an address such as https://host:8883 is needed: this one does not begin with https:// or http://"
            )
        raise ValueError("an address such as https://host:8883 is needed, without user, query, fragment or white space")
    base = cast("str", url).rstrip("/")
    own = base.split("/")[3:]  # behind scheme and host
    for number, segment in enumerate(own):
        if _DATE.fullmatch(segment) or (segment == version and number == len(own) - 1):
            right = "/".join(base.split("/")[: 3 + number])
            rest = "/".join(own[number:])
            raise ValueError(f"use {right} without /{rest}: rbim adds the version and the rest of the path")
    return base
