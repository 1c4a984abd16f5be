"""The site is built offline, without a warning, and its reference has every public name."""

import importlib
import importlib.util
import subprocess
import sys

import pytest

from helpers.paths import DOCS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="the site needs rbim[docs]")

PUBLIC = [
    "rbim",
    "rbim.bulk",
    "rbim.callbacks",
    "rbim.config",
    "rbim.emulator",
    "rbim.emulator.faults",
    "rbim.operations",
]
PUBLIC += ["rbim.otel", "rbim.testing", "rbim.testing.conformance", "rbim.testing.inbox_conformance", "rbim.jetstream"]
TRANSPORTS = ["httpx", "asyncio", "aiohttp", "pyreqwest", "httpx2"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    made = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-d", str(made / "doctrees"), str(DOCS)]
    done = subprocess.run([*build, str(made / "html")], capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return made / "html"


@pytest.fixture(scope="module")
def documented(site):
    """Everything in Python that the site documents, by the names that it has there."""
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        found = InventoryFile.load(file, "", lambda _, path: path)
    names = {name for kind, names in found.items() if kind.startswith("py:") for name in names}
    return {id(value): value for name in names for value in [meaning_of(name)]}


def meaning_of(name):
    """Import what a dotted name means; None where that is no value of a module."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute) if module else None
    except (ImportError, AttributeError):
        return None  # a member of a class, which nobody imports


@pytest.mark.slow
@pytest.mark.parametrize("package", [*PUBLIC, *(f"rbim.transports.{name}" for name in TRANSPORTS)])
def test_every_public_name_is_in_the_reference(package, documented):
    module = importlib.import_module(package)
    public = {name: getattr(module, name) for name in module.__all__ if name != "__version__"}
    assert [name for name, value in public.items() if id(value) not in documented] == []


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text
        assert '<link rel="stylesheet" type="text/css" href="http' not in text
