"""The flags that the commands for jobs share, and the settings of a job that they make."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import frozen
from cyclopts import Parameter

from rbim.cli.lists import split_rates
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.client.limits import Rate

__all__ = ["Flag", "InputFlags", "OnUnknown", "OutputFlags", "PaceFlags", "ResultFlags"]

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
OnUnknown = Literal["auto", "resend", "report"]


@Parameter(name="*")
@frozen(kw_only=True)
class InputFlags:
    """The format of the input.

    Parameters
    ----------
    group
        The group of all rows, if the input has no group column.
    format
        The format of the input (default: by the ending of FILE, .csv, .tsv, .jsonl, .ndjson or .txt, or by its first line).
        A text has one account per line.
    encoding
        The encoding of the input (default: UTF-8); spreadsheets in China often write gb18030.
    delimiter
        The separator of CSV cells; `,` `;` `|` and tabs are detected.
    group_column
        The column with the group (default: the configured group_column, or group).
    account_column
        The column with the account (default: the configured account_column, or account).
    user_name_column
        The column with the acting account (default: the configured user_name_column, or user_name); the column is optional.
    """

    group: str | None = None
    format: Literal["csv", "jsonl", "text"] | None = None
    encoding: str | None = None
    delimiter: str | None = None
    group_column: str | None = None
    account_column: str | None = None
    user_name_column: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the options for RowFile."""
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
    """The rate of requests, and when to give up.

    Parameters
    ----------
    rate
        The maximum rate of requests: 50/s, 600/min, 1000/h. Several limits apply together.
    group_rate
        The maximum rate of requests to each group.
    concurrency
        The maximum number of requests in flight (default: 100).
    adaptive
        Adapt the rate to what the platform accepts, within all rate limits (default: yes).
    max_failures
        Stop when more requests than this have failed: a number, a share such as 20%, or none for no limit (default: 50%).
    patience
        Give up after this many seconds without a response (default: 120).
    isolate
        The maximum number of extra requests for splitting refused ones in half, to find the account that causes the refusal
        (default: 0).
    """

    rate: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    group_rate: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = ()
    concurrency: int | None = None
    adaptive: bool | None = None
    max_failures: str | None = None
    patience: float | None = None
    isolate: int | None = None

    def settings(self, kept: Sequence[Rate] = ()) -> dict[str, Any]:
        """Return the settings of a job that were given. Raises InvalidRequest.

        ``kept`` are its present rates: the rates for all groups, or for each group, stay unless new ones of that kind are
        given.
        """
        from attrs import evolve

        from rbim.client.limits import Rate

        given: dict[str, Any] = {
            "concurrency": self.concurrency,
            "adaptive": self.adaptive,
            "patience": self.patience,
            "isolate": self.isolate,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.rate or self.group_rate:
            all_groups = [*map(Rate.parse, split_rates(self.rate))] or [rate for rate in kept if not rate.each_group]
            each_group = [evolve(Rate.parse(text), each_group=True) for text in split_rates(self.group_rate)]
            given["rates"] = [*all_groups, *(each_group or [rate for rate in kept if rate.each_group])]
        if self.max_failures is not None:
            given["max_failures"] = _failures(self.max_failures)
        return given


@Parameter(name="*")
@frozen(kw_only=True)
class OutputFlags:
    """The display of progress, and the form of the report.

    Parameters
    ----------
    as_json
        Print the report as one JSON object, and nothing else, on standard output.
    plain
        Print progress on standard error as lines instead of a bar.
    quiet
        Print no progress.
    """

    as_json: Annotated[bool, Parameter(name="--json", negative=(), show_default=False)] = False
    plain: Flag = False
    quiet: Flag = False


@Parameter(name="*")
@frozen(kw_only=True)
class ResultFlags:
    """The files that are written at the end.

    Parameters
    ----------
    not_done
        Write the rows that were not done, with the reason, to this file. It has the format of the input and can be used as
        input again.
    plot
        Draw the throughput of the job over time into this file (.png or .svg).
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
        f"--max-failures: invalid value {text!r}: use a number, a share such as 20%, or none", field="max_failures"
    )
