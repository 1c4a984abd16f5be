"""The command line ``rbim``.

Needs the extra ``cli``. ``RBIM_IMPORT`` names modules (separated by commas, from the working directory too) that declare
more operations; each gets a command.
"""

from rbim.cli.entry_point import build_app, main, run
from rbim.cli.exit_codes import Exit

__all__ = ["Exit", "build_app", "main", "run"]
