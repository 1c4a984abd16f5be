"""The commands of operations, derived from the catalogue: ``rbim groups create``; and ``rbim operations``.

Each field of an operation is a flag: its name, its choices and the conversion of its text come from the type, the default
and the docstrings of the field.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_origin

import attrs
from cyclopts import App, CycloptsError, Parameter, Token

from rbim._support import json as wire_json
from rbim._support.json_values import json_values
from rbim.cli.confirm import HELP as YES_HELP, confirmed
from rbim.cli.context import make_client
from rbim.cli.errors import HINTS, print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Json, one_value  # cyclopts reads it
from rbim.cli.global_flags import same_with
from rbim.errors import RbimError
from rbim.operations.base import Repeat, description_of, fields_of, is_optional, options_of
from rbim.operations.catalogue import entries, namespace, summary_of

if TYPE_CHECKING:
    from cyclopts import Argument, ArgumentCollection

    from rbim.client.client import AsyncClient
    from rbim.operations.base import Operation
    from rbim.operations.catalogue import CatalogueEntry

__all__ = ["add_operations", "flags_of", "help_of", "operations", "our_flag"]

# parameters of every operation's command, with names that no field of an operation has
FILE, JSON, YES = "rbim_file", "rbim_as_json", "rbim_yes"
FILE_HELP = "A TOML file with fields, also required ones. Flags take precedence."
JSON_HELP = "Print the answer as one JSON object."


def add_operations(app: App, words: Sequence[str] = ()) -> None:
    """Add the commands of the operations that ``words``, the beginning of a command line, name; default: of all."""
    name, method, *_ = *words, "", ""
    found = list(enumerate(entries(name) if namespace(name) is not None else entries()))
    one = [(place, each) for place, each in found if each.namespace == name and each.method.replace("_", "-") == method]
    for place, entry in one or found:
        kind = namespace(entry.namespace)
        if kind is not None and entry.namespace not in app:
            app.command(App(name=entry.namespace, help=summary_of(kind)))
        fill = partial(_fill, entry.operation, our_flag("file", entry.operation))
        name, about = entry.method.replace("_", "-"), help_of(entry.operation)
        app[entry.namespace].command(_command(entry), name=name, help=about, config=fill, sort_key=place)


def our_flag(name: str, kind: type[Operation[Any]]) -> str:
    """Return the flag ``--name`` of every operation's command, or ``--rbim-name`` if a field has that name."""
    taken = {_flag_of(attribute) for attribute in fields_of(kind)}
    return f"--rbim-{name}" if f"--{name}" in taken else f"--{name}"


def _command(entry: CatalogueEntry) -> Callable[..., int]:
    """Return the function of an operation's command: its parameters are the fields, and the common flags."""
    kind = entry.operation
    flags = {name: our_flag(name, kind) for name in ("file", "json", "yes")}
    fields = flags_of(kind)
    bare = all(field.kind is inspect.Parameter.KEYWORD_ONLY for field in fields)
    file = inspect.Parameter(
        FILE,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if bare else inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[Path | None, Parameter(name=flags["file"], negative=(), metavar="FILE", help=FILE_HELP)],
    )
    switches = [
        inspect.Parameter(
            parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, Parameter(name=flag, negative=(), show_default=False, help=text)],
        )
        for parameter, flag, text in ((JSON, flags["json"], JSON_HELP), (YES, flags["yes"], YES_HELP))
        if parameter == JSON or kind.spec.destroys is not None
    ]
    signature = inspect.Signature([file, *fields, *switches] if bare else [*fields, file, *switches])
    command = f"rbim {entry.namespace} {entry.method}".replace("_", "-")
    named = {attribute.name: _flag_of(attribute) for attribute in fields_of(kind)}

    def run(*args: Any, **kwargs: Any) -> int:
        values = signature.bind(*args, **kwargs).arguments
        values.pop(FILE, None)  # the flags have its values
        as_json, yes = values.pop(JSON, False), values.pop(YES, False)
        try:
            op = kind(**values)
            client = make_client()
            destroyed = None if kind.spec.destroys is None or yes else kind.spec.destroys(op)
            if destroyed is not None and not confirmed(f"permanently {destroyed}", same_with(flags["yes"])):
                return Exit.USAGE
            answer = _send(client, op)
        except RbimError as error:
            return report_error(error, command, flags=named, safe=kind.spec.repeat is Repeat.SAFE)
        from rbim.cli.json_output import show_json
        from rbim.cli.output import exit_of, show

        if as_json:
            show_json(answer)
        else:
            show(answer)
        return exit_of(answer)

    run.__name__ = entry.method
    run.__doc__ = None
    run.__annotations__ = {}  # the signature has them
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return run


def _send(client: AsyncClient, op: Operation[Any]) -> Any:  # the operation's answer
    import asyncio

    async def send() -> Any:
        async with client:
            return await client.send(op)

    try:
        return asyncio.run(send())
    except KeyboardInterrupt:
        if op.repeat is not Repeat.SAFE:
            print_error("stopped by Ctrl-C", HINTS[Exit.UNKNOWN])
        raise


def operations(*, as_json: Annotated[Json, Parameter(help="Print a JSON list.")] = False) -> int:
    """List the operations: names in Python and on the wire, whether repeating is safe, and paths.

    "depends" means that it depends on the values of the operation.
    """
    from rbim.cli.json_output import show_json
    from rbim.cli.output import print_rows

    rows = [
        {
            "operation": f"{entry.namespace}.{entry.method}",
            "wire": entry.operation.spec.name,
            "repeat": repeat.value if isinstance(repeat := entry.operation.spec.repeat, Repeat) else "depends",
            "path": entry.operation.spec.paths[0],
        }
        for entry in entries()
    ]
    if as_json:
        show_json(rows)
        return Exit.DONE
    print_rows(rows, whole=("operation", "wire", "repeat"))
    return Exit.DONE


def _fill(kind: type[Operation[Any]], flag: str, _: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Set each flag from the file that ``flag`` names, such as ``rbim calls create-task task.toml``, unless it was given."""
    by_flag = {name: argument for argument in arguments for name in argument.names}
    named = by_flag[flag].tokens
    if not named:
        return
    from rbim.config import nearest

    path = Path(named[-1].value)
    document = _read(path)
    fields = {a.name.strip("_"): a for a in fields_of(kind) if a.init}
    given: dict[str, str] = {}
    for key, value in document.items():
        field = key.replace("-", "_")
        if field not in fields:
            raise CycloptsError(msg=f"{path}: unknown key {key}; {nearest(field, fields)}")
        if field in given:
            raise CycloptsError(msg=f"{path}: {given[field]} and {key} are the same field: keep one")
        given[field] = key
        argument = by_flag[_flag_of(fields[field])]
        if not argument.tokens:
            _assign(argument, value, f"{path}, key {key}", _empty_word(fields[field]))


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise CycloptsError(msg=f"there is no file {path}: a word without a flag names a TOML file with fields") from None
    except OSError as error:
        raise CycloptsError(msg=f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CycloptsError(msg=f"{path}: not UTF-8: save it in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise CycloptsError(msg=f"{path}: not TOML: {error}") from None


def _assign(argument: Argument, value: object, where: str, empty: str | None) -> None:
    """Assign the value as the words of a command line, which the reader of the flag converts; ``empty`` means no value."""
    several = isinstance(value, list) and argument.parameter.consume_multiple
    words = [_word(each) for each in cast("list[object]", value if several else [value])]
    if not words and empty is not None:
        words = [empty]
    if not words:
        raise CycloptsError(msg=f"{where}: at least one value is needed")
    argument.tokens.extend(Token(keyword=where, value=word, index=at) for at, word in enumerate(words))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=str)
    return str(value if isinstance(value, float) else json_values(value))  # as JSON, nan would be None


# ------------------------------------------------------------------------------ flags of fields

Reader = Callable[[str], Any]

COMMAND_LINE = "cli"  # the source of tokens that do not come from a file
KEEP = "keep"  # the word for None if the default is not None
FIRST = "group_id"  # the positional field, if it is required
COLLECTIONS = (list, set, frozenset)  # any other collection becomes a tuple


class _AsRead:
    """An annotation that keeps pydantic from checking a value that a reader has already converted.

    cyclopts passes values to pydantic if it is imported, and pydantic would refuse a GroupType, because the type given to
    cyclopts lists its names. pydantic calls this method of the annotation; the schema it returns accepts any value.
    """

    @staticmethod
    def __get_pydantic_core_schema__(*_: object) -> dict[str, str]:
        return {"type": "any"}


def flags_of(kind: type[Operation[Any]]) -> list[inspect.Parameter]:
    """Return a parameter, annotated for cyclopts, for each field of the operation.

    The positional field comes first, then required fields; fields of a base class come last. cyclopts reads switches, our
    readers everything else.
    """
    own = inspect.get_annotations(kind)
    parameters: list[inspect.Parameter] = []
    for attribute in sorted((a for a in fields_of(kind) if a.init), key=lambda attribute: attribute.name not in own):
        required = attribute.default is attrs.NOTHING
        annotation, shown, keep = _annotation(attribute)
        conversion: dict[str, Any] = {}
        if _several(attribute.type) is not None:
            conversion = {"converter": _read_several(attribute), "consume_multiple": True}
        elif annotation is not bool:
            conversion = {"converter": _read_single(_reader(attribute.type), keep=keep)}
        flag = Parameter(
            name=_flag_of(attribute),
            help=_help(attribute, kind),
            negative=None if annotation is bool else (),
            show_default=_name if shown is not None else False,
            **conversion,
        )
        positional = attribute.name == FIRST and required
        parameters.append(
            inspect.Parameter(
                attribute.alias or attribute.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD if positional else inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[annotation, flag, _AsRead],
                default=inspect.Parameter.empty if required else shown,
            )
        )
    return sorted(parameters, key=lambda parameter: (parameter.kind, parameter.default is not parameter.empty))


def _flag_of(attribute: attrs.Attribute[Any]) -> str:
    """Return the name of a field's flag."""
    return f"--{attribute.name.strip('_').replace('_', '-')}"


def _empty_word(attribute: attrs.Attribute[Any]) -> str | None:
    """Return the word that stands for no values of a field; None if the field needs a value."""
    _, words = _on_command_line(attribute)
    return next((word for word, values in words.items() if not values()), None)


def _annotation(attribute: attrs.Attribute[Any]) -> tuple[Any, Any, bool]:
    """Return the type for cyclopts, the default for the help, and whether ``keep`` is a choice."""
    options, default = options_of(attribute.type), attribute.default
    keep = is_optional(attribute.type) and default is not None
    if options == (bool,) and not keep:
        return bool, None if default is attrs.NOTHING else default, keep
    one = _several(attribute.type)
    choices = _choices(options if one is None else (one,))
    if keep and choices:
        choices = (*choices, KEEP)
    seen = (options[0] if options[0] in READERS else str) if one is None else str
    single = cast("Any", Literal)[choices] if choices else seen
    shown = _name(default) if isinstance(default, (Enum, str, int, float, date, time)) else None
    return (single if one is None else cast("Any", list)[single]), shown, keep


def _several(kind: Any) -> Any:  # type expressions
    """Return the type of the entries if the field is a collection, else None."""
    for option in options_of(kind):
        origin, arguments = get_origin(option), [each for each in get_args(option) if each is not ...]
        if isinstance(origin, type) and issubclass(origin, (Sequence, frozenset, set)) and len(arguments) == 1:
            return arguments[0]
    return None


def _name(value: Any) -> str:  # a default or a choice
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.name.lower() if isinstance(value, Enum) else str(value)


def _named(kind: Any) -> dict[str, Any]:  # a type expression in, its values by the words for them out
    if kind is bool:
        return {_name(value): value for value in (True, False)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {_name(member): member for member in kind}
    return {str(value): value for value in get_args(kind)} if get_origin(kind) is Literal else {}


def _choices(options: tuple[Any, ...]) -> tuple[str, ...]:
    named = [_named(option) for option in options]
    return tuple(word for words in named for word in words) if all(named) else ()


def _read_single(read: Reader, *, keep: bool) -> Callable[[Any, Sequence[Token]], Any]:
    return lambda _, tokens: None if keep and tokens[0].value == KEEP else read(tokens[0].value)


def _on_command_line(attribute: attrs.Attribute[Any]) -> tuple[Reader | None, Mapping[str, Callable[[], Iterable[Any]]]]:
    """Return the reader and the words of a field that was declared with :func:`~rbim.operations.base.on_command_line`."""
    declared: tuple[Reader | None, Mapping[str, Callable[[], Iterable[Any]]]]
    declared = attribute.metadata.get("command_line", (None, {}))
    return declared


def _read_several(attribute: attrs.Attribute[Any]) -> Callable[[Any, Sequence[Token]], Any]:
    one = _several(attribute.type)
    own, words = _on_command_line(attribute)
    read = own or _reader(one)
    collect = next((get_origin(o) for o in options_of(attribute.type) if get_origin(o) in COLLECTIONS), tuple)

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        found: list[Any] = []
        for token in tokens:
            if one is str and token.source == COMMAND_LINE:
                one_value(token.value, "--file")
            found += words[token.value]() if token.value in words else [read(token.value)]
        return collect(found)

    return convert


def _reader(kind: Any) -> Reader:  # a type expression
    """Return a reader that tries those of all types that a field takes."""
    readers: list[Reader] = []
    for option in options_of(kind):
        named = _named(option)
        readers.append(_choosing(named) if named else READERS.get(option, _json))

    def read(text: str) -> Any:
        for each in readers[:-1]:
            try:
                return each(text)
            except ValueError:
                pass
        return readers[-1](text)

    return read if len(readers) > 1 else readers[0]


def _choosing(named: dict[str, Any]) -> Reader:
    """Return a reader that takes a choice's name, in any case, or its value on the wire."""
    known = {str(value.value): value for value in named.values() if isinstance(value, Enum)} | named

    def read(text: str) -> Any:
        for spelling in (text, text.lower().replace("-", "_")):
            if spelling in known:
                return known[spelling]
        raise ValueError(f"{text!r} is not one of {', '.join(named)}")

    return read


def _reading(read: Reader, expected: str) -> Reader:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {expected}") from None

    return convert


def _json(text: str) -> Any:
    try:
        return wire_json.loads(text.encode())
    except ValueError as error:
        raise ValueError(f"a JSON value is required: {error}") from None


READERS: dict[Any, Reader] = {
    str: str,
    int: _reading(int, "a whole number"),
    float: _reading(float, "a number"),
    date: _reading(date.fromisoformat, "a date such as 2026-01-31"),
    datetime: _reading(datetime.fromisoformat, "a time such as 2026-01-31T09:00:00+08:00"),
    time: _reading(time.fromisoformat, "a time of day such as 09:00:00"),
}
"""The readers of texts, by the type of the field; any other type is read as JSON."""


# ---------------------------------------------------------------- help, from docstrings

_NONE = re.compile(r"\bNone\b")
_LITERAL = re.compile(r"``(\w+)``")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_SENTENCE = re.compile(r"(?<=[.;])\s+")


def help_of(kind: type[Any]) -> str:
    """Return the docstring of an operation with fields and choices spelled as on the command line."""
    return _spelled(inspect.getdoc(kind) or "", kind)


def _spelled(text: str, kind: type[Any]) -> str:
    fields = {attribute.name for attribute in fields_of(kind)}
    members = {choice.upper() for a in fields_of(kind) for choice in _choices(options_of(a.type))}

    def spell(match: re.Match[str]) -> str:
        word = match[1]
        if word in fields:
            return f"--{word.replace('_', '-')}"
        return word.lower() if word in members else word

    text = _ROLE.sub(r"\1", _LITERAL.sub(spell, text))
    return _NONE.sub(KEEP, text) if any(_annotation(a)[2] for a in fields_of(kind)) else text


def _help(attribute: attrs.Attribute[Any], kind: type[Operation[Any]]) -> str | None:
    """Return the description of a field, the words that it takes, and its limit."""
    described = description_of(attribute) or _inherited_help(attribute, kind)
    _, words = _on_command_line(attribute)
    parts = [described, f"Takes {', '.join(words)}, or entries in the format of the wire." if words else None]
    parts += [f"At most {limit} characters." for name, limit in kind.spec.limits if name == attribute.name]
    return " ".join(part for part in parts if part) or None


def _inherited_help(attribute: attrs.Attribute[Any], kind: type[Any]) -> str | None:
    """Return the help of an inherited field from the docstring of its base class."""
    if attribute.name in inspect.get_annotations(kind):
        return None
    for base in kind.__mro__[1:]:
        for sentence in _SENTENCE.split(vars(base).get("__doc__") or ""):
            if f"``{attribute.name}``" in sentence:
                text = sentence.removeprefix(f"``{attribute.name}`` is ")
                return " ".join(_spelled(text[:1].upper() + text[1:], kind).split())
    return None
