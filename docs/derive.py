# noqa: INP001  # a folder of pages is no package
"""Write the derived pages and the derived parts of pages: ``python docs/derive.py``.

With ``--check`` the script writes nothing, and the exit code is 1 if a page does not match the code. The build of the
site and the tests make the same check.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _derive import mutants, performance, simulation  # noqa: E402  # the path comes first
from _derive.architecture import house, layers  # noqa: E402  # the path comes first
from _derive.description import description_page  # noqa: E402  # the path comes first
from _derive.dialect import dialect_page  # noqa: E402  # the path comes first
from _derive.exits import exits  # noqa: E402  # the path comes first
from _derive.faults import faults  # noqa: E402  # the path comes first
from _derive.fuzz import fuzz  # noqa: E402  # the path comes first
from _derive.operations import operations_page  # noqa: E402  # the path comes first
from _derive.promises import promises  # noqa: E402  # the path comes first
from _derive.proxies import proxies  # noqa: E402  # the path comes first
from _derive.soak import soak  # noqa: E402  # the path comes first
from _derive.supply_chain import supply_chain  # noqa: E402  # the path comes first

__all__ = ["derived", "outdated"]

PAGES = {"operations.md": operations_page, "dialect.md": dialect_page, "description.md": description_page}
REGIONS = {
    "architecture.md": {"house": house, "layers": layers},
    "errors.md": {"exits": exits},
    "performance.md": performance.regions(),
    "reliability.md": {
        "promises": promises,
        "faults": faults,
        "proxies": proxies,
        "simulation": simulation.runs,
        "mutants": mutants.areas,
        "surviving mutants": mutants.survivors,
        "fuzz": fuzz,
        "soak": soak,
        "supply chain": supply_chain,
    },
}


def derived() -> dict[Path, str]:
    """Return the text of each derived page, by its path."""
    pages = {HERE / name: make() for name, make in PAGES.items()}
    for name, regions in REGIONS.items():
        text = (HERE / name).read_text(encoding="utf-8")
        for region, make in regions.items():
            begin, end = f"<!-- derived: {region} -->\n", "<!-- end -->\n"
            pattern = f"({re.escape(begin)}).*?({re.escape(end)})"
            made = make().replace("\\", r"\\")
            text, times = re.subn(pattern, rf"\g<1>{made}\g<2>", text, flags=re.DOTALL)
            if times != 1:
                raise LookupError(f"{name} has {times} places for {region}")
        pages[HERE / name] = text
    return pages


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
