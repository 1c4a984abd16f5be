"""``python -m tests.ci.browser pictures``: take pictures of the local pages for README and docs, in ``docs/pictures``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))

import anyio  # the path to the helpers comes first

from helpers.paths import ROOT
from helpers_ci import browser as chromium

from . import pictures, pictures_of_commands

PICTURES = pictures.PICTURES | pictures_of_commands.PICTURES
FOLDER = ROOT / "docs" / "pictures"


async def take(names):
    async with chromium.launched() as browser:
        for take_them in dict.fromkeys(PICTURES[name] for name in names):
            async for path in take_them(browser, FOLDER, [name for name in names if PICTURES[name] is take_them]):
                sys.stdout.write(f"{path} {path.stat().st_size / 1000:.0f} kB\n")


def main():
    """Take the pictures that the command line names (default: all); return the exit code."""
    command, *names = sys.argv[1:] or [""]
    unknown = [name for name in names if name not in PICTURES]
    if command != "pictures" or unknown:
        sys.stderr.write(f"usage: python -m tests.ci.browser pictures [{'] ['.join(PICTURES)}]\n")
        return 2
    if chromium.MISSING:
        sys.stderr.write("needs chromium, of Debian's package of this name, and the extra ci\n")
        return 2
    anyio.run(take, names or list(PICTURES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
