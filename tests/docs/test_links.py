"""Every link of the pages leads to a file and a heading that exist; the README, the site and the pages know all pages.

The build of the site checks its own links too, and takes half a minute; this test reads the text, as a repository shows it.
"""

import re

from helpers.pages import FENCE
from helpers.paths import DOCS, ROOT

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
OF_THE_SITE = {"index.md", "changelog.md"}
"""Pages that the README needs no link to: it is an index itself, and the changelog stands beside it."""


def prose(page):
    return re.sub(r"<!--.*?-->", "", FENCE.sub("", page.read_text(encoding="utf-8")), flags=re.DOTALL)


def anchors(page):
    """Return the anchors that a repository and the site give to headings: words joined by hyphens, in lower case."""
    text = prose(page)
    titles = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).lower() for each in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    ]
    return [re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles]


def labels(page):
    return re.findall(r"^\(([\w-]+)\)=$", prose(page), re.MULTILINE)


def links(page):
    text = re.sub(r"`[^`\n]*`", "`", prose(page))
    return re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", text)


def test_every_link_leads_to_a_file_and_a_heading():
    known = {page: {*anchors(page), *labels(page)} for page in PAGES}
    broken = []
    for page in PAGES:
        for link in links(page):
            path, _, wanted = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if re.match(r"\w+:", link) or (target.exists() and (not wanted or wanted in known.get(target, {wanted}))):
                continue
            broken.append((page.relative_to(ROOT).as_posix(), link))
    assert broken == []


def test_the_headings_of_a_page_are_unique():
    """Two equal ones would have anchors with numbers, which change when one is added."""
    found = {page.name: anchors(page) for page in PAGES}
    assert {name: each for name, each in found.items() if len(set(each)) < len(each)} == {}


def test_the_readme_and_the_site_list_every_page():
    pages = {page.name for page in DOCS.glob("*.md")}
    readme = {link.partition("#")[0].removeprefix("docs/") for link in links(ROOT / "README.md")}
    assert pages - readme == OF_THE_SITE
    trees = FENCE.findall((DOCS / "index.md").read_text(encoding="utf-8"))
    lines = [line for _, language, text in trees if language == "{toctree}" for line in text.splitlines()]
    listed = {re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and not line.startswith(":")}
    assert {page.removesuffix(".md") for page in pages} - listed == {"index", "README.zh"}


def test_the_page_on_architecture_lists_each_branch_on_the_operating_system():
    branch = re.compile(r"sys\.platform|\bos\.name\b|hasattr\((?:os|signal|select), ")
    files = [path for path in (ROOT / "rbim").rglob("*.py") if branch.search(path.read_text(encoding="utf-8"))]
    page = (DOCS / "internals" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?\.py`) \|", page[page.index("## Operating systems") :], re.MULTILINE)
    listed = {each for row in rows for each in re.findall(r"`([^`]+)`", row)}
    assert listed == {str(path.relative_to(ROOT / "rbim")) for path in files}
