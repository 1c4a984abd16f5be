"""The examples in the help of every command; those of operations are derived from their declarations."""

from __future__ import annotations

import re
from datetime import date, datetime, time
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import attrs

from rbim.operations.base import Repeat, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.operations.base import Operation
    from rbim.operations.catalogue import CatalogueEntry

__all__ = ["EXAMPLES", "examples_of", "folded"]

EXAMPLES = {
    "operations": ("rbim operations", "rbim operations --json"),
    "invite": (
        "rbim invite members.csv --dry-run --check-groups",
        "rbim invite members.csv --rate 50/s --not-done rest.csv",
        "rbim invite members.txt --group g80000049837291 --json",
    ),
    "remove": (
        "rbim remove leavers.csv --dry-run",
        "rbim remove leavers.csv --rate 50/s --yes",
    ),
    "job": ("rbim job list", "rbim job status members.csv.invite.journal", "rbim job resume members.csv.invite.journal"),
    "job list": ("rbim job list", "rbim job list jobs --json"),
    "job status": ("rbim job status members.csv.invite.journal", "rbim job status members.csv.invite.journal --json"),
    "job resume": ("rbim job resume members.csv.invite.journal", "rbim job resume members.csv.invite.journal --rate 20/s"),
    "job forget": ("rbim job forget members.csv.invite.journal",),
    "job retry": ("rbim job retry members.csv.invite.journal", "rbim job retry members.csv.invite.journal --only failed"),
    "job report": (
        "rbim job report members.csv.invite.journal",
        "rbim job report members.csv.invite.journal --csv rows.csv",
        "rbim job report members.csv.invite.journal --not-done rest.csv",
    ),
    "callback": ("rbim callback serve --inbox events.db --print", "rbim callback explain capture.http"),
    "callback serve": (
        "rbim callback serve --inbox events.db --print",
        "rbim callback serve --inbox events.db --forward-to http://127.0.0.1:5000/copies",
        "rbim callback serve --inbox nats://h1,h2,h3/copies --spool copies.spool",
    ),
    "callback work": (
        "rbim callback work app.handlers:router --inbox events.db",
        "rbim callback work app.handlers:router --inbox events.db --around app.database:pool",
        "rbim callback work app.handlers:router --inbox nats://h1,h2,h3/copies",
    ),
    "callback send": (
        "rbim callback send TEXT --to 1002 --sender 1001 --text hello",
        "rbim callback send TEAM_KICK --to g80000049837291 --sender 1001 --member 1002",
        "rbim callback send --to 1002 --sender 1001 --text hi --msg-id m1 --timestamp 2026-01-31T09:00:00+08:00",
    ),
    "callback explain": (
        "rbim callback explain capture.http",
        "rbim callback explain capture.json --at 2026-01-31T09:00:00+08:00",
    ),
    "callback replay": (
        "rbim callback replay --inbox events.db --since 24h",
        "rbim callback replay --inbox events.db --kind TEAM_KICK --dry-run",
    ),
    "callback status": ("rbim callback status events.db", "rbim callback status events.db --json"),
    "callback letters": (
        "rbim callback letters list events.db",
        "rbim callback letters list events.db --quarantine",
        "rbim callback letters show events.db 17",
        "rbim callback letters requeue events.db 17",
    ),
    "callback letters list": (
        "rbim callback letters list events.db --since 24h --kind TEAM_KICK",
        "rbim callback letters list events.db --json",
    ),
    "callback letters show": (
        "rbim callback letters show events.db 17",
        "rbim callback letters show events.db 17 --body > body",
    ),
    "callback letters requeue": (
        "rbim callback letters requeue events.db 17 23",
        "rbim callback letters requeue events.db --all --kind TEAM_KICK",
    ),
    "callback letters discard": (
        "rbim callback letters discard events.db 17",
        "rbim callback letters discard events.db --all --before 30d",
    ),
    "dialect": ("rbim dialect", "rbim dialect --json"),
    "doctor": (
        "rbim doctor",
        "rbim doctor --profile production --json",
        "rbim doctor --via nats://h1,h2,h3/copies",
    ),
    "config": ("rbim config show", "rbim config path"),
    "config show": ("rbim config show", "rbim config show --profile production --json"),
    "config path": ("rbim config path", "rbim config path --json"),
    "config trust": ("rbim config trust", "rbim config trust ../rbim.toml"),
    "config untrust": ("rbim config untrust", "rbim config untrust --json"),
    "emulator": ("rbim emulator", "rbim emulator --port 0 --state platform.json"),
    "demo": ("rbim demo", "rbim demo --json"),
    "completion": ('eval "$(rbim completion bash)"', "rbim completion zsh --install"),
}
"""Lines for a shell, by command, except for the commands of operations."""

FOLD = " \\"  # continues a line in a shell
GROUP = 3
"""Examples of a group of operations: its first operation, and those that only read."""

TEXTS = {
    "group_id": "g80000049837291",
    "member": "1001",
    "members": "1001 1002",
    "name": "Product news",
    "task_name": "Renewals",
    "caller": "1000",
    "bot_id": "7",
    "end_date": "2099-01-31",
}
"""Values of fields in examples; other fields get a value by type."""

TYPES: dict[Any, str] = {
    bool: "yes",
    int: "1",
    float: "1.5",
    date: "2099-01-01",
    time: "09:00:00",
    datetime: "2099-01-01T09:00:00+08:00",
}


def examples_of(command: str) -> tuple[str, ...]:
    """Return the examples of a command, named without ``rbim``; empty if it has none."""
    if command in EXAMPLES:
        return EXAMPLES[command]
    from rbim.operations.catalogue import entries

    of_group: list[tuple[bool, str]] = []
    for entry in entries():
        name = f"{entry.namespace} {entry.method}".replace("_", "-")
        if command in {name, entry.namespace}:
            lines = _of_operation(f"rbim {name}", entry.operation, _file_of(entry))
            if command == name:
                return lines
            of_group.append((entry.operation.spec.repeat is Repeat.SAFE, lines[0]))
    first, rest = of_group[:1], of_group[1:]
    return tuple(line for _, line in [*first, *(each for each in rest if each[0])][:GROUP])


def folded(line: str, width: int) -> str:
    """Return a command folded into lines that a shell joins again, of at most ``width`` characters if possible."""
    if len(line) <= width:
        return line
    lines = [""]
    for part in re.split(" (?=--)", line):
        if lines[-1] and len(lines[-1]) + len(part) + len(FOLD) > width:
            lines.append("  ")
        lines[-1] += f"{' ' * bool(lines[-1].strip())}{part}"
    return f"{FOLD}\n".join(lines)


def _file_of(entry: CatalogueEntry) -> str:
    """Return an example name for a TOML file with fields."""
    _, _, noun = entry.method.rpartition("_")
    return f"{noun if noun != entry.method else entry.namespace.removesuffix('s')}.toml"


def _of_operation(command: str, kind: type[Operation[Any]], file: str) -> tuple[str, ...]:
    """Return a command with the required fields, and one that also shows --yes, --json or a file with fields."""
    from rbim.cli.operations.commands import our_flag

    fields = [attribute for attribute in fields_of(kind) if attribute.init]
    required = [attribute for attribute in fields if attribute.default is attrs.NOTHING]
    first = " ".join([command, *_tokens(required or [a for a in fields if a.name in TEXTS][-1:])])
    if kind.spec.destroys is not None:
        return first, f"{first} {our_flag('yes', kind)}"
    if kind.spec.repeat is Repeat.SAFE:
        return first, f"{first} {our_flag('json', kind)}"
    if any(attribute.name == "group_id" for attribute in required):
        group = _tokens([attribute for attribute in required if attribute.name == "group_id"])
        return first, " ".join([command, *group, our_flag("file", kind), file])
    return first, f"{command} {file}"


def _tokens(fields: Iterable[attrs.Attribute[Any]]) -> list[str]:
    from rbim.cli.operations.flags import flag_of

    tokens: list[str] = []
    for attribute in fields:
        value = TEXTS.get(attribute.name) or _by_type(attribute.type) or attribute.name
        quoted = f'"{value}"' if " " in value and attribute.name != "members" else value
        positional = attribute.name == "group_id" and attribute.default is attrs.NOTHING
        tokens += [quoted] if positional else [flag_of(attribute), quoted]
    return tokens


def _by_type(kind: Any) -> str | None:  # a type expression
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, Enum):
            return list(each)[-1].name.lower()
        if each in TYPES:
            return TYPES[each]
    return str(get_args(kind)[0]) if get_origin(kind) is Literal else None
