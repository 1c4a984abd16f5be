"""Sources of observable metrics: those of all observers in the process, each with its meter provider.

The SDK keeps the callbacks of the first instrument of a name, and ignores those of later ones. So a callback reports the
sources of every observer with the same provider: it makes no difference whose callback is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

from opentelemetry import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.metrics import MeterProvider

__all__ = ["Provider", "Sources"]

T = TypeVar("T")


class Provider:
    """A meter provider, weakly referenced; None is the global provider, whichever it is when metrics are collected."""

    def __init__(self, provider: MeterProvider | None) -> None:
        self._given = None if provider is None else ref(provider)

    def is_same_as(self, other: Provider) -> bool:
        """Return whether both are the same provider now."""
        return self._now() == other._now()

    def _now(self) -> ref[MeterProvider]:
        return ref(metrics.get_meter_provider()) if self._given is None else self._given


class Sources(Generic[T]):
    """A set of sources; any thread may change it while another one reads it."""

    def __init__(self) -> None:
        self._all: dict[T, Provider] = {}

    def add(self, source: T, provider: Provider) -> None:
        """Report a source to a provider from now on."""
        self._all[source] = provider

    def discard(self, source: T) -> None:
        """Report a source no more."""
        self._all.pop(source, None)

    def of(self, provider: Provider) -> Iterator[T]:
        """Yield the sources of a provider."""
        for source, its in self.everything():
            if its is provider or its.is_same_as(provider):
                yield source

    def everything(self) -> tuple[tuple[T, Provider], ...]:
        """Return all sources with their providers."""
        return tuple(self._all.items())  # an atomic copy
