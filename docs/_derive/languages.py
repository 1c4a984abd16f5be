"""An extension for Sphinx: what joins the English site and the Chinese one, which is its folder ``zh``.

- Each page knows the same page in the other language, or the other index if there is none (``other`` in the templates).
- A link to a page of the other language (``../transports.md``, ``zh/machines.md``) leads there. Sphinx knows only the pages
  of one site.
- The search finds Chinese. Chinese has no blanks between words, so each two neighbouring characters are indexed as a word,
  and a query is divided in the same way: a page is found if it has all pairs. This needs no dictionary, and index and query
  agree about where a word ends.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from sphinx.application import Sphinx

__all__ = ["setup"]

DOCS = Path(__file__).resolve().parent.parent
CHINESE = DOCS / "zh"
GENERATED = frozenset({"genindex", "search"})
"""Pages that Sphinx makes for every site."""

BOTH = "English · 简体中文"
"""A line with a link to the other language. Readers of the repository need it; the site has its own switch."""


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the extension to Sphinx."""
    app.add_search_language(Words)
    app.connect("doctree-read", _across)
    app.connect("html-page-context", _other)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class Words(SearchEnglish):
    """The search of both sites: English words, and pairs of Chinese characters."""

    lang = "words"  # language_name stays: it names the stemmer
    js_splitter_code = r"""
var splitQuery = (query) =>
  query.split(/[^\p{Letter}\p{Number}_]+/gu).flatMap((text) => text.match(/\p{Script=Han}+|[^\p{Script=Han}]+/gu) ?? [])
    .flatMap((word) => {
      const characters = [...word];
      if (!/\p{Script=Han}/u.test(word) || characters.length < 3) return [word];
      return characters.slice(1).map((character, before) => characters[before] + character);
    });
"""
    _han = re.compile("[㐀-䶿一-鿿豈-﫿]+")

    def split(self, input: str) -> list[str]:  # noqa: A002  # the base class names it
        """Divide a text into what is indexed."""
        pairs = [run[at : at + 2] for run in self._han.findall(input) for at in range(max(1, len(run) - 1))]
        return [*super().split(self._han.sub(" ", input)), *pairs]


def _other(app: Sphinx, name: str, _: str, context: dict[str, Any], __: object) -> None:
    """Give the templates the address of the page in the other language."""
    chinese = Path(app.srcdir) == CHINESE
    there = DOCS if chinese else CHINESE
    kept = name in GENERATED or _is_page(there / name)
    root = str(context["content_root"])
    context["other"] = f"{root}{'../' if chinese else 'zh/'}{name if kept else 'index'}.html"
    context["chinese"] = chinese


def _across(app: Sphinx, page: nodes.document) -> None:
    """Make links to pages of the other language lead there, and those to files of the repository to the repository.

    A line that has only a link to the other language is dropped.
    """
    here = Path(app.srcdir)
    name = app.env.docname
    up = "../" * (len(here.relative_to(DOCS).parts) + name.count("/"))
    for link in list(page.findall(pending_xref)):
        target = here / str(link["reftarget"])  # outside of this site it is a whole path; without a suffix
        if link.get("refdomain") != "doc" or str(link["reftarget"]) in app.env.found_docs:
            continue
        line = cast("nodes.Element", link.parent)
        if line.astext() == BOTH:
            line.parent.remove(line)
            continue
        anchor = f"#{link['reftargetid']}" if link.get("reftargetid") else ""
        if _is_page(target):
            address = f"{up}{target.relative_to(DOCS).as_posix()}.html"
        elif url := os.environ.get("PROJECT_URL", "").rstrip("/"):
            address = f"{url}/blob/main/{target.relative_to(DOCS.parent).as_posix()}.md"
        else:  # the words stay
            link.replace_self(link.children)
            continue
        link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=f"{address}{anchor}"))


def _is_page(target: Path) -> bool:
    """Return whether a file without its suffix is a page of one of the sites."""
    if not target.is_relative_to(DOCS) or target.name.endswith(".zh") or DOCS / "examples" in target.parents:
        return False
    return any(target.with_name(f"{target.name}{suffix}").is_file() for suffix in (".md", ".rst"))
