# noqa: INP001  # a folder of pages is no package
"""The site: ``sphinx-build -W --keep-going -n docs build/site``. It is built offline, and every warning is an error."""

import sys
from pathlib import Path

import rbim

sys.path.insert(0, str(Path(__file__).parent))

project = "rbim"
author = "The rbim authors"
version = release = rbim.__version__
project_copyright = author
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "_derive.references"]
exclude_patterns = ["README.zh.md", "zh", "examples"]
nitpicky = True
nitpick_ignore = [("py:class", "Resource")]  # a type variable
show_warning_types = True

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"rbim {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
