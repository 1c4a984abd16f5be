"""One request that only reads: it shows the platform's clock, and whether it accepts the credentials."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from rbim.cli.context import make_client
from rbim.cli.doctor.check import Check, State
from rbim.cli.errors import CREDENTIALS
from rbim.cli.extras import MissingExtra
from rbim.client.retry import Retry
from rbim.emulator.server.own_headers import EMULATED
from rbim.errors import (
    ApiError,
    AuthenticationError,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    NotSent,
    ProtocolError,
    RbimError,
    ServerTrouble,
    Throttled,
    TimestampExpired,
)
from rbim.operations.groups import SearchPublicGroups
from rbim.transports.auto import transport_named

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rbim.cli.doctor.check import Report
    from rbim.config.config import Config
    from rbim.http import Request, Response, Transport

__all__ = ["ask"]

NAME = "rbim-doctor"  # the name that is searched for
EXACT = 60.0  # seconds by which clocks may differ without a warning
FAR = 300.0  # seconds by which they may differ without a failure
OF_EMULATOR = (
    "The clock of this machine may be right. If the emulator refuses timestamps, advance its clock or start it again"
)
OTHER_SERVER = "Compare the address with the marks of the platform in docs/platform.md"


class _Recording:
    """A transport that keeps Date and Server of the last response, and this machine's time in the middle of its request."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.date: str | None = None
        self.server: str | None = None
        self.ours = 0.0

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._transport.__aexit__(kind, error, trace)

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # as a transport
        began = time.time()
        response = await self._transport.send(request, timeout=timeout)
        self.ours = (began + time.time()) / 2
        self.date, self.server = response.headers.get("date"), response.headers.get("server")
        return response


async def ask(config: Config, report: Report, *, seconds: float) -> None:
    """Report the difference of the clocks, and whether the platform accepts the credentials."""
    try:
        recording = _Recording(transport_named(config["transport"]))
        client = make_client(config, transport=recording, retry=Retry(attempts=1), timeout=seconds, deadline=seconds)
    except (InvalidRequest, MissingExtra, ModuleNotFoundError) as error:
        advice = "Correct this setting" if isinstance(error, InvalidRequest) else "Install it, or choose another --transport"
        report(Check("clock", State.SKIP, "the platform was not asked"))
        report(Check("credentials", State.FAIL, getattr(error, "message", str(error)), advice))
        return
    began = time.perf_counter()
    try:
        async with client:
            await client.send(SearchPublicGroups(name=NAME))
        took = (time.perf_counter() - began) * 1000
        check = Check("credentials", State.OK, f"accepted: a search was answered in {took:.0f} ms")
    except RbimError as error:
        check = _failed(error)
    report(_clock(recording))
    report(check)


def _clock(recording: _Recording) -> Check:
    if recording.date is None:
        return Check("clock", State.SKIP, "there was no answer with a Date header")
    try:
        theirs = parsedate_to_datetime(recording.date)
    except ValueError:
        return Check("clock", State.WARN, "the Date header of the answer cannot be read")
    theirs = theirs if theirs.tzinfo is not None else theirs.replace(tzinfo=UTC)
    ahead = recording.ours - theirs.timestamp() - 0.5  # the header is cut to whole seconds
    emulated = recording.server == EMULATED
    if abs(ahead) <= EXACT:
        whose = "the emulated clock of the emulator" if emulated else "the platform's"
        return Check("clock", State.OK, f"within {max(1, round(abs(ahead)))} s of {whose}")
    here = datetime.fromtimestamp(recording.ours, UTC)
    text = f"this machine is {_duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the platform"
    text += f" ({here:%Y-%m-%d %H:%M:%S} and {theirs.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC)"
    if emulated:
        return Check("clock", State.WARN, text.replace("the platform", "the emulated clock of the emulator"), OF_EMULATOR)
    advice = "Set the clock (NTP): signatures of requests and of callbacks depend on it"
    return Check("clock", State.FAIL if abs(ahead) > FAR else State.WARN, text, advice)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02}:{whole % 60:02} h" if hours else f"{minutes}:{whole % 60:02} min"


def _failed(error: RbimError) -> Check:
    """Return the check for an error of the search."""
    text = f"{error.operation}: {error.message}" if error.operation else error.message
    match error:
        case TimestampExpired():
            state, advice = State.FAIL, "Check the clock of this machine, and --zone (`rbim dialect zone`)"
        case AuthenticationError():
            state, advice = State.FAIL, CREDENTIALS
        case Throttled():
            state, advice = State.WARN, "The platform limits requests now: run it again later"
        case NotFound() | ProtocolError():
            state, advice = State.FAIL, f"{OTHER_SERVER}; then check --version (`rbim dialect version`)"
        case ServerTrouble():
            state, advice = State.FAIL, "The platform has trouble: run it again later"
        case ApiError():
            state, advice = State.WARN, f"Credentials may be right; the search is refused. {OTHER_SERVER}"
        case NotSent():
            state, advice = State.FAIL, "No connection: see the checks above"
        case DeadlineExceeded():
            state, advice = State.FAIL, "Give it more time: --timeout"
        case _:
            state, advice = State.FAIL, "If the address begins with http://, try https://"
    return Check("credentials", state, text, advice)
