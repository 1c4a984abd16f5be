"""A mutant in a process: in the functions that are loaded already, or in the module when it is imported."""

from __future__ import annotations

import gc
import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from .mutation import ROOT, source

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from .mutation import Mutant

__all__ = ["Changes", "ImportMutant", "NotInPlace", "in_place", "loaded_functions", "put_in"]


class NotInPlace(Exception):
    """The change cannot be put into loaded functions: the module must be imported with it."""


Place = tuple[str, str, int]


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def loaded_functions() -> dict[Place, list[FunctionType]]:
    """Return the functions of rbim in this process, by the places of their code."""
    ours = str(ROOT / "rbim")
    gc.unfreeze()  # the collector does not list what is frozen
    found: dict[Place, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(ours):
            found.setdefault(_place(each.__code__), []).append(each)
    gc.freeze()
    return found


Changes = list[tuple[FunctionType, CodeType]]


def in_place(mutant: Mutant, loaded: dict[Place, list[FunctionType]]) -> Changes:
    """Return the loaded functions that a mutant changes, with their new code. Raises NotInPlace if there is none."""
    if not mutant.function:
        raise NotInPlace
    name = str(ROOT / mutant.path)
    old = compile(source(mutant.path), name, "exec", dont_inherit=True)
    new = compile(mutant.text(), name, "exec", dont_inherit=True)
    found = [(function, after) for before, after in _differing(old, new) for function in loaded.get(_place(before), [])]
    if not found or any(len(function.__code__.co_freevars) != len(code.co_freevars) for function, code in found):
        raise NotInPlace
    return found


def put_in(changes: Changes) -> None:
    """Give the functions of this process their new code."""
    for function, code in changes:
        function.__code__ = code


def _differing(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]]:
    """Return the outermost pieces of code that are of functions and differ. Raises NotInPlace if others differ."""
    before, after = _functions_in(old), _functions_in(new)
    if [code.co_qualname for code in before] != [code.co_qualname for code in after]:
        raise NotInPlace
    return [(one, other) for one, other in zip(before, after, strict=True) if one != other]


def _functions_in(code: CodeType) -> list[CodeType]:
    """The functions of a module and of its classes, not those within other functions."""
    found = []
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found += [each] if each.co_flags & 2 else _functions_in(each)  # 2: CO_NEWLOCALS, which classes lack
    return found


class ImportMutant(MetaPathFinder):
    """An import hook: one module is imported with a mutant's text."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = mutant.module
        self._path = str(ROOT / mutant.path)
        self._text = mutant.text()

    def use(self) -> None:
        """Import the module now: pytest puts a hook of its own before others as soon as it begins."""
        assert self._name not in sys.modules
        sys.meta_path.insert(0, self)
        importlib.import_module(self._name)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002  # a protocol
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, self._path, loader=_Loader(fullname, self._path, self._text))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002  # a protocol
        return compile(self._text, self.path, "exec", dont_inherit=True)
