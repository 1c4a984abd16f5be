# ruff: noqa: INP001  # a folder of pages is no package
"""The page of rbim on a package index, made of README.md when a distribution is built (a metadata hook of hatchling).

On an index the README's links to files of the repository, and its pictures, would lead nowhere. With ``PROJECT_URL``, the
address of the repository, they become links to the files of this version there, and the index shows the project's links.
Without it, the words of a link stay and the pictures are left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent.parent
VARIABLE = "PROJECT_URL"
_PICTURE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>[^)\s:]+)\)\n*")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s:]+)\)")


def index_page(readme: str, url: str | None, version: str) -> str:
    """Return the page: no link and no picture in it is relative."""
    if url is None:
        return _LINK.sub(lambda found: found["text"], _PICTURE.sub("", readme))
    linked = _LINK.sub(lambda found: f"[{found['text']}]({url}/blob/v{version}/{found['path']})", readme)
    return _PICTURE.sub(lambda found: f"![{found['text']}]({url}/raw/v{version}/{found['path']})\n\n", linked)


def project_urls(url: str, version: str) -> dict[str, str]:
    """Return the project's links on an index."""
    return {
        "Repository": url,
        "Documentation": f"{url}/blob/v{version}/docs/index.md",
        "Changelog": f"{url}/blob/v{version}/CHANGELOG.md",
        "Security": f"{url}/blob/v{version}/docs/SECURITY.md",
    }


class IndexPage(MetadataHookInterface):
    """Sets ``readme``, and ``urls`` if the address of the repository is given."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Complete the metadata."""
        url, version = os.environ.get(VARIABLE, "").rstrip("/") or None, _version()
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_page(text, url, version)}
        if url is not None:
            metadata["urls"] = project_urls(url, version)


def _version() -> str:
    found = re.search('^__version__ = "([^"]+)"', (ROOT / "rbim" / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ValueError("rbim/__init__.py has no __version__")
    return found[1]
