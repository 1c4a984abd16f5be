"""Every link of the pages leads to a file and a heading that exist; the README, the site and the pages know all pages.

The build of the site checks its own links too, and takes half a minute; this test reads the text, as a repository shows it.
"""

import re

import pytest

from helpers.pages import FENCE
from helpers.paths import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
OF_THE_SITE = {"index.md", "changelog.md"}
"""Pages that the README needs no link to: it is an index itself, and the changelog stands beside it."""


def prose(page):
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)


def headings(page):
    return re.findall(r"^#+ +(.*?) *$", prose(page), re.MULTILINE)


def anchor(heading):
    """Return the anchor that a repository and the site give to a heading: words joined by hyphens, in lower case."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors(page):
    return {anchor(each) for each in headings(page)} | {*re.findall(r"^\(([\w-]+)\)=$", prose(page), re.MULTILINE)}


def links(page):
    text = re.sub(r"`[^`\n]*`", "`", prose(page))
    return re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text)


def name(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    broken = []
    for link in links(page):
        if re.match(r"\w+:", link):
            continue
        path, _, wanted = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (wanted and target.suffix == ".md" and wanted not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_headings_of_a_page_are_unique(page):
    """Two equal ones would have anchors with numbers, which change when one is added."""
    found = [anchor(heading) for heading in headings(page)]
    assert sorted(found) == sorted(set(found))


def test_the_titles_of_the_pages_are_unique():
    pages = [page for page in DOCS.glob("*.md") if not page.name.endswith(".zh.md")]
    titles = [titles[0] for page in pages if (titles := headings(page))]
    assert sorted(titles) == sorted(set(titles))


def test_the_readme_and_the_site_list_every_page():
    pages = {page.name for page in DOCS.glob("*.md")}
    readme = {link.partition("#")[0].removeprefix("docs/") for link in links(ROOT / "README.md")}
    assert pages - readme == OF_THE_SITE
    trees = FENCE.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    lines = [line for _, language, text in trees if language == "{toctree}" for line in text.splitlines()]
    listed = {re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and not line.startswith(":")}
    assert {page.removesuffix(".md") for page in pages} - listed == {"index", "README.zh"}


def test_the_page_on_windows_and_macos_lists_each_branch_of_the_code():
    branch = re.compile(r"sys\.platform|\bos\.name\b|hasattr\((?:os|signal|select), ")
    files = [path for path in (ROOT / "rbim").rglob("*.py") if branch.search(path.read_text(encoding="utf-8"))]
    rows = re.findall(r"^\| (`.*?\.py`) \|", (DOCS / "windows-macos.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {each for row in rows for each in re.findall(r"`([^`]+)`", row)}
    assert listed == {str(path.relative_to(ROOT / "rbim")) for path in files}
