"""The commands of operations, derived from the catalogue: ``rbim groups create``; and ``rbim operations``."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rbim.cli.command_lines import same_with
from rbim.cli.confirm import HELP as YES_HELP, confirmed
from rbim.cli.context import make_client
from rbim.cli.errors import HINTS, print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.operations.fields_file import filler
from rbim.cli.operations.flags import flag_of, flags_of, help_of
from rbim.errors import RbimError
from rbim.operations.base import Repeat, fields_of
from rbim.operations.catalogue import entries, namespace, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rbim.client.client import AsyncClient
    from rbim.operations.base import Operation
    from rbim.operations.catalogue import CatalogueEntry

__all__ = ["add_operations", "operations", "our_flag"]

_SEGMENT = re.compile(r"/?[^/]+")

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
        fill = filler(entry.operation, our_flag("file", entry.operation))
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
        from rbim.cli.output import document_of, exit_of, show

        if as_json:
            show_json(document_of(answer))
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
    from rbim.cli.output import console, table

    rows = [_row(entry) for entry in entries()]
    if as_json:
        show_json(rows)
        return Exit.DONE
    out, columns = console(), ("operation", "wire", "repeat")
    room = out.width - sum(max(len(row[column]) for row in rows) + 2 for column in columns)
    made = table(*columns, "path")
    for row in rows:
        made.add_row(*(row[column] for column in columns), _folded(row["path"], room))
    out.print(made)
    return Exit.DONE


def _folded(path: str, room: int) -> str:
    """Return the path folded into lines between its segments."""
    lines = [""]
    for segment in _SEGMENT.findall(path):
        if lines[-1] and len(lines[-1] + segment) > room:
            lines.append("")
        lines[-1] += segment
    return "\n".join(lines)


def _row(entry: CatalogueEntry) -> dict[str, str]:
    spec = entry.operation.spec
    repeat = spec.repeat.value if isinstance(spec.repeat, Repeat) else "depends"
    return {
        "operation": f"{entry.namespace}.{entry.method}",
        "wire": spec.name,
        "repeat": repeat,
        "path": spec.paths[0],
    }
