# noqa: INP001  # a folder of pages is no package
"""Write the derived pages and the derived parts of pages: ``python docs/derive.py``.

With ``--check`` the script writes nothing, and the exit code is 1 if a page does not match the code. The build of the
site and the tests make the same check. The Chinese pages, ``docs/zh``, have the same parts as the English ones: what the
generators make is put into Chinese with the dictionaries of ``_derive/words``. ``internals`` is in English alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _derive import mutants, performance, simulation  # noqa: E402  # the path comes first
from _derive.architecture import house  # noqa: E402  # the path comes first
from _derive.chinese import dictionaries  # noqa: E402  # the path comes first
from _derive.description import description_page  # noqa: E402  # the path comes first
from _derive.dialect import dialect_page  # noqa: E402  # the path comes first
from _derive.emulator import commands, copy_faults, request_faults  # noqa: E402  # the path comes first
from _derive.events import event_classes, event_fields  # noqa: E402  # the path comes first
from _derive.faults import faults  # noqa: E402  # the path comes first
from _derive.fuzz import fuzz  # noqa: E402  # the path comes first
from _derive.operations import operations_page  # noqa: E402  # the path comes first
from _derive.promises import promises  # noqa: E402  # the path comes first
from _derive.proxies import proxies  # noqa: E402  # the path comes first
from _derive.soak import soak  # noqa: E402  # the path comes first
from _derive.supply_chain import supply_chain  # noqa: E402  # the path comes first

__all__ = ["derived", "outdated"]

PAGES = {
    "operations.md": operations_page,
    "dialect.md": dialect_page,
    "internals/description.md": description_page,
}
REGIONS = {
    "callbacks.md": {"event fields": event_fields, "event classes": event_classes},
    "emulator.md": {"commands": commands, "faults": request_faults, "copy-faults": copy_faults},
    "transports.md": performance.regions(),
    "internals/performance.md": performance.goals(),
    "internals/architecture.md": {"house": house},
    "internals/reliability.md": {
        "promises": promises,
        "faults": faults,
        "proxies": proxies,
        "simulation": simulation.runs,
        "mutants": mutants.areas,
        "fuzz": fuzz,
        "soak": soak,
        "supply chain": supply_chain,
    },
}

CHINESE = dictionaries()
"""The words of the Chinese pages that have derived parts."""


def derived() -> dict[Path, str]:
    """Return the text of each derived page or file, by its path."""
    pages: dict[Path, str] = {}
    for name, make in PAGES.items():
        made = make()
        pages[HERE / name] = made if name not in CHINESE else _linked(made, f"English · [简体中文](zh/{name})")
        if name in CHINESE:
            pages[HERE / "zh" / name] = _linked(CHINESE[name].chinese(made), f"[English](../{name}) · 简体中文")
    for name, regions in REGIONS.items():
        made_of = {region: make() for region, make in regions.items()}
        pages[HERE / name] = _with_regions(HERE / name, made_of)
        if name in CHINESE:
            translated = {region: CHINESE[name].chinese(made) for region, made in made_of.items()}
            pages[HERE / "zh" / name] = _with_regions(HERE / "zh" / name, translated)
    return pages


def _with_regions(page: Path, made_of: dict[str, str]) -> str:
    """Return the text of a page, with what was made in its regions."""
    text = page.read_text(encoding="utf-8")
    for region, made in made_of.items():
        begin, end = f"<!-- derived: {region} -->\n", "<!-- end -->\n"
        pattern = f"({re.escape(begin)}).*?({re.escape(end)})"
        escaped = made.replace("\\", r"\\")
        text, times = re.subn(pattern, rf"\g<1>{escaped}\g<2>", text, flags=re.DOTALL)
        if times != 1:
            raise LookupError(f"{page.relative_to(HERE.parent)} has {times} places for {region}")
    return text


def _linked(page: str, line: str) -> str:
    """Return a page with the line that leads to the other language below its title."""
    return page.replace("\n", f"\n\n{line}\n", 1)


def outdated() -> list[Path]:
    """Return the pages that do not match the code."""
    return [path for path, text in derived().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write the outdated pages, or only report them; return the exit code."""
    check = sys.argv[1:] == ["--check"]
    for path in (stale := outdated()):
        if not check:
            path.write_text(derived()[path], encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(HERE.parent)} {'does not match the code' if check else 'written'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
