"""What an operation is: a frozen attrs class that names its answer, decorated with the facts of its route.

Client methods, the command line, the emulator's routing and the operations table are all computed from this one
declaration. Nothing here knows how an operation is encoded or sent.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar, cast, get_args

import attrs
from attrs import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rbim.clock import Clock
    from rbim.dialect import Dialect

__all__ = [
    "Answer",
    "Endpoint",
    "Operation",
    "Repeat",
    "Spec",
    "Wire",
    "camel",
    "fields_of",
    "operation",
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

    SAFE = "safe"
    """It only reads."""

    IDEMPOTENT = "idempotent"
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
    """The base of all answers: attrs classes whose fields the converter reads tolerantly (see ``rbim.wire.hooks``)."""

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
    raise TypeError(f"{cls.__name__} does not name its answer: derive it from Operation[TheAnswer]")


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
