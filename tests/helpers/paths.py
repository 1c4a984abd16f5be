"""Where things stand in the checkout."""

from pathlib import Path

import rbim

HELPERS = Path(__file__).resolve().parent
TESTS = HELPERS.parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
PACKAGE = Path(rbim.__file__).resolve().parent
