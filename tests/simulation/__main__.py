"""``python -m tests.simulation job --seed 7``."""

import sys

from . import virtual_time

virtual_time.install()  # before rbim is imported

from .command_line import main  # noqa: E402

sys.exit(main())
