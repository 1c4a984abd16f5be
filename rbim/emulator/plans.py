"""Plans of faults out of JSON documents: what the fault plans of requests and of copies have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

from cattrs import Converter, transform_error
from cattrs.gen import make_dict_structure_fn, override
from cattrs.v import format_exception

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["choice", "in_words", "kinds_of", "read_plan"]

F = TypeVar("F")


def kinds_of(effects: Any) -> dict[str, type[Any]]:
    """Return the classes of a union of effects by the names that a document gives them: ``ResetAfter``, ``reset_after``."""
    return {_snake(kind.__name__): kind for kind in get_args(effects)}


def read_plan(
    document: Any,
    fault: type[F],
    kinds: Mapping[str, type[Any]],
    *,
    field: str,
    check: Callable[[F, Mapping[str, Any]], None] | None = None,
) -> tuple[F, ...]:
    """Read a list of faults, each an object whose ``effect`` is an object with a ``kind``.

    ``check`` may refuse a fault that was read, seeing its document. Raises InvalidRequest about ``field`` that says what is
    wrong and where.
    """
    converter = Converter(forbid_extra_keys=True)

    def read_effect(value: Any, _: Any) -> Any:  # JSON in, an effect out
        told = dict(_an(dict, value))
        return converter.structure(told, choice("kind", str(told.pop("kind", "")), kinds))

    read = make_dict_structure_fn(
        fault,
        converter,
        effect=override(struct_hook=read_effect),
        match=override(struct_hook=lambda value, _: _an(dict, value)),  # its values are compared as they are
    )

    def read_fault(value: Any, _: Any) -> F:  # JSON
        made = read(_an(dict, value), fault)
        if check is not None:
            check(made, value)
        return made

    converter.register_structure_hook(fault, read_fault)
    try:
        return converter.structure(_an(list, document), tuple[fault, ...])  # type: ignore[valid-type]
    except Exception as error:  # whatever is wrong with a document
        reason = "; ".join(transform_error(error, format_exception=in_words))
        raise InvalidRequest(reason, field=field) from None


def choice(what: str, name: str, choices: Mapping[str, Any]) -> Any:
    """Return what the name stands for. Raises InvalidRequest that lists the names there are."""
    if name not in choices:
        reason = f"{what}: {name!r} is none of {', '.join(choices)}"
        raise InvalidRequest(reason)
    return choices[name]


def _an(kind: type[Any], document: Any) -> Any:  # JSON
    if not isinstance(document, kind):
        wanted = "an object" if kind is dict else "a list"
        reason = f"{wanted} is needed, not {type(document).__name__}"
        raise InvalidRequest(reason)
    return document


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def in_words(error: BaseException, kind: type[Any] | None) -> str:
    """Return what is wrong in one part of a document, for ``cattrs.transform_error``."""
    return error.message if isinstance(error, InvalidRequest) else format_exception(error, kind)
