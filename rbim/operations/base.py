"""Operations: frozen attrs classes that name their answer, decorated with their route.

Client methods, the command line, the emulator's routing and the operations table are derived from this one declaration.
Encoding and sending are elsewhere.
"""

from __future__ import annotations

import re
from enum import StrEnum
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, ParamSpec, TypeVar, Union, cast, get_args, get_origin

import attrs
from attrs import frozen

from rbim._support.json_values import ToDict
from rbim.errors import InvalidRequest
from rbim.validators import longest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

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
    "check_length",
    "described",
    "description_of",
    "fields_of",
    "is_optional",
    "on_command_line",
    "operation",
    "options_of",
    "wire",
    "wire_name",
    "wire_names",
    "wire_of",
]


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C = TypeVar("C", bound="type[Operation[Any]]")


class Repeat(StrEnum):
    """Whether an operation may be repeated after an attempt of unknown outcome (the terms of RFC 9110)."""

    SAFE = "safe"
    """It only reads."""

    IDEMPOTENT = "idempotent"
    """Twice in a row ends in the same state as once, if there is no other write in between."""

    NEVER = "never"
    """A repetition could take effect a second time."""


@frozen(kw_only=True)
class Endpoint:
    """The route and answer format that a family of operations shares.

    ``path`` is a template with ``{api_version}``, ``{app_id}`` and ``{name}``; ``origin`` names one of the client's two base
    URLs. ``code`` and ``message`` are the status fields of the answer, ``payload`` the field that holds the other fields
    (None: they are beside the status fields). ``camel`` is True if the wire writes ``group_id`` as ``groupId``.
    """

    path: str
    origin: Literal["base_url", "call_base_url"] = "base_url"
    code: str = "statusCode"
    message: str = "statusMsg"
    payload: str | None = None
    camel: bool = True


@frozen(kw_only=True)
class Spec:
    """The declaration of one operation: wire name, path templates, answer class, repetition rule.

    The first path template is the default. ``destroys`` returns a description of the irreversible effect of a value; None:
    there is no such effect. ``limits``: the most characters of each text field that has a limit.
    """

    name: str
    paths: tuple[str, ...]
    answer: type[Any]
    repeat: Repeat | Callable[[Any], Repeat]
    destroys: Callable[[Any], str] | None = None
    limits: tuple[tuple[str, int], ...] = ()


@frozen
class Wire:
    """The exceptions of one field from the default wire format.

    ``name`` is its key on the wire (None: the default). ``values`` maps each Python value to a wire value. A field with a
    ``header`` is sent in that header and not in the body. The rows of a field with a ``nest`` are in an object under that
    key. ``write`` and ``read`` convert the whole value to JSON and back, for all other cases. ``also`` are other keys under
    which the entry of a list may have the field. A ``local`` field of an answer is not on the wire:
    :meth:`Operation.complete` fills it in.
    """

    name: str | None = None
    values: Mapping[Any, Any] | None = None
    header: str | None = None
    nest: str | None = None
    write: Callable[[Any], Any] | None = None
    read: Callable[[Any], Any] | None = None
    also: tuple[str, ...] = ()
    local: bool = False


PLAIN = Wire()


def wire(  # noqa: PLR0913  # independent options, by keyword
    name: str | None = None,
    *,
    values: Mapping[Any, Any] | None = None,
    header: str | None = None,
    nest: str | None = None,
    write: Callable[[Any], Any] | None = None,
    read: Callable[[Any], Any] | None = None,
    also: tuple[str, ...] = (),
    local: bool = False,
) -> dict[str, Wire]:
    """Return the ``metadata=`` of an attrs field whose wire format is not the default (see :class:`Wire`)."""
    return {"wire": Wire(name, values, header, nest, write, read, also, local)}


def described(text: str) -> dict[str, str]:
    """Return the ``metadata=`` of a field of an operation that describes it: the command line and the documentation show it.

    It is one sentence without limits and choices, which they know. It can be joined with that of :func:`wire`:
    ``metadata=described("...") | wire("confirm")``.
    """
    return {"described": text}


def description_of(attribute: attrs.Attribute[Any]) -> str | None:
    """Return the description of a field, or None if :func:`described` was not used."""
    found: str | None = attribute.metadata.get("described")
    return found


def on_command_line(read: Callable[[str], Any], words: Mapping[str, Callable[[], Iterable[Any]]]) -> dict[str, Any]:
    """Return the ``metadata=`` of a field with several values: how the command line reads each of them.

    ``read`` reads the text of one value; ``words`` are words that stand for several values.
    """
    return {"command_line": (read, words)}


def wire_of(attribute: attrs.Attribute[Any]) -> Wire:
    """Return the :class:`Wire` of a field; the default if :func:`wire` was not used."""
    special: Wire = attribute.metadata.get("wire", PLAIN)
    return special


class Operation(Generic[R_co]):
    """One request to the platform as a value: typed, comparable, suitable to log, queue and replay.

    Subclasses are frozen attrs classes decorated with :func:`operation`; the type argument is the answer class.
    """

    __slots__ = ()
    endpoint: ClassVar[Endpoint]
    spec: ClassVar[Spec]

    @property
    def repeat(self) -> Repeat:
        """Whether this operation, with its values, may be repeated."""
        rule = self.spec.repeat
        return rule(self) if callable(rule) else rule

    @classmethod
    def path(cls, dialect: Dialect) -> str:  # noqa: ARG003  # operations with several paths ask the dialect
        """Return the path template for a dialect."""
        return cls.spec.paths[0]

    def check(self, dialect: Dialect, clock: Clock, /) -> None:
        """Raise InvalidRequest if the value breaks a rule that depends on the dialect or the clock."""

    def check_lengths(self, dialect: Dialect, /) -> None:
        """Raise InvalidRequest if a text is too long in the characters that the dialect counts."""
        for name, limit in self.spec.limits:
            value: str | None = getattr(self, name)
            if value is not None and 2 * len(value) > limit:  # a character is at most two UTF-16 units
                check_length(name, value, limit, dialect)

    def headers(self, digits: Callable[[], str], /) -> Mapping[str, str]:  # noqa: ARG002  # used by overriding methods
        """Return additional headers of this operation; ``digits`` returns a new random digit string."""
        return {}

    def complete(self, answer: Any, /, *, app_id: str, confirmed: bool) -> R_co:  # noqa: ARG002  # used by overriding methods
        """Return the answer with the fields that depend on the request; the default returns it unchanged.

        ``answer`` was made for this call. An exception means that it cannot be read.
        ``confirmed``: the answer stands for a code that means "already in the wanted state", after an attempt of unknown
        outcome.
        """
        completed: R_co = answer
        return completed


class Answer(ToDict):
    """The base class of answers: attrs classes whose fields are read tolerantly (see ``rbim.wire.converter``)."""

    __slots__ = ()


def operation(
    name: str,
    *,
    paths: tuple[str, ...] = (),
    repeat: Repeat | Callable[[Any], Repeat] = Repeat.NEVER,
    destroys: Callable[[Any], str] | None = None,
) -> Callable[[C], C]:
    """Declare an attrs class as the operation ``name``.

    The base class defines ``endpoint``; ``paths`` replaces the endpoint's path template. ``repeat`` is a constant or a
    function of the value (default: never). ``destroys`` is for operations with an irreversible effect: a function of the
    value that describes it as a command ("delete group g8"). Clients send such an operation like any other; the command
    line asks for confirmation.
    """

    def declare(cls: C) -> C:
        kind: type[Any] = cls
        fields = attrs.fields(kind) if attrs.has(kind) else ()
        cls.spec = Spec(
            name=name,
            paths=tuple(path.replace("{name}", name) for path in paths or (cls.endpoint.path,)),
            answer=_answer_of(cls),
            repeat=repeat,
            destroys=destroys,
            limits=tuple((each.name, most) for each in fields if (most := longest(each.validator)) is not None),
        )
        return cls

    return declare


def _answer_of(cls: type[Any]) -> type[Any]:
    for base in cls.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            for argument in get_args(generic):
                if isinstance(argument, type):
                    return argument
    raise TypeError(f"{cls.__name__} has no answer class: derive it from Operation[TheAnswer]")


def check_length(name: str, value: str, limit: int, dialect: Dialect) -> None:
    """Raise InvalidRequest if a text is too long in the characters that the dialect counts.

    The dialect is asked only if the answer depends on it.
    """
    units = len(value.encode("utf-16-le", "surrogatepass")) // 2
    if units > limit and dialect.character.length(value) > limit:
        raise InvalidRequest(f"{name}: at most {limit} UTF-16 units, not {units}", field=name, limit=limit, length=units)


_HUMP = re.compile(r"_([a-z])")


def camel(name: str) -> str:
    """Turn ``group_id`` into ``groupId``."""
    return _HUMP.sub(lambda hump: hump[1].upper(), name)


def fields_of(kind: type[Any]) -> tuple[attrs.Attribute[Any], ...]:
    """Return the attrs fields of an operation or an answer, with resolved types."""
    return cast("tuple[attrs.Attribute[Any], ...]", attrs.fields(attrs.resolve_types(kind)))


def options_of(kind: Any) -> tuple[Any, ...]:  # type expressions
    """Return the types that a field takes, but None."""
    return tuple(each for each in _alternatives(kind) if each is not type(None))


def is_optional(kind: Any) -> bool:  # a type expression
    """Return whether a field may be None."""
    return type(None) in _alternatives(kind)


def _alternatives(kind: Any) -> tuple[Any, ...]:  # type expressions
    return get_args(kind) if get_origin(kind) in {UnionType, Union} else (kind,)


def wire_name(attribute: attrs.Attribute[Any], *, in_camel: bool) -> str:
    """Return a field's key on the wire."""
    name = wire_of(attribute).name
    if name is not None:
        return name
    return camel(attribute.name) if in_camel else attribute.name


def wire_names(kind: type[Any]) -> dict[str, str]:
    """Return the wire key of each field of an operation or an answer that is on the wire, by field name."""
    endpoint: Endpoint | None = getattr(kind, "endpoint", None)  # an answer has none
    in_camel = endpoint is None or endpoint.camel
    return {a.name: wire_name(a, in_camel=in_camel) for a in fields_of(kind) if not wire_of(a).local}
