"""Many operations at once, and jobs that survive whatever happens: input, journal, pace, report.

Names are resolved when they are first used.
"""

from typing import TYPE_CHECKING

from rbim.lazy import homes, resolve

if TYPE_CHECKING:
    from rbim.bulk.fanout import Done, Failed, fan_out
    from rbim.bulk.formats import Format
    from rbim.bulk.job import Estimate, InviteJob, Job, RemoveJob, open_job
    from rbim.bulk.reading import RowFile
    from rbim.bulk.report import Report, read_report
    from rbim.bulk.rows import BadRow, Row
    from rbim.bulk.run import Run
    from rbim.bulk.tally import Snapshot

_HOME = {
    "rbim.bulk.fanout": "Done Failed fan_out",
    "rbim.bulk.formats": "Format",
    "rbim.bulk.job": "Estimate InviteJob Job RemoveJob open_job",
    "rbim.bulk.reading": "RowFile",
    "rbim.bulk.report": "Report read_report",
    "rbim.bulk.rows": "BadRow Row",
    "rbim.bulk.run": "Run",
    "rbim.bulk.tally": "Snapshot",
}
_WHERE = homes(_HOME)

__all__ = [
    "BadRow",
    "Done",
    "Estimate",
    "Failed",
    "Format",
    "InviteJob",
    "Job",
    "RemoveJob",
    "Report",
    "Row",
    "RowFile",
    "Run",
    "Snapshot",
    "fan_out",
    "open_job",
    "read_report",
]


def __getattr__(name: str) -> object:
    return resolve(globals(), _WHERE, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])
