# noqa: INP001  # a folder of pages is no package
"""The English site; ``zh/conf.py`` is the Chinese one, built into its folder ``zh``. ``poe docs`` builds both.

Both are built offline, and every warning is an error. With the variable ``PROJECT_URL``, the address of the repository, each
page has a link to edit it there. ``_derive/languages.py`` has the links between the two, and the search.
"""

import os
import sys
from pathlib import Path

import rbim

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "rbim"
author = "The rbim authors"
version = release = rbim.__version__
project_copyright = author
language = "en"

extensions = ["myst_parser", "sphinx_copybutton", "sphinx.ext.autodoc", "_derive.references", "_derive.languages"]
exclude_patterns = ["README.zh.md", "zh", "examples"]
nitpicky = True
nitpick_ignore = [("py:class", "Resource")]  # a type variable
show_warning_types = True

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"rbim {version}"
html_static_path = [str(HERE / "_static")]
templates_path = [str(HERE / "_templates")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_search_language = "words"  # of _derive/languages.py: English and Chinese
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "languages.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
pygments_style = "friendly"
pygments_dark_style = "github-dark"

copybutton_exclude = ".linenos, .gp, .go"  # prompts, and what a command prints


def edit_link(folder: str) -> dict[str, str]:
    """Return the theme's options for the link to edit a page of this folder, if the address of the repository is known."""
    url = os.environ.get("PROJECT_URL", "").rstrip("/")
    if not url:
        return {}
    return {"source_edit_link": f"{url}/edit/main/{folder}/{{filename}}", "top_of_page_buttons": ["edit"]}


html_theme_options = edit_link("docs")

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
