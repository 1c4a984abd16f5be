"""The command line ``rbim``: operations derived from the catalogue, a demonstration, the emulator. Needs the extra ``cli``.

``RBIM_IMPORT`` names modules (separated by commas, from the working directory too) that declare operations of one's own.
"""

from rbim.cli.entry_point import build_app, main, run
from rbim.cli.exit_codes import Exit

__all__ = ["Exit", "build_app", "main", "run"]
