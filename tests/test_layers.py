"""The architecture, checked: arrows run downwards only, pure modules stay pure, public names are public on purpose."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import rbim
import rbim.bulk
import rbim.callbacks

PACKAGE = Path(rbim.__file__).parent

# The pure half of the receiver of message copies.
CALLBACKS = ["signature", "parsing", "delivery", "reply", "router", "backoff", "watch"]

# The pure half of bulk jobs: what rows look like, and how the pace is found.
BULK = ["rows", "reading_cells", "formats", "rate_control", "concurrency_control", "steering"]

# Lowest first. A package stands for all its modules, unless one of them is named itself.
LAYERS = [
    {"lazy"},
    {"errors", "message"},
    {"checks", "operation", "dialect", "jsontext", "clock", "quirks", "asgi"},
    {"groups", "calls", "callbacks.kinds", "callbacks.quirks", "callbacks.events"},
    {"catalogue", "converter", "codec", "signing", "environment", "retry", "pace", "observe"},
    {"config_keys", "config_files"},
    {f"callbacks.{name}" for name in CALLBACKS} | {"callbacks.explanation"} | {f"bulk.{name}" for name in BULK},
    {"deadlines", "gate", "core", "call", "client", "database", "commits", "bulk", "callbacks", "sockets"},
    {"config", "config_transports"},
    {"transports", "emulator", "testing", "cli", "otel", "otel_copies", "otel_metrics"},
]

# Where something lower reaches something higher: inside a function, and here by name.
COMPOSITION = {("client", "transports.httpx")} | {
    ("config_transports", f"transports.{name}") for name in ("httpx", "httpx2", "aiohttp", "pyreqwest", "asyncio")
}

PURE = [
    "errors",
    "message",
    "checks",
    "operation",
    "dialect",
    "groups",
    "calls",
    "catalogue",
    "quirks",
    "converter",
    "codec",
    "signing",
    "environment",
    "config_keys",
    "config_files",
    "retry",
    "pace",
    "jsontext",
    "clock",
    "observe",
    "lazy",
    "asgi",
    "callbacks.kinds",
    "callbacks.quirks",
    "callbacks.events",
    *(f"callbacks.{name}" for name in CALLBACKS),
    "callbacks.explanation",
    *(f"bulk.{name}" for name in BULK),
]
IO = {"anyio", "trio", "asyncio", "sniffio", "httpx", "httpcore", "h11", "aiohttp", "pyreqwest", "uvicorn", "sqlite3", "ssl"}


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES.pop("")  # the package itself: lazy names, nothing else


@cache
def imports_of(name):
    """Return what a module imports when it is imported, what its functions import, and what only type checkers read."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    inside_functions = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for_checkers = {
        id(node)
        for condition in ast.walk(tree)
        if isinstance(condition, ast.If) and ast.unparse(condition.test) == "TYPE_CHECKING"
        for each in condition.body
        for node in ast.walk(each)
    }
    found = {"at once": set(), "in functions": set(), "for checkers": set()}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            when = (
                "for checkers" if id(node) in for_checkers else "in functions" if id(node) in inside_functions else "at once"
            )
            found[when] |= set(targets(node))
    return found


def targets(node):
    """Yield the full names of the modules that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, "imports are absolute"
    for alias in node.names:
        submodule = f"{node.module}.{alias.name}"
        yield submodule if submodule.removeprefix("rbim.") in MODULES else node.module


def own(names):
    """Return those of rbim's own modules, without the package's name."""
    return {name.removeprefix("rbim.") for name in names if name.startswith("rbim.")}


def layer(name):
    """Return the number of a module's layer, from below."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for number, layer in enumerate(LAYERS):
            if ".".join(parts[:length]) in layer:
                return number
    pytest.fail(f"in which layer is rbim.{name}?")


@pytest.mark.parametrize("name", MODULES)
def test_arrows_run_downwards_only(name):
    upwards = {lower for lower in own(imports_of(name)["at once"]) if layer(lower) > layer(name)}
    assert upwards == set()


def test_what_a_function_imports_from_above_is_a_composition_point_listed_by_name():
    upwards = {
        (name, imported)
        for name in MODULES
        for imported in own(imports_of(name)["in functions"])
        if layer(imported) > layer(name)
    }
    assert upwards == COMPOSITION


def test_no_modules_import_each_other_in_a_circle():
    TopologicalSorter({name: own(imports_of(name)["at once"]) for name in MODULES}).prepare()


def test_no_module_takes_a_short_cut_through_the_lazy_package():
    """``from rbim import AsyncClient`` inside rbim would hide which module is meant."""
    short = {name for name in MODULES if "rbim" in set.union(*imports_of(name).values())}
    assert {name for name in short if layer(name) < layer("cli")} == set()


# The modules of `transports` that may name each HTTP library; httpx_slots, which httpx and httpx2 share, names none.
LIBRARIES = {
    "httpx": r"httpx",
    "httpx2": r"httpx2",
    "httpcore": r"httpx",
    "httpcore2": r"httpx2",
    "aiohttp": r"aiohttp(_\w+)?",
    "yarl": r"aiohttp(_\w+)?",
    "pyreqwest": r"pyreqwest(_\w+)?",
    "httptools": r"asyncio(_\w+)?",
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_http_library_is_named_in_its_own_file_only(library):
    naming = {
        name for name in MODULES for imported in set.union(*imports_of(name).values()) if imported.split(".")[0] == library
    }
    assert [name for name in sorted(naming) if not re.fullmatch(rf"transports\.{LIBRARIES[library]}", name)] == []


CONFORMANCE = [name for name in MODULES if name.startswith("transports.conformance")]


@pytest.mark.parametrize("name", CONFORMANCE)
def test_the_conformance_suite_shares_no_code_with_what_it_tries(name):
    """Of rbim it knows messages and errors, else what runs tasks and makes certificates; its servers know nothing."""
    imported = set.union(*imports_of(name).values())
    is_server = name.endswith("server")
    assert own(imported) - set(CONFORMANCE) <= (set() if is_server else {"message", "errors"})
    packages = {each.split(".")[0] for each in imported} - sys.stdlib_module_names
    assert packages <= (set() if is_server else {"rbim", "anyio", "attrs", "trustme"})


def test_opentelemetry_is_named_in_its_own_modules_only():
    naming = {
        name for name in MODULES for imported in set.union(*imports_of(name).values()) if imported.startswith("opentel")
    }
    assert naming == {"otel", "otel_metrics", "otel_copies"}


# ------------------------------------------------------------------------------ fresh interpreters


def start(program):
    return subprocess.Popen(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], stdout=subprocess.PIPE, text=True
    )


PROGRAMS = {name: f"import rbim.{name}" for name in PURE} | {
    "package": "import rbim, rbim.callbacks",
    "verification": "from rbim.callbacks import verify, sign, parse, explain, Router, Text",
    "client": "from rbim import AsyncClient, CreateGroup",
    "everything": "from rbim import *",
}


@pytest.fixture(scope="module")
def loaded():
    """The modules that each program loads in an interpreter of its own."""
    running = {name: start(program) for name, program in PROGRAMS.items()}
    outputs = {name: process.communicate() for name, process in running.items()}
    assert all(process.returncode == 0 for process in running.values())
    return {name: {module.split(".")[0] for module in output.split()} for name, (output, _) in outputs.items()}


@pytest.mark.parametrize("name", [*PURE, "verification"])
def test_a_pure_module_loads_nothing_that_does_io(loaded, name):
    assert loaded[name] & IO == set()


def test_the_package_alone_loads_next_to_nothing(loaded):
    assert loaded["package"] & (IO | {"attr", "cattrs"}) == set()


@pytest.mark.parametrize("name", ["client", "everything"])
def test_public_names_load_no_http_library(loaded, name):
    libraries = {"httpx", "httpcore", "h11", "aiohttp", "pyreqwest", "uvicorn", "trio", "opentelemetry"}
    assert loaded[name] & libraries == set()


# ----------------------------------------------------------------------------------- public names

EVERY = [info.name for info in pkgutil.walk_packages(rbim.__path__, "rbim.") if not info.name.endswith("__main__")]


def load(name):
    return importlib.import_module(name)


def is_defined_in(module, value):
    if inspect.isfunction(value):  # by its code: on Python 3.13 attrs gives `evolve` the module of the class made last
        return inspect.unwrap(value).__code__.co_filename == module.__file__
    return inspect.isclass(value) and value.__module__ == module.__name__


@pytest.mark.parametrize("name", EVERY)
def test_all_lists_exactly_what_a_module_makes_public(name):
    module = load(name)
    listed = module.__all__ if name != "rbim.transports" else []
    assert [each for each in listed if not hasattr(module, each)] == []
    assert len(set(listed)) == len(listed)
    defined = {
        each
        for each, value in vars(module).items()
        if not each.startswith(("_", "pytest_")) and is_defined_in(module, value)
    }
    assert defined - set(listed) == set()


@pytest.mark.parametrize("name", EVERY)
def test_every_public_class_and_function_has_a_docstring_of_its_own(name):
    module = load(name)
    public = {each: getattr(module, each) for each in getattr(module, "__all__", [])}
    own = {
        each: value
        for each, value in public.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("rbim.")
    }
    assert [each for each, value in own.items() if not vars(value).get("__doc__", value.__doc__)] == []


PACKAGES = [rbim, rbim.bulk, rbim.callbacks]
NAMES = [(package, name) for package in PACKAGES for name in package.__all__ if name != "__version__"]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_lists_exactly_the_names_it_can_resolve(package):
    lazily = set(package._WHERE)
    assert set(package.__all__) - {"__version__"} == lazily
    assert len(set(package.__all__)) == len(package.__all__)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize(("package", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_public_name_resolves_and_says_what_it_is(package, name):
    value = getattr(package, name)
    home = importlib.import_module(package._WHERE[name])
    assert getattr(home, name) is value
    assert name in home.__all__
    assert vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__ or name in documented_values(home)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__module__ == home.__name__


def documented_values(module):
    """Return the names of a module's values that have a docstring below them."""
    body = ast.parse(inspect.getsource(module)).body
    return {
        target.id
        for before, after in pairwise(body)
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str)
        for target in (before.targets if isinstance(before, ast.Assign) else [getattr(before, "target", None)])
        if isinstance(target, ast.Name)
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_what_type_checkers_read_is_what_is_resolved(package):
    """The imports under TYPE_CHECKING in a lazy ``__init__.py`` and its table of homes are the same table."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    read = {alias.name: node.module for node in block.body for alias in node.names}
    assert read == package._WHERE


@pytest.mark.parametrize("package", PACKAGES)
def test_a_public_name_is_none_of_a_module(package):
    """Importing a module makes it an attribute of its package, in the place of whatever had that name."""
    modules = {info.name for info in pkgutil.iter_modules(package.__path__)}
    assert modules & set(package.__all__) == set()


def test_a_name_that_is_not_public_is_refused_by_name():
    with pytest.raises(AttributeError, match="has no attribute 'AsynClient'"):
        _ = rbim.AsynClient
