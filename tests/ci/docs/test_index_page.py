"""The page for a package index: what docs/index_page.py makes of README.md, and the pip commands of all pages."""

import re
import zipfile
from email.parser import Parser

from hatchling.builders.wheel import WheelBuilder

from helpers.pages import docs_module
from helpers.paths import ROOT
from rbim import __version__

URL = "https://git.example/rbim"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def targets(page):
    """Return the targets of all links and pictures outside of code, by another road than the hook's."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page, flags=re.DOTALL)
    return [part.partition(")")[0] for part in prose.split("](")[1:]]


def test_with_the_address_of_the_repository_every_link_is_absolute_and_leads_to_a_file():
    page = docs_module("index_page").index_page(README, URL, "1.2.3")
    there = targets(page)
    assert len(there) == len(targets(README)) > 20
    for target in there:
        kind, path = re.fullmatch(rf"{URL}/(blob|raw)/v1\.2\.3/([^#]+)(?:#.*)?", target).groups()
        assert (ROOT / path).exists()
        assert (kind == "raw") is path.endswith((".svg", ".png"))


def test_the_distributions_have_this_page(tmp_path, monkeypatch):
    monkeypatch.setenv("PROJECT_URL", URL)
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        told = Parser().parsestr(archive.read(name).decode())
    links = dict(value.split(", ") for value in told.get_all("Project-URL", []))
    assert (told["Version"], told["Description-Content-Type"]) == (__version__, "text/markdown")
    assert links.keys() == {"Repository", "Documentation", "Changelog", "Security"}
    assert all(target.startswith(URL) for target in [*links.values(), *targets(told.get_payload())])


def test_every_pip_command_of_the_pages_works_in_a_clone():
    """Until an index has rbim, a command with its name would install nothing, or another project."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "examples").rglob("*.py")]
    for page in pages:
        for line in page.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"pip install [^|`&]*\brbim\b", line), f"{page}: {line}"
