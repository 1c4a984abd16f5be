"""Public names are public on purpose, listed once, and importing them loads no more than they need.

What may import what is checked by ``lint-imports``: see ``[tool.importlinter]`` in pyproject.toml.
"""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from itertools import pairwise

import pytest

import rbim
from helpers.paths import PACKAGE, ROOT
from helpers.tables import each_row

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
IO = {"anyio", "trio", "asyncio", "sniffio", "httpx", "httpcore", "h11", "aiohttp", "uvicorn", "sqlite3", "ssl"}


EVERY = [info.name for info in pkgutil.walk_packages(rbim.__path__, "rbim.") if not info.name.endswith("__main__")]
FACES = [name for name in ["rbim", *EVERY] if "lazy_names(__name__)" in inspect.getsource(importlib.import_module(name))]


# ------------------------------------------------------------------------------ fresh interpreters


def pure_modules():
    (contract,) = (each for each in CONTRACTS if each["name"] == "Pure modules do no input or output")
    for name in contract["source_modules"]:
        yield from [each for each in EVERY if each.startswith(f"{name}.") and each not in FACES] or [name]


STEPS = f"""
import sys
import rbim, rbim.callbacks
print(*sys.modules)
from rbim import AsyncClient, CreateGroup
print(*sys.modules)
from rbim.callbacks import verify, sign, parse, explain, Router, Text
import {", ".join(pure_modules())}
print(*sys.modules)
from rbim import *
print(*sys.modules)
"""


def test_importing_loads_no_more_than_is_needed():
    done = subprocess.run([sys.executable, "-c", STEPS], stdout=subprocess.PIPE, text=True, check=True)
    package, client, pure, everything = ({name.split(".")[0] for name in line.split()} for line in done.stdout.splitlines())
    assert package & (IO | {"attr", "cattrs"}) == set()
    assert client & (IO | {"cattrs", "hashlib", "logging"}) == set()  # until it is made and entered
    assert pure & IO == set()
    assert everything & {"httpx", "httpcore", "h11", "aiohttp", "uvicorn", "trio", "opentelemetry"} == set()


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


@each_row("module", map(importlib.import_module, EVERY))
def test_all_lists_exactly_what_a_module_makes_public(module):
    listed = getattr(module, "__all__", [])
    assert [name for name in listed if not hasattr(module, name)] == []
    assert len(set(listed)) == len(listed)
    names = {name: value for name, value in vars(module).items() if not name.startswith(("_", "pytest_"))}
    assert {name for name, value in names.items() if is_defined_in(module, value)} - set(listed) == set()


@each_row("module", map(importlib.import_module, EVERY))
def test_what_is_public_has_a_docstring_of_its_own(module):
    public = {name: getattr(module, name) for name in getattr(module, "__all__", [])}
    ours = {
        name: value
        for name, value in public.items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__.startswith("rbim.")
    }
    assert [name for name, value in ours.items() if not vars(value).get("__doc__", value.__doc__)] == []


def homes_of(face):
    """Return the module of each public name: what type checkers read in the package's source."""
    tree = ast.parse(inspect.getsource(importlib.import_module(face)))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {alias.asname: node.module for node in block.body for alias in node.names if alias.name == alias.asname}


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


@each_row("face", FACES)
def test_what_type_checkers_read_is_what_is_resolved(face):
    """The names found in the compiled package are those that stand in its source, each as itself."""
    package, homes = importlib.import_module(face), homes_of(face)
    assert set(package.__all__) - {"__version__"} == set(homes)
    assert set(homes) <= set(dir(package))
    # importing a module makes it an attribute of its package, in the place of whatever had that name
    assert {info.name for info in pkgutil.iter_modules(package.__path__)} & set(package.__all__) == set()
    for name, place in homes.items():
        value, home = getattr(package, name), importlib.import_module(place)
        assert getattr(home, name) is value
        assert name in home.__all__
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__ == home.__name__
        else:
            assert value.__doc__ or name in documented_values(home)


def test_there_are_packages_with_lazy_names():
    assert {"rbim", "rbim.bulk", "rbim.callbacks", "rbim.emulator", "rbim.operations"} <= set(FACES)
    with pytest.raises(AttributeError, match="has no attribute 'AsynClient'"):
        _ = rbim.AsynClient


@pytest.mark.ci
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
