"""Where things stand in the checkout."""

from pathlib import Path

import rbim

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DOCS = ROOT / "docs"
PACKAGE = Path(rbim.__file__).resolve().parent
