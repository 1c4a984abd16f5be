"""What was prepared for requests: for a second, while a signature holds, they differ in nothing but their bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

    from rbim.http import Request

__all__ = ["HeadCache"]

T = TypeVar("T")

KEPT = 64  # paths, mostly: more of them are no longer those of one client's operations


class _Kept(Generic[T]):
    """What was made, and what of; it shows nothing of them."""

    __slots__ = ("headers", "made", "query")

    def __init__(self, request: Request, made: T) -> None:
        self.headers = dict(request.headers)
        self.query = dict(request.query)
        self.made = made


class HeadCache(Generic[T]):
    """Keeps what was made of requests, for requests that differ from them in nothing but their body.

    ``also`` is what else the made thing depends on.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[Hashable, ...], _Kept[T]] = {}

    def get(self, request: Request, *also: Hashable) -> T | None:
        """Return what was made of such a request, if it is here."""
        kept = self._kept.get((request.path, request.origin, request.method, *also))
        if kept is None or request.headers != kept.headers or request.query != kept.query:
            return None
        return kept.made

    def keep(self, request: Request, made: T, *also: Hashable) -> T:
        """Keep what was made of a request, and return it."""
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[request.path, request.origin, request.method, *also] = _Kept(request, made)
        return made

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
