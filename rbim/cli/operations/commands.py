"""The commands of operations, derived from the catalogue: ``rbim groups create``; and ``rbim operations``."""

from __future__ import annotations

import inspect
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import App, CycloptsError, Parameter, Token

from rbim._support.json_values import json_values
from rbim.cli.command_lines import same_with
from rbim.cli.confirm import HELP as YES_HELP, confirmed
from rbim.cli.context import make_client
from rbim.cli.errors import HINTS, print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.operations.flags import empty_word, flag_of, flags_of, help_of
from rbim.errors import RbimError
from rbim.operations.base import Repeat, fields_of
from rbim.operations.catalogue import entries, namespace, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cyclopts import Argument, ArgumentCollection

    from rbim.client.client import AsyncClient
    from rbim.operations.base import Operation
    from rbim.operations.catalogue import CatalogueEntry

__all__ = ["add_operations", "operations", "our_flag"]

# parameters of every operation's command, with names that no field of an operation has
FILE, JSON, YES = "rbim_file", "rbim_as_json", "rbim_yes"
FILE_HELP = "A TOML file with fields, also required ones. Flags take precedence."
JSON_HELP = "Print the answer as one JSON object."


def add_operations(app: App, words: Sequence[str] = ()) -> None:
    """Add the commands of the operations that ``words``, the beginning of a command line, name; default: of all."""
    name, method, *_ = *words, "", ""
    found = list(enumerate(entries(name) if namespace(name) is not None else entries()))
    one = [(place, entry) for place, entry in found if (entry.namespace, _name(entry)) == (name, method)]
    for place, entry in one or found:
        kind = namespace(entry.namespace)
        if kind is not None and entry.namespace not in app:
            app.command(App(name=entry.namespace, help=summary_of(kind)))
        fill = partial(_fill, entry.operation, our_flag("file", entry.operation))
        app[entry.namespace].command(
            _command(entry), name=_name(entry), help=help_of(entry.operation), config=fill, sort_key=place
        )


def _name(entry: CatalogueEntry) -> str:
    return entry.method.replace("_", "-")


def our_flag(name: str, kind: type[Operation[Any]]) -> str:
    """Return the flag ``--name`` of every operation's command, or ``--rbim-name`` if a field has that name."""
    taken = {flag_of(attribute) for attribute in fields_of(kind)}
    return f"--rbim-{name}" if f"--{name}" in taken else f"--{name}"


def _signature(kind: type[Operation[Any]]) -> inspect.Signature:
    """Return the parameters of an operation's command: its fields, and the common flags."""

    def switch(parameter: str, name: str, text: str) -> inspect.Parameter:
        flag = Parameter(name=our_flag(name, kind), negative=(), show_default=False, help=text)
        return inspect.Parameter(parameter, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, flag])

    fields = flags_of(kind)
    bare = all(field.kind is inspect.Parameter.KEYWORD_ONLY for field in fields)
    file = inspect.Parameter(
        FILE,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if bare else inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None, Parameter(name=our_flag("file", kind), negative=(), metavar="FILE", help=FILE_HELP)
        ],
    )
    ours = [switch(JSON, "json", JSON_HELP)]
    if kind.spec.destroys is not None:
        ours.append(switch(YES, "yes", YES_HELP))
    return inspect.Signature([file, *fields, *ours] if bare else [*fields, file, *ours])


def _command(entry: CatalogueEntry) -> Callable[..., int]:
    kind = entry.operation
    signature = _signature(kind)
    command = f"rbim {entry.namespace} {entry.method}".replace("_", "-")
    named = {attribute.name: flag_of(attribute) for attribute in fields_of(kind)}

    def run(*args: Any, **kwargs: Any) -> int:
        values = signature.bind(*args, **kwargs).arguments
        values.pop(FILE, None)  # the flags have its values
        as_json, yes = values.pop(JSON, False), values.pop(YES, False)
        try:
            op = kind(**values)
            client = make_client()
            destroyed = None if kind.spec.destroys is None or yes else kind.spec.destroys(op)
            if destroyed is not None and not confirmed(f"permanently {destroyed}", same_with(our_flag("yes", kind))):
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


def operations(
    *, as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print a JSON list.")] = False
) -> int:
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
    path = Path(named[-1].value)
    document = _read(path)
    fields = {a.name.strip("_"): a for a in fields_of(kind) if a.init}
    given: dict[str, str] = {}
    for key, value in document.items():
        field = key.replace("-", "_")
        if field not in fields:
            raise CycloptsError(msg=f"{path}: {_unknown(key, list(fields))}")
        if field in given:
            raise CycloptsError(msg=f"{path}: {given[field]} and {key} are the same field: keep one")
        given[field] = key
        argument = by_flag[flag_of(fields[field])]
        if not argument.tokens:
            _assign(argument, value, f"{path}, key {key}", empty_word(fields[field]))


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


def _unknown(key: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key.replace("-", "_"), known, n=1)
    suggestion = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(known)}"
    return f"unknown key {key}: {suggestion}"


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
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(json_values(value))
