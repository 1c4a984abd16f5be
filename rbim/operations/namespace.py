"""Namespaces: operations as methods (``client.groups.invite``), with the parameters of the operation class."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, Protocol, cast, overload

from rbim.operations.base import Operation, P, R, R_co

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["Method", "Namespace", "Sender"]


class Sender(Protocol):
    """The protocol of senders: the client, its views, and substitutes for them."""

    async def send(self, operation: Operation[R], /) -> R:
        """Run one operation and return its answer."""
        ...


class Method(Generic[P, R_co]):
    """A namespace's method for an operation class: an async method with the same parameters and docstring."""

    def __init__(self, make: Callable[P, Operation[R_co]]) -> None:
        self.make = make
        self.name = ""

    @property
    def operation(self) -> type[Operation[R_co]]:
        """The operation class of the method."""
        return cast("type[Operation[R_co]]", self.make)

    def __set_name__(self, owner: type[Namespace], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type[Namespace]) -> Method[P, R_co]: ...
    @overload
    def __get__(self, instance: Namespace, owner: type[Namespace]) -> Callable[P, Coroutine[Any, Any, R_co]]: ...
    def __get__(
        self, instance: Namespace | None, owner: type[Namespace]
    ) -> Method[P, R_co] | Callable[P, Coroutine[Any, Any, R_co]]:
        if instance is None:
            return self
        make, sender = self.make, instance.sender

        async def call(*args: P.args, **kwargs: P.kwargs) -> R_co:
            return await sender.send(make(*args, **kwargs))

        call.__name__ = self.name
        call.__qualname__ = f"{owner.__name__}.{self.name}"
        call.__doc__ = make.__doc__
        call.__signature__ = inspect.signature(make)  # type: ignore[attr-defined]  # read by inspect and by help()
        instance.__dict__[self.name] = call  # takes precedence over this descriptor from now on: made once per namespace
        return call


class Namespace:
    """A family of methods over one sender. ``Groups(client).detail(...)`` equals ``client.groups.detail(...)``.

    Every declared subclass is part of the catalogue, under its class name in lower case.
    """

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    @classmethod
    def methods(cls) -> Iterator[tuple[str, Method[..., Any]]]:
        """Yield each method's name and declaration, in order of declaration; a subclass can replace inherited ones."""
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        for name in names:
            value = inspect.getattr_static(cls, name)
            if isinstance(value, Method):
                yield name, cast("Method[..., Any]", value)
