"""``rbim doctor``: find the usual causes of trouble, from the configuration to the credentials."""

from __future__ import annotations

import asyncio
import platform
import sys
import time
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

from cyclopts import Parameter
from cyclopts.validators import Number

from rbim import __version__
from rbim.cli.context import HOW_TO_CONFIGURE, configuration, make_client, nats_settings
from rbim.cli.errors import CREDENTIALS
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import MissingExtra
from rbim.cli.folding import fold, terminal_columns
from rbim.cli.json_output import show_json
from rbim.cli.output import console
from rbim.cli.printable import printable
from rbim.dialect_text import flag_of
from rbim.emulator.server.own_headers import EMULATED
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
    from collections.abc import AsyncIterator

    from rbim.config.config import Config

__all__ = ["doctor"]

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
LEFT = 22  # columns before the text: those of the state, and of the name
SEARCHED = "rbim-doctor"  # the name of a group that is searched for
EXACT, FAR = 60.0, 300.0  # seconds by which clocks may differ without a warning, and without a failure
OTHER_SERVER = (
    "A proxy, a gateway or another server may have answered: compare the address with the marks of the platform in"
    " docs/platform.md; then check --api-version (`rbim dialect api_version`)"
)
NATS_ADVICE = "Check the address, that NATS runs there with JetStream (nats-server -js), and RBIM_NATS_CREDS_FILE"

Seconds = Annotated[float, Parameter(validator=Number(gt=0, lte=60))]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]


class _Check(NamedTuple):
    """The result of a check: its ``state`` (a key of STYLES), a text, and what to do, if anything."""

    name: str
    state: str
    text: str
    advice: str = ""


def doctor(*, via: str | None = None, timeout: Seconds = 5.0, as_json: Json = False) -> int:
    """Check the configuration, the way to the platform, the clock and the credentials.

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
    checks: list[_Check] = []

    async def run() -> None:
        async for check in _checks(via, timeout):
            checks.append(check)
            if not as_json:
                _print(check)

    asyncio.run(run())
    failed = [check.name for check in checks if check.state == "fail"]
    if as_json:
        rows = [{"check": each.name, "state": each.state, "text": each.text, "advice": each.advice} for each in checks]
        show_json({"ok": not failed, "checks": rows})
    elif failed:
        sys.stdout.write(f"failed: {', '.join(failed)}\n")
    return Exit.REFUSED if failed else Exit.DONE


def _print(check: _Check) -> None:
    """Write a check to standard output at once, folded at the width of the terminal."""
    from rich.text import Text

    columns = terminal_columns(sys.stdout)
    texts = [printable(check.text), *([f"-> {printable(check.advice)}"] if check.advice else [])]
    lines = "\n".join(text if columns is None else fold(text, columns - LEFT, "") for text in texts).split("\n")
    shown = Text().append(f"{check.state:<6}", style=STYLES[check.state]).append(f"{check.name:<{LEFT - 6}}", style="bold")
    console().print(shown.append(f"\n{'':{LEFT}}".join(lines)), soft_wrap=True)
    sys.stdout.flush()


async def _checks(  # one check after the other
    via: str | None, seconds: float
) -> AsyncIterator[_Check]:
    """Yield the result of each check, in order; one that needs an earlier one is skipped if that one failed."""
    yield _Check("versions", "ok", f"rbim {__version__}, Python {platform.python_version()} on {platform.system()}")
    warnings: list[str] = []
    try:
        config = configuration(warnings.append)
    except InvalidRequest as error:
        advice = "; ".join(getattr(error, "__notes__", ())) or "`rbim config path` lists the files"
        yield _Check("configuration", "fail", error.message, advice)
        return
    found = ", ".join(str(place.path) for place in config.places if place.exists) or "none"
    variables = ", ".join(sorted({s.source.variable for s in config.values.values() if s.source.variable})) or "none"
    yield _Check("configuration", "ok", f"profile: {config.profile or 'none'}; files: {found}; variables: {variables}")
    for warning in warnings:
        text, _, advice = warning.rpartition(". ")
        yield _Check("files", "warn", text or advice, advice if text else "")
    if config.missing:
        yield _Check("settings", "fail", "; ".join(config.missing), HOW_TO_CONFIGURE)
    else:
        yield _Check("settings", "ok", f"base URL {_named(config, 'base_url')}, application {_named(config, 'app_id')}")
    reached = config["base_url"] is not None
    for name, key in (("connection", "base_url"), ("connection of calls", "call_base_url")):
        if config[key] is not None and (key == "base_url" or config[key] != config["base_url"]):
            async for check in _reach(name, str(config[key]), config, seconds):
                reached = reached and (check.state != "fail" or key != "base_url")
                yield check
    if config.missing or not reached:
        cause = "the platform was not reached" if not reached else "the configuration is not complete"
        yield _Check("credentials", "skip", cause)
    else:
        yield await _ask(config, seconds)
    yield _callbacks(config)
    if via is not None:
        async for check in _nats_servers(via, config, seconds):
            yield check


def _named(config: Config, key: str) -> str:
    setting = config.values[key]
    return f"{setting.value} ({f'flag {flag_of(key)}' if setting.source.argument else setting.source})"


async def _reach(name: str, url: str, config: Config, seconds: float) -> AsyncIterator[_Check]:
    """Send one unsigned request to an address, as calls are sent: it shows the way there, and the clock at its end."""
    from rbim.http import Request
    from rbim.transports._shared.network import proxy_for
    from rbim.transports.auto import transport_named

    parts = urlsplit(url)
    if parts.scheme == "http" and parts.hostname not in {"localhost", "127.0.0.1", "::1"}:
        text = f"{parts.hostname} is used without TLS: others on the way can read requests and repeat them"
        yield _Check("address", "warn", text, "Use https:// if the platform offers it")
    origin = f"{parts.scheme}://{parts.netloc}"
    proxy = proxy_for(origin, None, trust_env=True)
    if proxy is not None:
        through = urlsplit(proxy)
        yield _Check("proxy", "ok", f"requests go through {through.hostname}:{through.port}, as the environment says")
    try:
        async with transport_named(config["transport"]) as transport:
            began = time.time()
            response = await transport.send(Request(method="GET", origin=origin, path="/"), timeout=seconds)
    except (RbimError, MissingExtra, ModuleNotFoundError) as error:
        text, _, advice = getattr(error, "message", str(error)).partition("): ")
        yield _Check(name, "fail", text + (")" if advice else ""), advice or "Check the address")
        return
    took = time.time() - began
    server = response.headers.get("server", "")
    yield _Check(name, "ok", f"{origin} answered in {took * 1000:.0f} ms{f' (Server: {server})' if server else ''}")
    if name == "connection":
        yield _clock(response.headers.get("date"), began + took / 2, emulated=server == EMULATED)


async def _ask(config: Config, seconds: float) -> _Check:
    """Search for a group: it shows whether the platform accepts the credentials."""
    from rbim.client.retry import Retry
    from rbim.operations.groups import SearchPublicGroups

    try:
        client = make_client(config, retry=Retry(attempts=1), timeout=seconds, deadline=seconds)
    except InvalidRequest as error:
        return _Check("credentials", "fail", error.message, "Correct this setting")
    began = time.perf_counter()
    try:
        async with client:
            await client.send(SearchPublicGroups(name=SEARCHED))
    except RbimError as error:
        return _failed(error)
    took = (time.perf_counter() - began) * 1000
    return _Check("credentials", "ok", f"accepted: a search was answered in {took:.0f} ms")


def _failed(error: RbimError) -> _Check:
    """Return the check for an error of the search."""
    state, advice = "fail", "Run it again later, or give it more time: --timeout"
    match error:
        case NotFound() | ProtocolError():
            advice = OTHER_SERVER
        case ApiError() if not error.code and error.status in {401, 403, 407}:  # a page, not an answer of the platform
            advice = OTHER_SERVER
        case TimestampExpired():
            advice = "Check the clock of this machine, and --zone (`rbim dialect zone`)"
        case AuthenticationError():
            advice = CREDENTIALS
        case Throttled():
            state, advice = "warn", "The platform limits requests now: run it again later"
        case ApiError():
            if error.status < 500:  # noqa: PLR2004  # from 500 on, the server has trouble
                state, advice = "warn", f"Credentials may be right; the search is refused. {OTHER_SERVER}"
        case NotSent():
            advice = "No connection: see the checks above"
        case _:
            pass
    text = f"{error.operation}: {error.message}" if error.operation else error.message
    return _Check("credentials", state, text, advice)


def _clock(date: str | None, now: float, *, emulated: bool) -> _Check:
    """Compare this machine's time, in epoch seconds, with the Date header of an answer."""
    if date is None:
        return _Check("clock", "skip", "there was no answer with a Date header")
    try:
        theirs = parsedate_to_datetime(date)
    except ValueError:
        return _Check("clock", "warn", "the Date header of the answer cannot be read")
    theirs = theirs if theirs.tzinfo is not None else theirs.replace(tzinfo=UTC)
    ahead = now - theirs.timestamp() - 0.5  # the header is cut to whole seconds
    whose = "the emulated clock of the emulator" if emulated else "the platform's"
    if abs(ahead) <= EXACT:
        return _Check("clock", "ok", f"within {max(1, round(abs(ahead)))} s of {whose}")
    text = f"this machine's clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} {whose}"
    if emulated:
        return _Check("clock", "warn", text, "If the emulator refuses timestamps, advance its clock or start it again")
    advice = "Set the clock (NTP): signatures of requests and of callbacks depend on it"
    return _Check("clock", "fail" if abs(ahead) > FAR else "warn", text, advice)


def _callbacks(config: Config) -> _Check:
    """Return how many applications' signatures on callbacks are accepted."""
    try:
        found = config.callback_credentials()
    except InvalidRequest as error:
        if config["callback_credentials_file"] is None:
            return _Check("callbacks", "skip", "they need the credentials of the application, or a file with others")
        return _Check("callbacks", "fail", error.message, 'The file holds [{"app_id": "...", "app_token": "..."}]')
    names = ", ".join(dict.fromkeys(each.app_id for each in found))
    return _Check("callbacks", "ok", f"signatures of {names} are accepted (tokens: {len(found)})")


async def _nats_servers(via: str, config: Config, seconds: float) -> AsyncIterator[_Check]:
    """Check whether each server of a location such as nats://h1,h2/copies answers. Nothing is created on them."""
    try:
        settings = nats_settings(config)
        from rbim.jetstream.connection import Connection
        from rbim.jetstream.settings import location

        connections = {
            server: Connection((server,), settings, name="rbim doctor", prepare=lambda jetstream: jetstream.account_info())
            for server in location(via)[0]
        }
    except (InvalidRequest, MissingExtra) as error:
        yield _Check("nats servers", "fail", getattr(error, "message", str(error)), "Correct --via, or the setting")
        return
    for server, connection in connections.items():
        async with connection:
            try:
                async with asyncio.timeout(seconds):
                    await connection.jetstream()
            except TimeoutError:
                cause = connection.failure or f"no answer within {seconds:g} s"
                check = _Check("nats servers", "fail", f"{server}: {cause}", NATS_ADVICE)
            else:
                check = _Check("nats servers", "ok", f"{server} answers, with JetStream")
        yield check
