"""What transports share when a lower layer raises."""

from __future__ import annotations

__all__ = ["untraced"]


def untraced(error: Exception) -> Exception:
    """Return the exception without the frames of itself and of what led to it.

    They belong to an HTTP library whose locals hold the signed address; error trackers that record locals would keep it.
    """
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        waiting += [linked for linked in (each.__cause__, each.__context__) if linked is not None]
    return error
