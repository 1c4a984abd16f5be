"""``python -m tests.soak client --minutes 15``."""

import sys

from .command_line import main

sys.exit(main())
