"""Jobs: one operation for every row of a file, with a journal that survives crashes.

The public names are imported on first use.
"""

from typing import TYPE_CHECKING

from rbim._support.lazy_names import lazy_names

if TYPE_CHECKING:
    from rbim.bulk.input.file import RowFile as RowFile
    from rbim.bulk.input.rows import BadRow as BadRow, Row as Row
    from rbim.bulk.job import (
        Estimate as Estimate,
        InviteJob as InviteJob,
        Job as Job,
        RemoveJob as RemoveJob,
        open_job as open_job,
    )
    from rbim.bulk.journal.forget import forget_job as forget_job
    from rbim.bulk.progress import Snapshot as Snapshot
    from rbim.bulk.report.model import Report as Report
    from rbim.bulk.report.reading import read_report as read_report
    from rbim.bulk.run import Run as Run
    from rbim.bulk.settings import JobOptions as JobOptions, RunOptions as RunOptions
    from rbim.client.fan_out import Done as Done, Failed as Failed, fan_out as fan_out
else:
    __getattr__, __dir__ = lazy_names(__name__)
