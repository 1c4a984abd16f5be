"""``python -m tests.ci.mutants signatures``."""

import sys

from .command_line import main

sys.exit(main())
