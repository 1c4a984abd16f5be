# ruff: noqa: F403, F405, INP001  # everything of the English configuration, but for what stands here
"""The Chinese site: the pages of this folder. It has no reference: links to it lead to the English one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from conf import *

language = "zh_CN"
extensions = ["myst_parser", "sphinx_copybutton", "_derive.languages"]
exclude_patterns = []
locale_dirs = [str(HERE / "_locale")]
html_theme_options = edit_link("docs/zh")
