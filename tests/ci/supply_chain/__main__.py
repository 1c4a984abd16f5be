"""``python -m tests.ci.supply_chain reproducible``."""

import sys

from .command_line import main

sys.exit(main())
