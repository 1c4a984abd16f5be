"""The commands for an emulator that runs, derived from the table of its control interface: ``rbim emulator say``.

A command of the table that has a ``verb`` becomes a command here: the fields of its body are its arguments and flags, and
its help is that of the command. Only ``state save``, which writes a file, is not in the table.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import attrs
from cyclopts import App, Parameter
from cyclopts.validators import Number

from rbim._support import json
from rbim.cli.emulator.fault_flags import KIND, fault_of, fault_parameters
from rbim.cli.emulator.link import Refused, address, ask
from rbim.cli.emulator.serve import write_state
from rbim.cli.errors import print_error, report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.field import check, parse
from rbim.cli.file_names import FileName
from rbim.cli.global_flags import current_flags
from rbim.cli.json_output import show_json
from rbim.cli.printable import printable
from rbim.emulator.server.copy_commands import COMMANDS
from rbim.errors import InvalidRequest
from rbim.operations.base import description_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.emulator.server.commands import Command

__all__ = ["add_verbs", "help_of", "save"]

URL_HELP = (
    "The address of the emulator, or of its control port (default: RBIM_EMULATOR_URL, then RBIM_BASE_URL or the profile, "
    "then http://127.0.0.1:8883)."
)
JSON_HELP = "Print the answer as one JSON document."
FILE_HELP = "A JSON file; - reads standard input."
HEADS = {"outage": "Begin an outage, or end it."}
"""The help of a word that is no command by itself."""

Url = Annotated[str | None, Parameter(name="--url", show_default=False, help=URL_HELP)]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False, help=JSON_HELP)]

URL, JSON = "rbim_url", "rbim_as_json"
"""Parameters of every command, with names that no field of a body has."""

_LISTED = re.compile(r": ([\w, ]+?)(?: \([^)]*\))?\.$")
_PARAMETER = re.compile(r"\{(\w+)\}")
IN_PATHS = {
    "id": "The id of the task.",
    "group_id": "The id of the group.",
    "number": "The number, as in the list.",
    "text": "A part of the id or the name.",
}
"""The help of what stands in the path of a command."""


def add_verbs(app: App) -> None:
    """Add a command for each entry of the table with a verb; those of two words become a group of commands."""
    found = [(each.verb.split(), each) for each in COMMANDS if each.verb is not None]
    groups: dict[str, App] = {}
    names = [[word for word in words if word.islower()] for words, _ in found]
    for head in dict.fromkeys(name[0] for name in names if len(name) > 1):
        alone = next((each for words, each in found if words == [head]), None)
        place = next(place for place, name in enumerate(names) if name[0] == head)
        groups[head] = App(name=head, help=HEADS[head] if alone is None else None, sort_key=place)
        app.command(groups[head])
    for place, (name, (words, each)) in enumerate(zip(names, found, strict=True)):
        takes = [word.lower() for word in words if not word.islower()]
        run = _verb(each, " ".join(name), takes)
        if len(name) > 1:
            groups[name[0]].command(run, name=name[1], help=help_of(each), sort_key=place)
        elif name[0] in groups:
            groups[name[0]].help = help_of(each)
            groups[name[0]].default(run)
        else:
            app.command(run, name=name[0], help=help_of(each), sort_key=place)
    groups["state"].command(save, sort_key=len(found))


def help_of(command: Command) -> str:
    """Return the help of a command, without the list of its fields, which are flags here."""
    fields = {each.name for each in _fields(command)}
    text = command.help.replace(" (emulator-only)", "")
    listed = _LISTED.search(text)
    if listed is not None and {name.strip() for name in listed[1].split(",")} <= fields:
        text = f"{text[: listed.start()]}."
    return text


def save(file: Path, /, *, url: Url = None, as_json: Json = False) -> int:
    """Write the state to a file, which `state load` and `rbim emulator --state` read; print the file's name.

    Parameters
    ----------
    file
        The file.
    """
    command = next(each for each in COMMANDS if each.verb == "state")
    try:
        document = asyncio.run(ask(address(url), command.method, command.path, None))
    except InvalidRequest as error:
        return report_error(error, "rbim emulator state save")
    except Refused as refused:
        print_error(str(refused), refused.hint)
        return refused.code
    code = write_state(document, file)
    if code is Exit.DONE and as_json:
        show_json({"file": str(file)})
    elif code is Exit.DONE:
        sys.stdout.write(f"{printable(str(file))}\n")
    return code


def _verb(command: Command, name: str, takes: list[str]) -> Callable[..., int]:
    """Return the function of a command, with the signature that cyclopts reads."""
    fields = _parameters(command, takes)
    signature = inspect.Signature(
        [
            *sorted(fields, key=lambda each: (each.kind, each.default is not each.empty)),
            inspect.Parameter(URL, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Url),
            inspect.Parameter(JSON, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json),
        ]
    )

    def run(*args: Any, **kwargs: Any) -> int:
        values = signature.bind(*args, **kwargs).arguments
        url, as_json = values.pop(URL, None), values.pop(JSON, False)
        given = {key: value for key, value in values.items() if value is not None and value != ()}
        path = _PARAMETER.sub(lambda found: _segment(given.pop(found[1])), command.path)
        try:
            _check_field(command)
            document = asyncio.run(ask(address(url), command.method, path, _body(command, given)))
        except InvalidRequest as error:
            named = {each.name: _label(each.name, takes) for each in fields}
            return report_error(error, f"rbim emulator {name}", flags=named)
        except Refused as refused:
            print_error(str(refused), refused.hint)
            return refused.code
        _show(command, document, as_json=as_json)
        return Exit.DONE

    run.__name__ = name.replace(" ", "_")
    run.__doc__ = None
    run.__annotations__ = {}  # the signature has them
    run.__signature__ = signature  # type: ignore[attr-defined]  # read by inspect
    return run


def _segment(value: str) -> str:
    from urllib.parse import quote

    # a dot or two would be taken for a step in the path
    return value.replace(".", "%2E") if value in {".", ".."} else quote(value, safe="")


def _label(name: str, takes: list[str]) -> str:
    return name.upper() if name in takes else f"--{name.replace('_', '-')}"


def _fields(command: Command) -> tuple[attrs.Attribute[Any], ...]:
    return () if command.reads in (None, object) else attrs.fields(cast("Any", command.reads))


def _parameters(command: Command, takes: list[str]) -> list[inspect.Parameter]:
    """Return the parameters of a command's path and body."""
    names = _PARAMETER.findall(command.path)
    found = [_positional(name, str, IN_PATHS[name], inspect.Parameter.empty) for name in names]
    if KIND in takes:
        return fault_parameters(command.document)
    if command.reads is object:
        return [_positional("file", FileName, FILE_HELP, inspect.Parameter.empty)]
    hints = {} if not _fields(command) else get_type_hints(command.reads)
    for each in _fields(command):
        kind, default = _flag_type(hints[each.name]), inspect.Parameter.empty if each.default is attrs.NOTHING else None
        text = description_of(each) or ""
        if each.name in takes:
            found.append(_positional(each.name, kind, text, default))
        else:
            several = get_origin(kind) is list
            flag = Parameter(
                name=f"--{each.name.replace('_', '-')}",
                help=text,
                show_default=False,
                consume_multiple=several,
                negative=None if kind is bool else (),
                validator=Number(gte=0) if kind is float else (),
            )
            annotation = cast("Any", Annotated)[kind if default is inspect.Parameter.empty else kind | None, flag]
            found.append(
                inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            )
    return found


def _positional(name: str, kind: Any, text: str, default: Any) -> inspect.Parameter:  # a type expression
    flag = Parameter(
        help=text,
        show_default=False,
        negative=(),
        validator=Number(gte=0) if kind is float else (),
        allow_leading_hyphen=kind is FileName,  # standard input
    )
    annotation = cast("Any", Annotated)[kind if default is inspect.Parameter.empty else kind | None, flag]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, default=default, annotation=annotation)


def _flag_type(kind: Any) -> Any:  # type expressions
    """Return the type of a flag for the type of a field."""
    arms: list[Any] = [each for each in get_args(kind) if each is not type(None)] if _is_union(kind) else [kind]
    several = next((arm for arm in arms if get_origin(arm) is tuple), None)
    if several is not None:
        return list[_flag_type(get_args(several)[0])]  # type: ignore[misc]  # made from the field's type
    one = arms[0]
    if isinstance(one, type) and issubclass(one, str) and one is not str:
        return cast("Any", Literal)[tuple(str(each.value) for each in cast("Any", one))]
    return cast("Any", one)


def _is_union(kind: Any) -> bool:  # a type expression
    return isinstance(kind, UnionType) or get_origin(kind) is Union


def _body(command: Command, given: dict[str, Any]) -> Any:  # JSON; None without a body
    """Return the body of a command. Raises InvalidRequest for a file that cannot be read, and for wrong flags of a fault."""
    if command.reads is None:
        return None
    if KIND in given:
        return fault_of(command.document, given)
    if command.reads is object:
        return _file(given["file"])
    return {name: _single(value) if name == "to" else value for name, value in given.items()}


def _single(value: Any) -> Any:
    """Return the only entry of a list: a message to one account, or to a group."""
    if not isinstance(value, list):
        return value
    entries = cast("Any", value)
    return entries[0] if len(entries) == 1 else entries


def _file(name: str) -> Any:  # JSON
    try:
        return json.loads(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{name}: {error.strerror}", field="file") from None
    except json.NotJson as error:
        raise InvalidRequest(f"{name}: {error}", field="file") from None


def _check_field(command: Command) -> None:
    """Raise InvalidRequest, before anything is sent, if the answer has no such field as ``--field`` names."""
    path = current_flags().field
    if path is not None:
        from rbim.cli.emulator.shapes import shape_of_answer

        check(parse(path), shape_of_answer(command.answer))


def _show(command: Command, document: Any, *, as_json: bool) -> None:  # JSON
    if as_json:
        show_json(document, checked=True)
        return
    from rbim.cli.emulator.text import show_answer

    show_answer(command, document)
