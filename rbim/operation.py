"""What an operation is: a frozen attrs class that names its answer, decorated with the facts of its route.

Client methods, the command line, the emulator's routing and the operations table are all computed from this one
declaration. Nothing here knows how an operation is encoded or sent.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from enum import Enum, StrEnum
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    overload,
)

import attrs
from attrs import frozen

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.dialect import Dialect
    from rbim.message import Clock

__all__ = [
    "Accounts",
    "Answer",
    "Endpoint",
    "Method",
    "Namespace",
    "Operation",
    "Repeat",
    "Sender",
    "Spec",
    "Wire",
    "accounts",
    "camel",
    "each_account",
    "fields_of",
    "one_of",
    "operation",
    "text",
    "wire",
    "wire_name",
    "wire_of",
]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", bound="type[Operation[Any]]")


class Repeat(StrEnum):
    """How an operation may be repeated when nobody knows whether it took effect."""

    FREELY = "freely"
    """It only reads."""

    CONVERGES = "converges"
    """Doing it twice in a row ends in the same state as doing it once, as long as nobody else writes in between."""

    NEVER = "never"
    """A second time could act a second time."""


@frozen(kw_only=True)
class Endpoint:
    """The facts that a family of operations shares.

    ``path`` is a template with ``{version}``, ``{app_id}`` and ``{name}``; ``origin`` says which of the client's two base
    URLs it belongs to. ``code`` and ``message`` are the answer's status fields, ``payload`` the
    field that holds the rest of it (None: they stand side by side). ``camel`` tells whether the wire writes
    ``group_id`` as ``groupId``.
    """

    path: str
    origin: Literal["base_url", "call_base_url"] = "base_url"
    code: str = "statusCode"
    message: str = "statusMsg"
    payload: str | None = None
    camel: bool = True


@frozen(kw_only=True)
class Spec:
    """What :func:`operation` knows of one operation: wire name, path templates (first the usual one), answer, repeating.

    ``destroys`` says in words what an operation takes away for good; None where it takes away nothing.
    """

    name: str
    paths: tuple[str, ...]
    answer: type[Any]
    repeat: Repeat | Callable[[Any], Repeat]
    destroys: Callable[[Any], str] | None = None


@frozen
class Wire:
    """How one field differs from the rule on the wire.

    ``name`` is its key there (None: the rule's). ``values`` maps each Python value to the wire's. A field with a ``header``
    travels in that header and not in the body. The rows of a field with a ``nest`` stand in an object under that key.
    ``write`` and ``read`` turn the whole value into JSON and back, where nothing simpler does.
    """

    name: str | None = None
    values: Mapping[Any, Any] | None = None
    header: str | None = None
    nest: str | None = None
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None


PLAIN = Wire()


def wire(  # noqa: PLR0913  # each by keyword, each on its own
    name: str | None = None,
    *,
    values: Mapping[Any, Any] | None = None,
    header: str | None = None,
    nest: str | None = None,
    write: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> dict[str, Wire]:
    """Return the ``metadata=`` of an attrs field whose wire form differs from the rule (see :class:`Wire`)."""
    return {"wire": Wire(name, values, header, nest, write, read)}


def wire_of(attribute: attrs.Attribute[Any]) -> Wire:
    """Return what :func:`wire` said of a field."""
    special: Wire = attribute.metadata.get("wire", PLAIN)
    return special


class Operation(Generic[R_co]):
    """One thing to ask of the platform, as a value: typed, comparable, fit to be logged, queued and replayed.

    Subclasses are frozen attrs classes decorated with :func:`operation`; the type argument is the class of the answer.
    """

    __slots__ = ()
    endpoint: ClassVar[Endpoint]
    spec: ClassVar[Spec]

    @property
    def repeat(self) -> Repeat:
        """How this very operation, with these values, may be repeated."""
        rule = self.spec.repeat
        return rule(self) if callable(rule) else rule

    @classmethod
    def path(cls, dialect: Dialect) -> str:  # noqa: ARG003  # operations with several spellings ask the dialect
        """Return the path template that the dialect prefers."""
        return cls.spec.paths[0]

    def check(self, dialect: Dialect, clock: Clock, /) -> None:
        """Raise InvalidRequest where the value breaks a rule that needs the dialect or the clock."""

    def headers(self, digits: Callable[[], str], /) -> Mapping[str, str]:  # noqa: ARG002  # for those that need some
        """Return headers of this operation's own; ``digits`` makes a fresh random digit string."""
        return {}


class Answer:
    """The base of all answers: attrs classes whose fields the converter reads tolerantly (see ``rbim.converter``)."""

    __slots__ = ()


def operation(
    name: str,
    *,
    paths: tuple[str, ...] = (),
    repeat: Repeat | Callable[[Any], Repeat] = Repeat.NEVER,
    destroys: Callable[[Any], str] | None = None,
) -> Callable[[C], C]:
    """Declare an attrs class to be the operation ``name``.

    Its base class names the ``endpoint``; ``paths`` are the path templates where the endpoint's own does not do.
    ``repeat`` says how it may be repeated, as a constant or as a function of the value; unless told otherwise, never.
    ``destroys`` is for operations that take something away for good: it says of a value what that is, in the words of an
    order ("delete group g8"). Clients send such an operation as any other; the command line asks first.
    """

    def declare(cls: C) -> C:
        templates = paths or (cls.endpoint.path,)
        cls.spec = Spec(
            name=name,
            paths=tuple(path.replace("{name}", name) for path in templates),
            answer=_answer_of(cls),
            repeat=repeat,
            destroys=destroys,
        )
        return cls

    return declare


def _answer_of(cls: type[Any]) -> type[Any]:
    for base in cls.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            for argument in get_args(generic):
                if isinstance(argument, type):
                    return argument
    reason = f"{cls.__name__} does not name its answer: derive it from Operation[TheAnswer]"
    raise TypeError(reason)


class Sender(Protocol):
    """What can carry out operations: the client, one of its views, or anything that stands in for it."""

    async def send(self, operation: Operation[R], /) -> R:
        """Carry out one operation and return its answer."""
        ...


class Method(Generic[P, R_co]):
    """A namespace's method made from an operation class: same parameters, same docstring, answers awaited."""

    def __init__(self, make: Callable[P, Operation[R_co]]) -> None:
        self.make = make
        self.name = ""

    @property
    def operation(self) -> type[Operation[R_co]]:
        """The operation class behind the method."""
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
        instance.__dict__[self.name] = call  # found there before this descriptor the next time: made once per namespace
        return call


class Namespace:
    """A family of methods over one sender. ``Groups(client).detail(...)`` and ``client.groups.detail(...)`` are the same.

    Every subclass that exists is part of the catalogue, under its class name in lower case.
    """

    def __init__(self, sender: Sender) -> None:
        self.sender = sender

    @classmethod
    def methods(cls) -> Iterator[tuple[str, Method[..., Any]]]:
        """Yield each method's name and declaration, in order of declaration; a subclass may replace its base's."""
        names = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
        for name in names:
            value = inspect.getattr_static(cls, name)
            if isinstance(value, Method):
                yield name, cast("Method[..., Any]", value)


# What an operation checks on construction: what needs neither clock nor dialect.


class Accounts(Protocol):
    """Any collection of account texts but a bare ``str``: lists, tuples, sets, keys of a mapping.

    A ``str`` is told apart by its ``__contains__``, which takes nothing but ``str``.
    """

    def __contains__(self, item: object, /) -> bool: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...


def accounts(value: Accounts) -> tuple[str, ...]:
    """Converter: a tuple of accounts. A bare string, or what has no entries, is left for :func:`each_account` to refuse."""
    if isinstance(value, (list, tuple)):  # the usual; looking for other Iterables takes longer than the rest
        return tuple(cast("Iterable[str]", value))
    several = isinstance(cast("object", value), Iterable) and not isinstance(value, (str, bytes))
    return tuple(value) if several else cast("tuple[str, ...]", value)


def each_account(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Validator: at least one account, each a text that is not empty; a bare string is never taken apart into letters."""
    name = attribute.name
    if not isinstance(value, tuple):
        bare = f"a bare str was given; write [{value!r}]" if isinstance(value, str) else f"not {value!r}"
        reason = f"{name}: several accounts are meant, {bare}"
        raise InvalidRequest(reason, field=name)
    members = cast("tuple[object, ...]", value)
    if not members:
        reason = f"{name}: at least one account is needed"
        raise InvalidRequest(reason, field=name, length=0)
    if not _are_texts(members) or not all(members):
        wrong = next(member for member in members if not isinstance(member, str) or not member)
        reason = f"{name}: each account is a text that is not empty, not {wrong!r}"
        raise InvalidRequest(reason, field=name)


def _are_texts(values: tuple[Any, ...]) -> bool:
    try:
        "".join(values)  # looks at each at the speed of C
    except TypeError:
        return False
    return True


Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def text(*, at_most: int | None = None, optional: bool = False) -> Validator:
    """Validator: a text of at most so many characters; unless optional, neither None nor empty."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        name = attribute.name
        if optional and value is None:
            return
        if not isinstance(value, str):
            reason = f"{name}: a text is needed, not {type(value).__name__}"
            raise InvalidRequest(reason, field=name)
        if not value and not optional:
            reason = f"{name}: must not be empty"
            raise InvalidRequest(reason, field=name, length=0)
        if at_most is not None and len(value) > at_most:
            reason = f"{name}: at most {at_most} characters, not {len(value)}"
            raise InvalidRequest(reason, field=name, limit=at_most, length=len(value))

    return validate


def one_of(kind: type[Any], *, optional: bool = False) -> Validator:
    """Validator: an instance of ``kind`` (True and False count as no integers), or None where it is optional."""

    def validate(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            choices = f" ({', '.join(kind.__members__)})" if issubclass(kind, Enum) else ""
            reason = f"{attribute.name}: {kind.__name__}{choices} is needed, not {value!r}"
            raise InvalidRequest(reason, field=attribute.name)

    return validate


_HUMP = re.compile(r"_([a-z])")


def camel(name: str) -> str:
    """Turn ``group_id`` into ``groupId``."""
    return _HUMP.sub(lambda hump: hump[1].upper(), name)


def fields_of(kind: type[Any]) -> tuple[attrs.Attribute[Any], ...]:
    """Return the attrs fields of an operation or an answer, their types resolved."""
    return cast("tuple[attrs.Attribute[Any], ...]", attrs.fields(attrs.resolve_types(kind)))


def wire_name(attribute: attrs.Attribute[Any], *, in_camel: bool) -> str:
    """Return a field's key on the wire."""
    name = wire_of(attribute).name
    if name is not None:
        return name
    return camel(attribute.name) if in_camel else attribute.name
