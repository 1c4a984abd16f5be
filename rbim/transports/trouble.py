"""What transports share when a lower layer raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["blotted", "untraced"]


def untraced(error: Exception, secrets: Iterable[str] = ()) -> Exception:
    """Return the exception, itself and what led to it without their frames and with the secrets blotted out of their words.

    The frames belong to an HTTP library whose locals hold the signed address; error trackers that record locals would keep
    it. The words may quote what the other side sent, and that may repeat the request.
    """
    secrets = tuple(secrets)
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        if any(secret in str(arg) for arg in each.args for secret in secrets):
            each.args = tuple(blotted(arg, secrets) if isinstance(arg, str) else arg for arg in each.args)
        waiting += [linked for linked in (each.__cause__, each.__context__) if linked is not None]
        if isinstance(each, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return error


def blotted(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret blotted out."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
