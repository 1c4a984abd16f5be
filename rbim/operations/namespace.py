"""Namespaces: operations as methods (``client.groups.invite``), with the parameters of the operation class."""

from __future__ import annotations

import inspect
from functools import cached_property
from typing import Any, Generic, Protocol, cast, overload

from rbim.operations.base import Operation, P, R, R_co, fields_of

# Type checkers know the name, whatever its value. Not imported, because jedi takes the name in `typing` for true: in this
# module it shall read the code that runs, which leads it to the parameters and the answer of an operation.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    import attrs

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

    def __repr__(self) -> str:
        return f"{self.name}{self._signature}"

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type[Namespace]) -> Method[P, R_co]: ...
        @overload
        def __get__(self, instance: Namespace, owner: type[Namespace]) -> Callable[P, Coroutine[Any, Any, R_co]]: ...

    def __get__(self, instance: Namespace | None, owner: type[Namespace]) -> Any:
        if instance is None:
            return self
        make, sender = self.make, instance.sender
        if TYPE_CHECKING:

            async def call(*args: P.args, **kwargs: P.kwargs) -> R_co: ...

        else:
            # jedi takes an annotated *args for one argument, and would not show the first parameter
            async def call(*args, **kwargs):  # noqa: ANN002, ANN003, ANN202
                return await sender.send(make(*args, **kwargs))

        call.__name__ = self.name
        call.__qualname__ = f"{owner.__name__}.{self.name}"
        call.__doc__ = make.__doc__
        signature = self._signature
        call.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        call.__annotations__["return"] = signature.return_annotation
        call.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect and by help()
        instance.__dict__[self.name] = call  # takes precedence over this descriptor from now on: made once per namespace
        return call

    @cached_property
    def _signature(self) -> inspect.Signature:
        """The parameters of the operation class, with types instead of their names, and its answer."""
        signature, kind = inspect.signature(self.make), self.operation
        types = {each.alias: _type_of(each) for each in fields_of(kind)}
        parameters = [each.replace(annotation=types[each.name]) for each in signature.parameters.values()]
        return signature.replace(parameters=parameters, return_annotation=kind.spec.answer)


def _type_of(attribute: attrs.Attribute[Any]) -> Any:  # a type expression
    """Return the type that a field takes: its own, or that of its converter's parameter."""
    converter = cast("Any", attribute).converter
    if converter is None:
        return attribute.type
    try:
        taken = next(iter(inspect.signature(converter, eval_str=True).parameters.values())).annotation
    except (NameError, StopIteration, TypeError, ValueError):  # a converter that does not say what it takes
        return attribute.type
    return attribute.type if taken is inspect.Parameter.empty else taken


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
