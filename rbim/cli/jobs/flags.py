"""The flags that the commands for jobs share, and what they say to a job."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import frozen
from cyclopts import Parameter

from rbim.cli.exit_codes import JobExit
from rbim.cli.global_flags import EVERYWHERE
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.client.limits import Rate

__all__ = ["EXITS", "Flag", "InputFlags", "OnUnknown", "OutputFlags", "PaceFlags", "ResultFlags", "exits"]

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
OnUnknown = Literal["auto", "resend", "report"]


def exits(*codes: JobExit) -> str:
    """Return the sentence of a command's help that lists exit codes."""
    return f"Exit codes: {'; '.join(f'{int(code)} {code.meaning}' for code in sorted(codes))}."


EXITS = f"{exits(*JobExit)}\n\n{EVERYWHERE}"


@Parameter(name="*")
@frozen(kw_only=True)
class InputFlags:
    """How the input is written.

    Parameters
    ----------
    group
        The group of all rows, where the input has no column for it.
    format
        Unless told, by FILE's ending (.csv, .tsv, .jsonl, .ndjson, .txt) or its first line. A text has an account a line.
    encoding
        UTF-8 unless told; gb18030 is what spreadsheets in China write.
    delimiter
        What stands between the cells of CSV, unless it is `,` `;` `|` or a tab.
    group_column
        The column of groups: `group` unless told.
    account_column
        The column of accounts: `account` unless told.
    user_name_column
        The column of acting accounts: `user_name` unless told; it need not be there.
    """

    group: str | None = None
    format: Literal["csv", "jsonl", "text"] | None = None
    encoding: str | None = None
    delimiter: str | None = None
    group_column: str | None = None
    account_column: str | None = None
    user_name_column: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the options of RowFile."""
        return {
            "group": self.group,
            "kind": self.format,
            "encoding": self.encoding,
            "delimiter": self.delimiter,
            "group_column": self.group_column,
            "account_column": self.account_column,
            "user_name_column": self.user_name_column,
        }


@Parameter(name="*")
@frozen(kw_only=True)
class PaceFlags:
    """How fast, and when to give up.

    Parameters
    ----------
    rate
        At most so many requests: 50/s, 600/min, 1000/h. Several hold at once.
    group_rate
        At most so many requests to each group.
    concurrency
        At most so many requests at once: 100 unless told.
    adaptive
        Follow what the platform bears, below all rates: yes unless told.
    max_failures
        End when more requests than this have failed: a number, a share such as 20%, or none. 50% unless told.
    patience
        End when no answer has come for so many seconds: 120 unless told.
    isolate
        Spend so many requests on halving those that are refused, to find the account to blame: 0 unless told.
    """

    rate: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    group_rate: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    concurrency: int | None = None
    adaptive: bool | None = None
    max_failures: str | None = None
    patience: float | None = None
    isolate: int | None = None

    def settings(self, kept: Sequence[Rate] = ()) -> dict[str, Any]:
        """Return the settings of a job that were told. Raises InvalidRequest.

        ``kept`` are the rates that it has: those of a kind of which none was told go on.
        """
        from attrs import evolve

        from rbim.client.limits import Rate

        told: dict[str, Any] = {
            "concurrency": self.concurrency,
            "adaptive": self.adaptive,
            "patience": self.patience,
            "isolate": self.isolate,
        }
        told = {name: value for name, value in told.items() if value is not None}
        if self.rate or self.group_rate:
            all_groups = [*map(Rate.parse, self.rate)] or [rate for rate in kept if not rate.each_group]
            each_group = [evolve(Rate.parse(text), each_group=True) for text in self.group_rate]
            told["rates"] = [*all_groups, *(each_group or [rate for rate in kept if rate.each_group])]
        if self.max_failures is not None:
            told["max_failures"] = _failures(self.max_failures)
        return told


@Parameter(name="*")
@frozen(kw_only=True)
class OutputFlags:
    """What is said meanwhile, and how the report is written.

    Parameters
    ----------
    as_json
        Print the report as one JSON object, and nothing else on standard output.
    plain
        Print lines on standard error instead of a progress bar.
    quiet
        Say nothing about the progress.
    """

    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False
    plain: Flag = False
    quiet: Flag = False


@Parameter(name="*")
@frozen(kw_only=True)
class ResultFlags:
    """What is written at the end.

    Parameters
    ----------
    not_done
        Write the rows that were not done to this file, as the input has them and with the reason, ready to be fed back.
    plot
        Draw the course of the job into this file, .png or .svg.
    """

    not_done: Path | None = None
    plot: Path | None = None


_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")


def _failures(text: str) -> float | None:
    if text == "none":
        return None
    if share := _SHARE.fullmatch(text):
        return float(share[1]) / 100
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    raise InvalidRequest(
        f"--max-failures: a number, a share such as 20%, or none is needed, not {text!r}", field="max_failures"
    )
