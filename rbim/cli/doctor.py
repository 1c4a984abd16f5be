"""``rbim doctor``: find the usual causes of trouble, from the configuration to the credentials."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from rbim import __version__
from rbim._support.text import printable
from rbim.cli.context import HOW_TO_CONFIGURE, configuration, make_client
from rbim.cli.errors import CREDENTIALS, MissingExtra
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Json  # noqa: TC001  # cyclopts reads it
from rbim.cli.folding import fold, terminal_columns
from rbim.cli.json_output import show_json
from rbim.cli.output import console
from rbim.emulator.asgi import EMULATED
from rbim.errors import (
    ApiError,
    AuthenticationError,
    InvalidRequest,
    NotFound,
    NotSent,
    ProtocolError,
    RbimError,
    Throttled,
    TimestampExpired,
)

if TYPE_CHECKING:
    from rbim.config import Config

__all__ = ["doctor"]

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
LEFT = 22  # columns before the text: those of the state, and of the name
EXACT, FAR = 60.0, 300.0  # seconds by which clocks may differ without a warning, and without a failure
OTHER_SERVER = (
    "A proxy, a gateway or another server may have answered: compare the address with the marks of the platform"
    " (`rbim help questions#is-this-my-platform`); then check --dialect api_version (`rbim dialect`)"
)

REFUSED = f"Credentials may be right; the search is refused. {OTHER_SERVER}"
LATER = "Run it again later, or give it more time: --timeout"
VERDICTS: tuple[tuple[type[RbimError] | tuple[type[RbimError], ...], str, str], ...] = (
    (InvalidRequest, "fail", "Correct this setting"),
    (TimestampExpired, "fail", "Check the clock of this machine, and --dialect zone (`rbim dialect`)"),
    (AuthenticationError, "fail", CREDENTIALS),
    (Throttled, "warn", "The platform limits requests now: run it again later"),
    ((NotFound, ProtocolError), "fail", OTHER_SERVER),
    (NotSent, "fail", "No connection: see the checks above"),
    (ApiError, "warn", REFUSED),
    (RbimError, "fail", LATER),
)
"""The state and the advice for an error of the search, the first that fits."""

Seconds = Annotated[float, Parameter(validator=Number(gt=0, lte=60))]
Tell = Callable[..., None]  # takes the name of a check, its state (a key of STYLES), a text, and what to do, if anything


def doctor(*, timeout: Seconds = 5.0, as_json: Json = False) -> int:
    """Check the configuration, the way to the platform, the clock and the credentials.

    Each check is a line: ok, warn, fail or skip, and below it what to do. The credentials are checked by one search for a
    group, an operation that only reads. Nothing is changed, and no line shows a token. Exit code 0: no check failed. 1: one
    failed.

    Parameters
    ----------
    timeout
        Seconds that each check may take.
    as_json
        Print the checks as one JSON object.
    """
    checks: list[dict[str, str]] = []

    def tell(name: str, state: str, text: str, advice: str = "") -> None:
        checks.append({"check": name, "state": state, "text": text, "advice": advice})
        if not as_json:
            _print(name, state, [printable(text), *([f"-> {printable(advice)}"] if advice else [])])

    asyncio.run(_check(tell, timeout))
    failed = [each["check"] for each in checks if each["state"] == "fail"]
    if as_json:
        show_json({"ok": not failed, "checks": checks})
    elif failed:
        sys.stdout.write(f"failed: {', '.join(failed)}\n")
    return Exit.REFUSED if failed else Exit.DONE


def _print(name: str, state: str, texts: list[str]) -> None:
    """Write a check to standard output at once, folded at the width of the terminal."""
    from rich.text import Text

    columns = terminal_columns(sys.stdout)
    lines = "\n".join(text if columns is None else fold(text, columns - LEFT, "") for text in texts).split("\n")
    shown = Text().append(f"{state:<6}", style=STYLES[state]).append(f"{name:<{LEFT - 6}}", style="bold")
    console().print(shown.append(f"\n{'':{LEFT}}".join(lines)), soft_wrap=True)
    sys.stdout.flush()


async def _check(tell: Tell, seconds: float) -> None:
    """Make all checks, in order; one that needs an earlier one is skipped if that one failed."""
    tell("versions", "ok", f"rbim {__version__}, Python {platform.python_version()} on {platform.system()}")
    warnings: list[str] = []
    try:
        config = configuration(warnings.append)
    except InvalidRequest as error:
        advice = "; ".join(getattr(error, "__notes__", ())) or "`rbim config path` shows the file"
        tell("configuration", "fail", error.message, advice)
        return
    found = str(config.place.path) if config.place is not None and config.place.exists else "none"
    variables = ", ".join(sorted({s.source for s in config.values.values() if s.source.startswith("RBIM_")})) or "none"
    tell("configuration", "ok", f"profile: {config.profile or 'none'}; file: {found}; variables: {variables}")
    for warning in warnings:
        text, _, advice = warning.rpartition(". ")
        tell("files", "warn", text, advice)

    if config.missing:
        tell("settings", "fail", "; ".join(config.missing), HOW_TO_CONFIGURE)
    else:
        named: list[str] = []
        for key in ("base_url", "app_id"):
            value, source = config.values[key].value, config.values[key].source
            named.append(f"{value} ({'flag --' + key.replace('_', '-') if source == 'argument' else source})")
        tell("settings", "ok", f"base URL {named[0]}, application {named[1]}")

    url, calls = config["base_url"], config["call_base_url"]
    reached = url is not None and await _reach(tell, "connection", str(url), config, seconds)
    if calls is not None and calls != url:
        await _reach(tell, "connection of calls", str(calls), config, seconds)
    if reached and not config.missing:
        await _ask(tell, config, seconds)
    else:
        tell("credentials", "skip", "the configuration is not complete" if reached else "the platform was not reached")
    _callbacks(tell, config)


async def _reach(tell: Tell, name: str, url: str, config: Config, seconds: float) -> bool:
    """Send one unsigned request to an address, as calls are sent: it shows the way there, and the clock at its end."""
    from rbim.http import Request
    from rbim.transports._shared.proxies import proxy_for
    from rbim.transports.auto import transport_named

    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        text = f"{parts.hostname} is used without TLS: others on the way can read requests and repeat them"
        tell("address", "warn", text, "Use https:// if the platform offers it")
    origin = f"{parts.scheme}://{parts.netloc}"
    try:
        proxy = proxy_for(origin, None, trust_env=True)
    except ValueError as error:
        text, _, advice = str(error).partition(": use ")
        tell("proxy", "fail", text, f"Use {advice}")
        return False
    if proxy is not None:
        through = proxy.rpartition("@")[2].rpartition("/")[2]
        tell("proxy", "ok", f"requests go through {through}, as the environment says")
    try:
        async with transport_named(config["transport"]) as transport:
            began = time.time()
            response = await transport.send(Request(method="GET", origin=origin, path="/"), timeout=seconds)
    except (
        RbimError,
        MissingExtra,
        ModuleNotFoundError,
    ) as error:
        text, _, advice = getattr(error, "message", str(error)).partition("): ")
        tell(name, "fail", text + (")" if advice else ""), advice or "Check the address")
        return False
    took = time.time() - began
    server = response.headers.get("server", "")
    tell(name, "ok", f"{origin} answered in {took * 1000:.0f} ms{f' (Server: {server})' if server else ''}")
    if name == "connection":
        _compare_clocks(tell, response.headers.get("date"), began + took / 2, emulated=server == EMULATED)
    return True


def _compare_clocks(tell: Tell, date: str | None, now: float, *, emulated: bool) -> None:
    """Compare this machine's time, in epoch seconds, with the Date header of an answer."""
    if date is None:
        tell("clock", "skip", "there was no answer with a Date header")
        return
    try:
        theirs = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        tell("clock", "warn", "the Date header of the answer cannot be read")
        return
    theirs = theirs if theirs.tzinfo is not None else theirs.replace(tzinfo=UTC)
    ahead = now - theirs.timestamp() - 0.5  # the header is cut to whole seconds
    whose = "the emulated clock of the emulator" if emulated else "the platform's"
    text = f"this machine's clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} {whose}"
    if abs(ahead) <= EXACT:
        tell("clock", "ok", f"within {max(1, round(abs(ahead)))} s of {whose}")
    elif emulated:
        tell("clock", "warn", text, "If the emulator refuses timestamps, advance its clock or start it again")
    else:
        advice = "Set the clock (NTP): signatures of requests and of callbacks depend on it"
        tell("clock", "fail" if abs(ahead) > FAR else "warn", text, advice)


async def _ask(tell: Tell, config: Config, seconds: float) -> None:
    """Search for a group: it shows whether the platform accepts the credentials."""
    from rbim.client.retry import Retry
    from rbim.operations.groups import SearchPublicGroups

    began = time.perf_counter()
    try:
        async with make_client(config, retry=Retry(attempts=1), timeout=seconds, deadline=seconds) as client:
            await client.send(SearchPublicGroups(name="rbim-doctor"))
    except RbimError as error:
        text = f"{error.operation}: {error.message}" if error.operation else error.message
        state, advice = next((state, advice) for kind, state, advice in VERDICTS if isinstance(error, kind))
        if isinstance(error, ApiError) and advice == REFUSED and error.status >= 500:  # noqa: PLR2004  # it has trouble
            state, advice = "fail", LATER
        tell("credentials", state, text, advice)
    else:
        tell("credentials", "ok", f"accepted: a search was answered in {(time.perf_counter() - began) * 1000:.0f} ms")


def _callbacks(tell: Tell, config: Config) -> None:
    try:
        keys = config.callback_credentials()
    except InvalidRequest as error:
        if config["callback_credentials_file"] is None:
            tell("callbacks", "skip", "they need the credentials of the application, or a file with others")
        else:
            tell("callbacks", "fail", error.message, 'The file holds [{"app_id": "...", "app_token": "..."}]')
    else:
        names = ", ".join(dict.fromkeys(each.app_id for each in keys))
        tell("callbacks", "ok", f"signatures of {names} are accepted (tokens: {len(keys)})")
