"""The flags that the commands for jobs share, and the settings of a job that they make."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, Any

from attrs import frozen
from cyclopts import Parameter

from rbim.cli.flag_types import Flag, Json, Repeated, whole  # cyclopts reads it
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rbim.client.limits import Rate

__all__ = ["Count", "InputFlags", "PaceFlags", "RestFlags", "ResultFlags", "StartFlags"]


Count = Annotated[int, Parameter(converter=whole)]


@Parameter(name="*", group="Input")
@frozen(kw_only=True)
class InputFlags:
    """The format of the input.

    Parameters
    ----------
    group
        The group of all rows, if the input has no group column.
    encoding
        The encoding of the input (default: UTF-8, or UTF-16 if it has its mark); spreadsheets in China often write gb18030.
    sheet
        The sheet of a workbook (default: the first one).
    no_header
        The input has no header; its columns are 1, 2, ... (default: the group is 1 and the account 2).
    header_line
        The line of the header, if there are others above it (default: the first line).
    group_column
        The column with the group (default: the configured group_column, or group, or a usual name such as group_id).
    account_column
        The column with the account (default: the configured account_column, or account, or a usual name such as phone).
    allow_damaged
        Accept accounts and groups that a spreadsheet or an export seems to have damaged, such as 1.38E+10, #N/A or NULL.
    max_bad
        Send nothing if more rows than this are invalid: a number, or a share such as 1% (default: no limit).
    user_name
        The acting account for rows that name none (default: RBIM_USER_NAME).
    """

    group: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    no_header: Flag = False
    header_line: Count | None = None
    group_column: str | None = None
    account_column: str | None = None
    allow_damaged: Flag = False
    max_bad: str | None = None
    user_name: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the options for RowFile. Raises InvalidRequest."""
        if self.no_header and self.header_line is not None:
            raise InvalidRequest("--no-header and --header-line: give one of them", field="header")
        names = ("group", "encoding", "sheet", "group_column", "account_column", "allow_damaged")
        return {name: getattr(self, name) for name in names} | {
            "header": 0 if self.no_header else self.header_line,
            "max_bad": None if self.max_bad is None else _limit(self.max_bad, "max_bad"),
        }


INPUT, PACE, RESUME = Parameter(group="Input"), Parameter(group="Pace"), Parameter(group="Resume")


@Parameter(name="*")
@frozen(kw_only=True)
class StartFlags:
    """How a new job begins.

    Parameters
    ----------
    chunk
        Accounts per request (default: the maximum of the platform for an invitation).
    limit
        Send at most this many accounts now, as a trial: the first ones in the order of sending, a chunk of each group in
        turn. `rbim job resume` sends the rest.
    journal
        The journal (default: the input's name with .invite.journal or .remove.journal; for standard input, a new file in
        the working directory).
    dry_run
        Only print what would be sent; needs no credentials and writes no journal. For an invitation it warns of groups with
        more accounts than any group can hold.
    """

    chunk: Annotated[Count | None, PACE] = None
    limit: Annotated[Count | None, PACE] = None
    journal: Annotated[Path | None, RESUME] = None
    dry_run: Annotated[Flag, INPUT] = False


@Parameter(name="*", group="Pace")
@frozen(kw_only=True)
class PaceFlags:
    """The rate of requests, and when to give up.

    Parameters
    ----------
    rate
        The maximum rate of requests: 50/s, 600/min, 1000/h. Several limits apply together. Processes on several machines
        share 50/s@postgresql://HOST/DATABASE#NAME; give it again to resume, or have it in `rates` of the configuration.
    group_rate
        The maximum rate of requests to each group.
    concurrency
        The maximum number of requests in flight (default: 100).
    max_failures
        Stop when more requests than this have failed: a number, a share of the latest such as 20%, or none for no limit
        (default: 50%).
    patience
        Give up after this many seconds without a response, or without progress (default: 120).
    """

    rate: Repeated = ()
    group_rate: Repeated = ()
    concurrency: Count | None = None
    max_failures: str | None = None
    patience: float | None = None

    def settings(self, kept: Sequence[Rate] = ()) -> dict[str, Any]:
        """Return the settings of a job that were given. Raises InvalidRequest.

        ``kept`` are its present rates: the rates for all groups, or for each group, stay unless new ones of that kind are
        given.
        """
        from attrs import evolve

        given = {name: getattr(self, name, None) for name in ("concurrency", "patience", "isolate")}
        given = {name: value for name, value in given.items() if value is not None}
        if self.rate or self.group_rate:
            all_groups = _rates(self.rate, "--rate") or [rate for rate in kept if not rate.each_group]
            each_group = [evolve(rate, each_group=True) for rate in _rates(self.group_rate, "--group-rate")]
            given["rates"] = [*all_groups, *(each_group or [rate for rate in kept if rate.each_group])]
        if self.max_failures is not None:
            given["max_failures"] = _limit(self.max_failures, "max_failures")
        return given


@Parameter(name="*", group="Pace")
@frozen(kw_only=True)
class RestFlags(PaceFlags):
    """The pace of the rest of a job.

    Parameters
    ----------
    isolate
        The maximum number of extra requests for splitting refused ones in half, to find the account that causes the refusal
        (default: 0).
    """

    isolate: Count | None = None


@Parameter(name="*", group="Results")
@frozen(kw_only=True)
class ResultFlags:
    """The display of progress, the form of the report, and the file that is written at the end.

    Parameters
    ----------
    as_json
        Print the report as one JSON object, and nothing else, on standard output.
    quiet
        Print no progress.
    not_done
        Write the rows that were not done, with the reason, to this file. It has the format of the input and can be used as
        input again. `rbim job report` writes other files, and a plot.
    """

    as_json: Json = False
    quiet: Flag = False
    not_done: Path | None = None


def _rates(texts: tuple[str, ...], flag: str) -> list[Rate]:
    """Return the rates of a flag; commas may separate several, as in RBIM_RATES. Raises InvalidRequest."""
    from rbim.client.limits import Rate

    try:
        return [Rate.parse(part.strip()) for text in texts for part in text.split(",") if part.strip()]
    except InvalidRequest as error:
        cause = error.message.removeprefix(f"{error.field}: ").removeprefix("rate: ")
        raise InvalidRequest(f"{flag}: {cause}", field="rate") from None


WHOLE = 100  # percent
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")


def _limit(text: str, name: str) -> float | None:
    """Return a count (int) or a share (float), None for no limit. Raises InvalidRequest."""
    if text == "none":
        return None
    share = _SHARE.fullmatch(text)
    if share and float(share[1]) <= WHOLE:
        return float(share[1]) / WHOLE
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    raise InvalidRequest(
        f"--{name.replace('_', '-')}: invalid value {text!r}: use a number, a share such as 20% (at most 100%), or none",
        field=name,
    )
