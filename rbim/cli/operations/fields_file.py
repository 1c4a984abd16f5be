"""The fields of an operation from a TOML file: ``rbim calls create-task task.toml``. Flags take precedence."""

from __future__ import annotations

import json
from datetime import date, time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cyclopts import CycloptsError, Token

from rbim.cli.operations.flags import empty_word, flag_of
from rbim.operations.base import fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts import App, Argument, ArgumentCollection

    from rbim.operations.base import Operation

__all__ = ["filler"]


def filler(kind: type[Operation[Any]], flag: str) -> Callable[[App, tuple[str, ...], ArgumentCollection], None]:
    """Return a configuration function for cyclopts that sets each flag from the file unless it was given.

    ``flag`` is the flag that names the file.
    """
    return partial(_fill, kind, flag)


def _fill(kind: type[Operation[Any]], flag: str, _: App, __: tuple[str, ...], arguments: ArgumentCollection) -> None:
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
    if isinstance(value, (date, time)):
        return value.isoformat()
    return json.dumps(value, default=str) if isinstance(value, (dict, list)) else str(value)
