"""Commands for operations, all of them computed from the catalogue: ``rbim groups create``, ``rbim operations``."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from rbim.catalogue import entries, namespaces
from rbim.cli.exits import Exit, report
from rbim.cli.flags import flags_of, help_of
from rbim.errors import RbimError
from rbim.operation import Repeat

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.catalogue import Entry
    from rbim.operation import Operation

__all__ = ["add_operations", "operations"]

_SEGMENT = re.compile(r"/?[^/]+")
JSON = inspect.Parameter(
    "rbim_as_json",  # no operation's field is called so
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, Parameter(name="--json", negative=(), show_default=False, help="Print the answer as one JSON object.")
    ],
)


def add_operations(app: App) -> None:
    """Add a command for every operation of every namespace that exists."""
    kinds = namespaces()
    for entry in entries():
        if entry.namespace not in app:
            summary = inspect.getdoc(kinds[entry.namespace]) or f"The operations of {entry.namespace}."
            app.command(App(name=entry.namespace, help=summary))
        name = entry.method.replace("_", "-")
        app[entry.namespace].command(_command(entry), name=name, help=help_of(entry.operation))


def _command(entry: Entry) -> Callable[..., int]:
    kind = entry.operation
    signature = inspect.Signature([*flags_of(kind), JSON])
    command = f"rbim {entry.namespace} {entry.method}".replace("_", "-")

    def run(*args: Any, **kwargs: Any) -> int:
        values = signature.bind(*args, **kwargs).arguments
        as_json: bool = values.pop(JSON.name, False)
        try:
            answer = _send(kind(**values))
        except RbimError as error:
            return report(error, command)
        from rbim.cli.show import document_of, show, show_json

        if as_json:
            show_json(document_of(answer))
        else:
            show(answer)
        return Exit.DONE

    run.__name__ = entry.method
    run.__doc__ = None
    run.__annotations__ = {}  # the signature's stand in their place
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return run


def _send(op: Operation[Any]) -> Any:  # the operation's answer
    import anyio

    from rbim.cli.connection import make_client

    client = make_client()

    async def send() -> Any:
        async with client:
            return await client.send(op)

    return anyio.run(send)


def operations(
    *, as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help="Print a JSON list.")] = False
) -> int:
    """List the operations: how they are called here and on the wire, how they may be repeated, and their path.

    Where repeating depends, it depends on the operation's values.
    """
    from rbim.cli.show import console, show_json, table

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
    """Return the path in lines that end where a segment does."""
    lines = [""]
    for segment in _SEGMENT.findall(path):
        if lines[-1] and len(lines[-1] + segment) > room:
            lines.append("")
        lines[-1] += segment
    return "\n".join(lines)


def _row(entry: Entry) -> dict[str, str]:
    spec = entry.operation.spec
    repeat = spec.repeat.value if isinstance(spec.repeat, Repeat) else "depends"
    return {
        "operation": f"{entry.namespace}.{entry.method}",
        "wire": spec.name,
        "repeat": repeat,
        "path": spec.paths[0],
    }
