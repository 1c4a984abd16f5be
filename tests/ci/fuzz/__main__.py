"""``python -m tests.ci.fuzz run http_responses --seconds 600``."""

import sys

from .command_line import main

sys.exit(main())
