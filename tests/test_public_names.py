"""Public names are public on purpose, listed once, and importing them loads no more than they need.

What may import what is checked by ``lint-imports``: see ``[tool.importlinter]`` in pyproject.toml.
"""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

import rbim

PACKAGE = Path(rbim.__file__).parent
CONTRACTS = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
    "contracts"
]
IO = {"anyio", "trio", "asyncio", "sniffio", "httpx", "httpcore", "h11", "aiohttp", "uvicorn", "sqlite3", "ssl"}

EVERY = [info.name for info in pkgutil.walk_packages(rbim.__path__, "rbim.") if not info.name.endswith("__main__")]
FACES = [name for name in ["rbim", *EVERY] if "lazy_names(__name__)" in inspect.getsource(importlib.import_module(name))]


# ------------------------------------------------------------------------------ fresh interpreters


def modules_of(name):
    """Return the modules of a package, or the one of that name."""
    return [each for each in EVERY if each.startswith(f"{name}.") and each not in FACES] or [name]


[PURE] = [
    [module for name in contract["source_modules"] for module in modules_of(name)]
    for contract in CONTRACTS
    if contract["name"] == "Pure modules do no input or output"
]

PROGRAMS = {name: f"import {name}" for name in PURE} | {
    "package": "import rbim, rbim.callbacks",
    "verification": "from rbim.callbacks import verify, sign, parse, explain, Router, Text",
    "client": "from rbim import AsyncClient, CreateGroup",
    "everything": "from rbim import *",
}


def start(program):
    return subprocess.Popen(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"], stdout=subprocess.PIPE, text=True
    )


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
    libraries = {"httpx", "httpcore", "h11", "aiohttp", "uvicorn", "trio", "opentelemetry"}
    assert loaded[name] & libraries == set()


def test_the_client_loads_what_a_call_needs_only_when_it_is_made_and_entered(loaded):
    assert loaded["client"] & (IO | {"cattrs", "hashlib", "logging"}) == set()


ENTERED = """
import sys
import anyio
from rbim import AsyncClient, CreateGroup, Credentials, GroupType
from rbim.emulator import Emulator

async def main():
    emulator = Emulator()
    client = AsyncClient(base_url="http://emulator", credentials=emulator.credentials, transport=emulator)
    async with client:
        before = set(sys.modules)
        await client.groups.create(name="n", type=GroupType.VIP, user_name="1001")
        print(*sorted(set(sys.modules) - before))

anyio.run(main)
"""


def test_the_first_call_of_an_entered_client_imports_nothing():
    done = subprocess.run([sys.executable, "-c", ENTERED], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == []


# ----------------------------------------------------------------------------------- public names


def is_defined_in(module, value):
    if inspect.isfunction(value):  # by its code: on Python 3.13 attrs gives `evolve` the module of the class made last
        return inspect.unwrap(value).__code__.co_filename == module.__file__
    return inspect.isclass(value) and value.__module__ == module.__name__


@pytest.mark.parametrize("name", EVERY)
def test_all_lists_exactly_what_a_module_makes_public(name):
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert [each for each in listed if not hasattr(module, each)] == []
    assert len(set(listed)) == len(listed)
    defined = {
        each
        for each, value in vars(module).items()
        if not each.startswith(("_", "pytest_")) and is_defined_in(module, value)
    }
    assert defined - set(listed) == set()


@pytest.mark.parametrize("name", EVERY)
def test_a_package_holds_no_logic(name):
    """Its ``__init__.py`` imports names, and defines none."""
    module = importlib.import_module(name)
    if hasattr(module, "__path__"):
        body = ast.parse(inspect.getsource(module)).body
        assert [node for node in ast.walk(ast.Module(body, [])) if isinstance(node, (ast.FunctionDef, ast.ClassDef))] == []


@pytest.mark.parametrize("name", EVERY)
def test_every_public_class_and_function_has_a_docstring_of_its_own(name):
    module = importlib.import_module(name)
    public = {each: getattr(module, each) for each in getattr(module, "__all__", [])}
    own = {
        each: value
        for each, value in public.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("rbim.")
    }
    assert [each for each, value in own.items() if not vars(value).get("__doc__", value.__doc__)] == []


def homes_of(face):
    """Return the module of each public name: what type checkers read in the package's source."""
    tree = ast.parse(inspect.getsource(importlib.import_module(face)))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in block.body for alias in node.names if alias.name == alias.asname}


NAMES = [(face, name) for face in FACES for name in importlib.import_module(face).__all__ if name != "__version__"]


def test_there_are_packages_with_lazy_names():
    assert {"rbim", "rbim.bulk", "rbim.callbacks", "rbim.emulator", "rbim.operations"} <= set(FACES)


@pytest.mark.parametrize("face", FACES)
def test_what_type_checkers_read_is_what_is_resolved(face):
    """The names found in the compiled package are those that stand in its source, each as itself."""
    package = importlib.import_module(face)
    names = set(package.__all__) - {"__version__"}
    assert names == set(homes_of(face))
    assert names <= set(dir(package))


@pytest.mark.parametrize(("face", "name"), NAMES, ids=[f"{face}-{name}" for face, name in NAMES])
def test_a_public_name_resolves_and_says_what_it_is(face, name):
    value = getattr(importlib.import_module(face), name)
    home = importlib.import_module(homes_of(face)[name])
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


@pytest.mark.parametrize("face", FACES)
def test_a_public_name_is_none_of_a_module(face):
    """Importing a module makes it an attribute of its package, in the place of whatever had that name."""
    package = importlib.import_module(face)
    modules = {info.name for info in pkgutil.iter_modules(package.__path__)}
    assert modules & set(package.__all__) == set()


def test_a_name_that_is_not_public_is_refused_by_name():
    with pytest.raises(AttributeError, match="has no attribute 'AsynClient'"):
        _ = rbim.AsynClient


def test_names_are_found_without_source_files(tmp_path):
    """A package that is shipped as compiled files only, as some installers do, has the same names."""
    program = f"""
import compileall, pathlib, shutil, sys
target = pathlib.Path({str(tmp_path)!r})
shutil.copytree({str(PACKAGE)!r}, target / "rbim", ignore=shutil.ignore_patterns("__pycache__"))
compileall.compile_dir(target, quiet=2, legacy=True)
for source in target.rglob("*.py"):
    source.unlink()
sys.path.insert(0, str(target))
import rbim, rbim.callbacks
print(rbim.__file__, rbim.AsyncClient.__name__, rbim.callbacks.verify.__name__, len(rbim.__all__))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.split()[1:] == ["AsyncClient", "verify", str(len(rbim.__all__))]
    assert done.stdout.startswith(str(tmp_path))
