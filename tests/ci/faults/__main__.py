"""``python -m tests.ci.faults``: run the matrix over every transport, and record it for the page on reliability."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import anyio  # the path to the helpers comes first

from helpers.transports import TRANSPORTS
from helpers_ci.proof import about, write_proof

from .matrix import TESTED, recorded_rows, run, wrong


def main() -> int:
    told = about(**{name: metadata.version(name) for name in ("httpx", "httpx2", "aiohttp", "h11", "httptools")})
    cells = {}
    for module in TESTED:
        backend = TRANSPORTS[module][2][0]
        cells[module] = anyio.run(run, module, backend=backend)
        sys.stdout.write(f"{module} on {backend}: {len(cells[module])} cells\n")
    broken = [why for found in cells.values() for cell in found if (why := wrong(cell))]
    sys.stdout.writelines(f"{why}\n" for why in broken)
    if not broken:
        write_proof("faults", told | {"transports": list(TESTED)}, "cells", recorded_rows())
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
