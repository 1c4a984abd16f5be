"""``python -m tests.mutants signatures``."""

import sys

from .command_line import main

sys.exit(main())
