"""What the public import paths offer, kept as text; ``python tests/test_public_api.py --write`` writes it down again.

A class is shown with its bases, its constructor, and what it adds to those of its bases that are public; what private ones
add counts as its own. No module is named but the import paths themselves: what moves inside the package does not show.
"""

import ast
import difflib
import functools
import importlib.util
import inspect
import re
import sys
import textwrap
import types
from enum import Enum
from pathlib import Path
from typing import Literal, Union, get_args, get_origin, get_overloads, is_typeddict

import attrs

from helpers.tables import each_row

SNAPSHOT = Path(__file__).parent / "snapshots" / "api.txt"
PATHS = [
    *(
        "rbim",
        "rbim.operations",
        "rbim.errors",
        "rbim.wire.codec",
        "rbim.config",
        "rbim.bulk",
        "rbim.callbacks",
    ),
    *("rbim.emulator", "rbim.emulator.faults", "rbim.emulator.platform.state", "rbim.emulator.logs"),
    *("rbim.emulator.copies.messages", "rbim.emulator.platform.rules", "rbim.emulator.server"),
    *("rbim.testing", "rbim.transports.httpx", "rbim.transports.asyncio", "rbim.transports.httpx2"),
    *("rbim.transports.aiohttp", "rbim.testing.conformance", "rbim.otel", "rbim.cli"),
    "rbim.sync",
]
"""What the README, the pages, the examples and the API reference import from; a name is described at the first of them."""

WIDTH = 120
SPECIAL = {f"__{name}__" for name in ("aenter", "aexit", "aiter", "anext", "await", "call", "enter", "exit", "iter", "len")}


def short(annotation: object) -> str:
    """Return a type as it is written, without the modules of its names: the same on every version of Python."""
    if isinstance(annotation, list):  # the arguments of a Callable
        return f"[{', '.join(map(short, annotation))}]"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in {Union, types.UnionType}:
        return " | ".join(map(short, arguments))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if arguments:
        shown = ", ".join(map(short, arguments))
        return f"{short(origin)}[{shown}]"
    if annotation in {None, types.NoneType}:
        return "None"
    if annotation is ...:
        return "..."
    text = getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__qualname__", None) or str(annotation)
    text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])|~|\+(?=[A-Z])", "", text)
    while (
        renewed := re.sub(r"\bOptional\[([^\[\]]*(?:\[[^\[\]]*(?:\[[^\[\]]*\])*[^\[\]]*\])*)\]", r"\1 | None", text)
    ) != text:
        text = renewed
    return text.replace("NoneType", "None")


def value(given: object) -> str:
    """Return a value as text that is the same in every process, without addresses, modules and private names."""
    if isinstance(given, Enum):
        return "..." if given is attrs.NOTHING else f"{type(given).__name__}.{given.name}"
    if hasattr(given, "__args__"):
        return short(given)
    if isinstance(given, attrs.Factory):
        return f"Factory({value(given.factory)})"
    if isinstance(given, types.MappingProxyType | dict):
        return listed("{", [f"{value(key)}: {value(each)}" for key, each in given.items()], "}")
    if isinstance(given, set | frozenset):
        return listed("{", sorted(map(value, given)), "}")
    if type(given) in {tuple, list}:
        return listed("(", [value(each) for each in given], ")")
    if attrs.has(type(given)):
        told = [f"{each.name}={value(getattr(given, each.name))}" for each in attrs.fields(type(given)) if each.repr]
        text = f"{type(given).__name__}({', '.join(told)})"
        return text if len(text) < 3 * WIDTH else f"a {type(given).__name__}"
    if hasattr(given, "__qualname__") and not given.__qualname__.startswith(("_", "<")) and not inspect.ismethod(given):
        return given.__qualname__
    return f"a {type(given).__name__}" if repr(given).startswith("<") else repr(given)


def listed(opens: str, parts: list[str], closes: str) -> str:
    """Return parts in one line, or each in its own where they are too long for that."""
    line = f"{opens}{', '.join(parts)}{closes}"
    return line if len(line) < WIDTH else "".join([opens, *(f"\n    {part}," for part in parts), "\n", closes])


def parameters(function: object, *, bound: bool = False) -> str:
    """Return a signature; one that is long has a line for each parameter. ``bound`` leaves out the first one."""
    signature = inspect.signature(function)
    told, starred, positional = [], False, False
    for each in list(signature.parameters.values())[bound:]:
        if positional and each.kind is not each.POSITIONAL_ONLY:
            told.append("/")
        if each.kind is each.KEYWORD_ONLY and not starred:
            told.append("*")
        starred = starred or each.kind in {each.VAR_POSITIONAL, each.KEYWORD_ONLY}
        positional = each.kind is each.POSITIONAL_ONLY
        text = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "") + each.name
        text += "" if each.annotation is each.empty else f": {short(each.annotation)}"
        kept = "" if each.default is each.empty else value(each.default)
        told.append(f"{text} = {kept if len(kept) < WIDTH else '...'}" if kept else text)
    told += ["/"] * positional
    result = signature.return_annotation
    ends = "" if result is signature.empty or isinstance(function, type) else f" -> {short(result)}"
    return listed("(", told, f"){ends}")


def callables(name: str, function: object, *, bound: bool = False, kind: str = "") -> list[str]:
    """Return the line of a function, after those of its overloads."""
    word = f"{kind}{'async ' * inspect.iscoroutinefunction(function)}def {name}"
    return [word + parameters(each, bound=bound) for each in [*get_overloads(function), function]]


def member(name: str, found: object, of: type) -> list[str]:
    """Return the lines of what a class has under a name."""
    if isinstance(found, property | functools.cached_property):
        getter = found.fget if isinstance(found, property) else found.func
        return [f"property {name}: {short(inspect.signature(getter).return_annotation)}"]
    if isinstance(found, classmethod | staticmethod):
        return callables(name, found.__func__, bound=isinstance(found, classmethod), kind=f"{type(found).__name__} ")
    if isinstance(found, types.FunctionType):
        return callables(name, found, bound=True)
    if hasattr(found, "operation"):  # the method of an operation: its parameters are the operation's
        return [f"{name} = {type(found).__name__}({found.operation.__name__})"]
    note = inspect.get_annotations(of).get(name)
    return [f"{name}{f': {short(note)}' if note else ''} = {value(found)}"]


def fields(of: type) -> dict[str, list[str]]:
    """Return what instances have: attrs fields, annotated names, and what a constructor that is written out sets."""
    if attrs.has(of):
        above = [(each.name, each.type) for base in of.__mro__[1:] if attrs.has(base) for each in attrs.fields(base)]
        notes = {each.name: (each.type, each.default) for each in attrs.fields(of) if (each.name, each.type) not in above}
    else:
        slots = {name for name, found in vars(of).items() if inspect.isdatadescriptor(found)}
        kept = getattr(of, "_field_defaults", {})
        names = {name: note for name, note in inspect.get_annotations(of).items() if name in slots or name not in vars(of)}
        notes = {name: (note, kept.get(name, attrs.NOTHING)) for name, note in names.items()}
        if isinstance(made := vars(of).get("__init__"), types.FunctionType) and not getattr(of, "_is_protocol", False):
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(made)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                    notes.setdefault(node.attr, (None, attrs.NOTHING))
    return {
        name: [f"field {name}{f': {short(note)}' if note else ''}{f' = {value(kept)}' if kept is not attrs.NOTHING else ''}"]
        for name, (note, kept) in notes.items()
        if not name.startswith("_")
    }


def members(of: type, public: set[type]) -> list[str]:
    """Return the lines of what a class has, but for what its public bases have."""
    if issubclass(of, Enum):
        ours = [each for each in of.__mro__ if each.__module__.startswith("rbim")]
        kinds = types.FunctionType | property | classmethod
        own = {
            name: each for each in ours for name, found in vars(each).items() if isinstance(found, kinds) and name[0] != "_"
        }
        shown = [line for name, each in sorted(own.items()) for line in member(name, vars(each)[name], each)]
        return [f"{each.name} = {each.value!r}" for each in of] + shown
    mro = [f"mro: {' > '.join(each.__name__ for each in of.__mro__)}"] if issubclass(of, BaseException) else []
    told = {each for base in of.__mro__[1:] if base in public for each in base.__mro__}
    ours = [each for each in of.__mro__ if each not in told and each.__module__.startswith("rbim")]
    found: dict[str, list[str]] = {}
    for each in reversed(ours):
        own = [name for name in vars(each) if name in SPECIAL or not name.startswith("_")]
        found |= {
            name: member(name, vars(each)[name], each) for name in own if not inspect.ismemberdescriptor(vars(each)[name])
        }
        found |= fields(each)
    made = not getattr(of, "_is_protocol", False) and any({"__init__", "__new__"} & vars(each).keys() for each in ours)
    constructor = [f"constructor{parameters(of)}"] if made else []
    return mro + constructor + [line for name in sorted(found) for line in found[name]]


def bases(of: type, public: set[type]) -> list[str]:
    """Return the names of the bases; instead of a private one, those of its own."""
    if is_typeddict(of):
        return ["TypedDict"]
    found: list[str] = []
    for each in vars(of).get("__orig_bases__", of.__bases__):
        origin = getattr(each, "__origin__", each)
        private = isinstance(origin, type) and origin.__module__.startswith("rbim") and origin not in public
        found += bases(origin, public) if private else [short(each) if each is not origin else each.__name__]
    return [name for name in dict.fromkeys(found) if name != "object"]


def described(name: str, found: object, public: set[type]) -> list[str]:
    """Return the lines of a public name: what it is, and indented what it has."""
    found = found if isinstance(found, type) else inspect.unwrap(found)  # a fixture wraps a function
    if isinstance(found, types.FunctionType):
        return callables(name, found)
    if isinstance(found, type) and not hasattr(found, "__args__"):
        shown = ", ".join(bases(found, public))
        return [f"class {name}({shown})", *(textwrap.indent(line, " " * 4) for line in members(found, public))]
    if hasattr(found, "__args__"):
        return [f"{name} = {short(found)}"]
    return [f"{name}: {type(found).__name__}" + f" = {value(found)}" * (name != "__version__")]


def render(modules: dict[str, types.ModuleType]) -> dict[str, str]:
    """Return the text of each import path."""
    names = {path: sorted(module.__all__) for path, module in modules.items()}
    everything = [getattr(modules[path], name) for path in modules for name in names[path]]
    public = {each for each in everything if isinstance(each, type)}
    first: dict[tuple[str, int], str] = {}
    texts = {}
    for path, module in modules.items():
        lines = []
        for name in names[path]:
            found = getattr(module, name)
            home = first.setdefault((name, id(found)), path)
            lines += described(name, found, public) if home == path else [f"{name} = {home}.{name}"]
        texts[path] = "\n".join(lines) + "\n"
    return texts


@functools.cache
def present() -> dict[str, str]:
    modules = {}
    for path in PATHS:
        try:
            module = importlib.import_module(path)
            for name in module.__all__:
                getattr(module, name)
            modules[path] = module
        except ImportError as missing:  # an extra is not installed, which the message says
            if "pip install" not in str(missing):
                raise
    return render(modules)


def kept() -> dict[str, str]:
    """Return the text of each import path in the snapshot."""
    parts = re.split(r"^== (.*)\n\n", SNAPSHOT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {path: f"{text.rstrip()}\n" for path, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_import_paths_offer_what_the_snapshot_says():
    """But for those that need an extra which is not installed."""
    assert list(kept()) == PATHS
    assert set(PATHS) - set(present()) <= {path for path in PATHS if path not in {"rbim", "rbim.bulk", "rbim.callbacks"}}
    told = [
        difflib.unified_diff(kept()[path].splitlines(), now.splitlines(), f"{path}, as kept", f"{path}, now", lineterm="")
        for path, now in present().items()
    ]
    difference = "\n".join(line for lines in told for line in lines)
    assert not difference, f"{difference}\n\nif that is meant: python tests/test_public_api.py --write"


def test_no_public_function_takes_any_keyword_arguments():
    """Such arguments are an ``Unpack`` of a TypedDict: an editor completes them, and a type checker refuses wrong ones."""
    taken = re.findall(r"\*\*\w+(?:: (\w+))?", "".join(kept().values()))
    assert len(taken) > 5
    assert set(taken) == {"Unpack"}


MADE_UP = """
from __future__ import annotations
__all__ = ["Thing", "make"]
class Thing:
    size: int = 1
    def __init__(self, name: str, *, wide: bool = False) -> None:
        self.name = name
    async def grow(self, by: float = 0.5, /) -> some.where.Thing: ...
    def _hidden(self, by: int = 7): ...
def make(thing: Thing | None = None, **rest: object) -> Thing: ...
"""
SHOWN = """\
class Thing()
    constructor(name: str, *, wide: bool = False)
    async def grow(by: float = 0.5, /) -> Thing
    field name
    size: int = 1
def make(thing: Thing | None = None, **rest: object) -> Thing
"""


@each_row(
    "old, new, line",
    [
        ("", "", None),
        ("by: int = 7", "by: int = 8", None),
        ("by: float = 0.5", "by: float = 0.6", "    async def grow(by: float = 0.6, /) -> Thing"),
        ("*, wide: bool = False", "wide: bool = False", "    constructor(name: str, wide: bool = False)"),
        ("self.name =", "self.label =", "    field label"),
        ("| None = None", "| None", "def make(thing: Thing | None, **rest: object) -> Thing"),
    ],
)
def test_what_changes_shows_unless_it_is_private(old, new, line, tmp_path):
    source = tmp_path / f"rbim_made_up_{len(list(tmp_path.iterdir()))}.py"
    source.write_text(MADE_UP.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("rbim_made_up", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = render({"made_up": module})["made_up"]
    assert [each for each in text.splitlines() if each not in SHOWN.splitlines()] == ([line] if line else [])
    assert line is not None or text == SHOWN


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/test_public_api.py --write")
    assert list(present()) == PATHS, "an extra is not installed"
    SNAPSHOT.write_text("\n".join(f"== {path}\n\n{text}" for path, text in present().items()), encoding="utf-8")
