"""All checks, in order. A check that needs an earlier one is skipped if that one failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.cli.context import configuration
from rbim.cli.doctor.check import Check, State
from rbim.cli.doctor.local import callbacks, files, installed, nats_files, settings, versions
from rbim.cli.doctor.network import reach
from rbim.cli.doctor.platform import ask
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from rbim.cli.doctor.check import Report
    from rbim.config.config import Config

__all__ = ["examine"]


async def examine(report: Report, via: str | None, timeout: float) -> None:  # noqa: ASYNC109  # of each check
    """Run all checks and report each. ``timeout``: seconds that each may take."""
    report(versions())
    report(installed())
    warnings: list[str] = []
    try:
        config = configuration(warnings.append)
    except InvalidRequest as error:
        advice = "; ".join(getattr(error, "__notes__", ())) or "`rbim config path` lists the files"
        report(Check("configuration", State.FAIL, error.message, advice))
        return
    report(files(config))
    for warning in warnings:
        text, _, advice = warning.rpartition(". ")
        report(Check("files", State.WARN, text or advice, advice if text else ""))
    report(settings(config))
    reached = config["base_url"] is not None
    for name, key in (("", "base_url"), (" of calls", "call_base_url")):
        if config[key] is not None and (not name or config[key] != config["base_url"]):
            found = await reach(str(config[key]), report, suffix=name, seconds=timeout)
            reached = reached and (found or bool(name))
    await _ask(config, report, timeout, reached=reached)
    report(callbacks(config))
    report(nats_files(config))
    if via is not None:
        from rbim.cli.doctor.nats import nats_servers

        await nats_servers(via, config, report, seconds=timeout)


async def _ask(config: Config, report: Report, timeout: float, *, reached: bool) -> None:  # noqa: ASYNC109  # of the check
    if not config.missing and reached:
        await ask(config, report, seconds=timeout)
        return
    cause = "the platform was not reached" if not reached else "the configuration is not complete"
    for name in ("clock", "credentials"):
        report(Check(name, State.SKIP, cause))
