"""The command line ``rbim``.

Needs the extra ``cli``. ``RBIM_IMPORT`` names modules that declare more operations, separated by commas; modules in the
working directory are found too. Each operation gets a command.
"""

from rbim.cli.entry_point import build_app, main, run
from rbim.cli.exit_codes import Exit

__all__ = ["Exit", "build_app", "main", "run"]
