"""The fields of an operation from a TOML file: ``rbim calls create-task task.toml``. Flags go before the file."""

from __future__ import annotations

import json
import tomllib
from datetime import date, time
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cyclopts import CycloptsError, Token

from rbim.cli.operations.flags import flag_of
from rbim.operations.base import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts import App, Argument, ArgumentCollection

    from rbim.operations.base import Operation

__all__ = ["filler"]


def filler(kind: type[Operation[Any]], flag: str) -> Callable[[App, tuple[str, ...], ArgumentCollection], None]:
    """Return what cyclopts calls a configuration: it gives a value to each flag that is in the file and was not told.

    ``flag`` is the one that names the file.
    """
    return partial(_fill, kind, flag)


def _fill(kind: type[Operation[Any]], flag: str, _: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
    by_flag = {name: argument for argument in arguments for name in argument.names}
    named = by_flag[flag].tokens
    if not named:
        return
    path = Path(named[-1].value)
    document = _read(path)
    flags = {a.name.strip("_"): flag_of(a) for a in fields_of(kind) if a.init}
    told: dict[str, str] = {}
    for key, value in document.items():
        field = key.replace("-", "_")
        if field not in flags:
            raise CycloptsError(msg=f"{path}: {_unknown(key, list(flags))}")
        if field in told:
            raise CycloptsError(msg=f"{path}: {told[field]} and {key} are the same")
        told[field] = key
        argument = by_flag[flags[field]]
        if not argument.tokens:
            _give(argument, value, f"{path}, key {key}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise CycloptsError(msg=f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CycloptsError(msg=f"{path}: it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise CycloptsError(msg=f"{path}: it is not TOML: {error}") from None


def _unknown(key: str, known: list[str]) -> str:
    near = get_close_matches(key.replace("-", "_"), known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"unknown key {key}; {meant}"


def _give(argument: Argument, value: object, where: str) -> None:
    """Give the argument the words that say the value on a command line: the flag's reader makes of them what they are."""
    several = isinstance(value, list) and argument.parameter.consume_multiple
    words = [_word(each) for each in cast("list[object]", value if several else [value])]
    if not words:
        raise CycloptsError(msg=f"{where}: at least one value is needed")
    argument.tokens.extend(Token(keyword=where, value=word, index=at) for at, word in enumerate(words))


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (date, time)):
        return value.isoformat()
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)
