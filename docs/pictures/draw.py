# noqa: INP001  # a folder of pictures is no package
"""Draw the pictures of the pages: ``python docs/pictures/draw.py [architecture] [demo] [invite] [soak]`` (default: all).

The terminal pictures show the output of the commands, which run against the emulator for each drawing. So their figures
differ each time. That of a soak is drawn from the recorded run. The benchmarks' charts are drawn by
``python -m benchmarks --plot docs/pictures``.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from architecture import architecture  # noqa: E402  # the path comes first
from soak_chart import soak  # noqa: E402  # the path comes first
from terminal import demo, invite  # noqa: E402  # the path comes first

__all__ = ["PICTURES"]

PICTURES = {"architecture": architecture, "demo": demo, "invite": invite, "soak": soak}
"""The function that draws each picture, by the name of the picture; the file has this name with ``.svg``."""


def main() -> int:
    """Draw the pictures that the command line names; return the exit code."""
    asked = sys.argv[1:] or list(PICTURES)
    unknown = [name for name in asked if name not in PICTURES]
    if unknown:
        sys.stderr.write(f"no such picture: {', '.join(unknown)}; there are {', '.join(PICTURES)}\n")
        return 2
    for name in asked:
        path = HERE / f"{name}.svg"
        path.write_text(PICTURES[name](), encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
