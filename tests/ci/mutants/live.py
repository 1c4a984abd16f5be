"""A mutant in a process: its module is imported with another text."""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location

from .mutation import ROOT


class ImportMutant(MetaPathFinder):
    """An import hook: one module is imported with a mutant's text."""

    def __init__(self, mutant):
        self._name = mutant.module
        self._path = str(ROOT / mutant.path)
        self._text = mutant.text()

    def use(self):
        """Import the module now: pytest puts a hook of its own before others as soon as it begins."""
        assert self._name not in sys.modules
        sys.meta_path.insert(0, self)
        importlib.import_module(self._name)

    def find_spec(self, fullname, path=None, target=None):  # noqa: ARG002  # a protocol
        if fullname != self._name:
            return None
        return spec_from_file_location(fullname, self._path, loader=_Loader(fullname, self._path, self._text))


class _Loader(SourceFileLoader):
    def __init__(self, name, path, text):
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname):  # noqa: ARG002  # a protocol
        return compile(self._text, self.path, "exec", dont_inherit=True)
