"""The answers of an emulator's commands as text for people. rich is imported when it draws."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from rbim.cli.output import console, table
from rbim.cli.printable import counted, json_line, printable
from rbim.emulator.server.commands import PREFIX
from rbim.operations.groups import GroupType, Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.emulator.server.commands import Command

__all__ = ["show_answer"]

Row = dict[str, Any]

SHORTEST = 12  # characters of a value in a cell of its own that are shown at least


def show_answer(command: Command, document: Any) -> None:  # JSON
    """Print an answer."""
    name = command.path.removeprefix(PREFIX)
    if document is None:
        sys.stdout.write("done\n" if name != "copy" else "messages are not copied\n")
    elif name in SHOWN and (name != "state" or command.method == "GET"):
        SHOWN[name](document)
    elif isinstance(document, list):
        _table(cast("list[Row]", document))
    else:
        _grid(document)


def _grid(fields: Row) -> None:
    """Print fields; below them, each under its name, lists of objects as tables, and texts of several lines."""
    from rich.table import Table
    from rich.text import Text

    below = {name: value for name, value in fields.items() if _is_long(value)}
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        if name not in below:
            grid.add_row(Text(printable(name), style="bold"), Text(_cell(value)))
    console().print(grid)
    for name, value in below.items():
        sys.stdout.write(f"{printable(name)}:\n")
        if isinstance(value, str):
            sys.stdout.writelines(f"{printable(line)}\n" for line in value.split("\n"))
        else:
            _table(value)


def _is_long(value: Any) -> bool:  # JSON
    if isinstance(value, list):
        return value != [] and all(isinstance(each, dict) for each in cast("Any", value))
    return isinstance(value, str) and "\n" in value


def _table(rows: list[Row], empty: str = "none") -> None:
    from rich.text import Text

    if not rows:
        sys.stdout.write(f"{empty}\n")
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    made = table(*names, numbers=[name for name in names if all(isinstance(row.get(name), int) for row in rows)])
    for row in rows:
        made.add_row(*(Text(_cell(row.get(name))) for name in names))
    console().print(made)


def _cell(value: Any) -> str:  # JSON
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, list) and all(isinstance(each, (str, int)) for each in cast("Any", value)):
        return printable(", ".join(map(str, cast("Any", value))))
    return printable(value if isinstance(value, str) else json_line(value))


def _requests(rows: list[Row]) -> None:
    _table(
        [
            {
                "#": row["number"],
                "at": f"{row['at']:.3f}",
                "request": row.get("operation") or row["path"],
                "of": _of(row.get("values", {})),
                "code": row["code"],
                "effect": "yes" if row["effect"] else "no",
                "faults": row["trouble"],
                "reason": row["reason"],
            }
            for row in rows
        ],
        "no requests",
    )


def _of(values: Row) -> str | None:
    return values.get("group_id") or values.get("name") or values.get("task_name")


def _deliveries(rows: list[Row]) -> None:
    _table(
        [
            {
                "#": row["number"],
                "at": f"{row['at']:.3f}",
                "conversation": row["key"],
                "message": row["message_id"],
                "attempt": row["attempt"],
                "status": row["status"],
                "faults": row["trouble"],
                "reason": row["reason"],
            }
            for row in rows
        ],
        "no deliveries",
    )


def _state(state: Row) -> None:
    groups, tasks = state["groups"], state["tasks"]
    sys.stdout.write(f"{counted(len(groups), 'group')}, {counted(len(tasks), 'task')}\n")
    rows = [
        {
            "group": group["group_id"],
            "name": group["name"],
            "type": GroupType(group["type"]).name.lower(),
            "owner": next((name for name, role in group["members"].items() if role == Role.CREATOR), None),
            "members": len(group["members"]),
            "invited": [*group["invited"]],
            "applied": [*group["applied"]],
        }
        for group in groups
    ]
    if rows:
        _table(rows)
    if tasks:
        _tasks(tasks)
    for name, text in (("never_logged_in", "never logged in"), ("known", "the only accounts that have logged in")):
        if state[name]:
            sys.stdout.write(f"{text}: {_cell(state[name])}\n")


def _tasks(tasks: list[Row]) -> None:
    _table(
        [
            {
                "task": task["task_id"],
                "name": task["request"]["task_name"],
                "from": task["request"]["start_date"],
                "to": task["request"]["end_date"],
                "created": task["created"],
            }
            for task in tasks
        ],
        "no tasks",
    )


def _faults(plan: list[Row]) -> None:
    rows: list[Row] = []
    for number, fault in enumerate(plan, 1):
        effect = {name: value for name, value in fault["effect"].items() if name != "kind" and value is not None}
        effect = {name: value for name, value in effect.items() if name != "sigma" or value}
        selection = {name: value for name, value in fault.items() if name != "effect"}
        words = {"with": _words(effect), "for": _words(selection) or "all"}
        rows.append({"#": number, "kind": fault["effect"]["kind"]} | words)
    _table(rows, "no faults")


def _words(fields: Row) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in fields.items())


def _document(document: Any) -> None:  # JSON
    sys.stdout.write(f"{json_line(document)}\n")


def _index(index: Row) -> None:
    _grid({name: value for name, value in index.items() if name != "commands"})


SHOWN: dict[str, Callable[[Any], None]] = {
    "": _index,
    "requests": _requests,
    "deliveries": _deliveries,
    "state": _state,
    "tasks": _tasks,
    "faults": _faults,
    "copy-faults": _faults,
    "openapi.json": _document,
}
"""The functions that show the answers of some commands; others are a grid of fields, or a table of rows."""
