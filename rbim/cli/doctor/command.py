"""``rbim doctor``. Heavy imports happen when it is called."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from rbim.cli.exit_codes import Exit

if TYPE_CHECKING:
    from rbim.cli.doctor.check import Check

__all__ = ["doctor"]

TIMEOUT = 5.0

Seconds = Annotated[float, Parameter(validator=Number(gt=0, lte=60))]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]


def doctor(*, via: str | None = None, timeout: Seconds = TIMEOUT, as_json: Json = False) -> int:
    """Check the installation, the configuration, the way to the platform, the clock and the credentials.

    Each check is a line: ok, warn, fail or skip, and below it what to do. The credentials are checked by one search for a
    group, an operation that only reads. Nothing is changed, and no line shows a token. Exit code 0: no check failed. 1: one
    failed.

    Parameters
    ----------
    via
        Also check these NATS servers, as for `rbim callback serve --inbox`: nats://h1,h2,h3/copies.
    timeout
        Seconds that each check may take.
    as_json
        Print the checks as one JSON object.
    """
    import anyio

    from rbim.cli.doctor.examination import examine
    from rbim.cli.doctor.lines import print_check
    from rbim.cli.json_output import show_json

    checks: list[Check] = []

    def report(check: Check) -> None:
        checks.append(check)
        if not as_json:
            print_check(check)

    anyio.run(examine, report, via, timeout)
    failed = [check for check in checks if check.state == "fail"]
    if as_json:
        rows = [{"check": each.name, "state": each.state, "text": each.text, "advice": each.advice} for each in checks]
        show_json({"ok": not failed, "checks": rows})
    elif failed:
        sys.stdout.write(f"failed: {', '.join(check.name for check in failed)}\n")
    return Exit.REFUSED if failed else Exit.DONE
