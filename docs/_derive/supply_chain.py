"""The derived part of the page on reliability about the supply chain: the recorded answers of ``tests.ci.supply_chain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .markdown import table

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["supply_chain"]

RECORDED = Path(__file__).resolve().parent.parent / "internals" / "proof" / "supply_chain.json"


def supply_chain() -> str:
    """Return the table of the questions and their answers."""
    document: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    rows = [[f"`poe {name}`", _WORDS[name](each), f"{each['date']}, `{each['commit']}`"] for name, each in document.items()]
    return f"\n{table(['task', 'answer', 'when'], rows)}\n"


def _lowest(answer: Mapping[str, Any]) -> str:
    alone = answer["without pytest"]
    return f"{answer['passed']}; with the lowest anyio, too, the demo invites {alone['invited']:,} accounts"


_WORDS = {
    "reproducible": lambda answer: (
        f"the same bytes twice: {', '.join(f'`{name}`' for name in answer['same'])}; SHA-256 of the wheel"
        f" `{answer['sha256 of the wheel'][:16]}...`"
    ),
    "sdist": lambda answer: f"{answer['files']} files, which are all of the repository; {answer['passed']}",
    "licences": lambda answer: (
        f"{answer['packages']['core']} packages with rbim, {answer['packages']['all']} with `rbim[all]`, all with a licence"
        " of the list"
    ),
    "lowest": _lowest,
}
