"""The connection to an emulator that runs: it gets a command only if it says itself that it is an emulator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

from rbim._support import json
from rbim._support.text import one_line
from rbim.cli.context import configuration
from rbim.cli.errors import BY_OUTCOME
from rbim.cli.exit_codes import Exit
from rbim.cli.global_flags import current_flags
from rbim.emulator.server.commands import ABOUT, PREFIX
from rbim.errors import InvalidRequest, NotSent, TransportError
from rbim.http import Request
from rbim.transports._shared.connecting import EMULATOR
from rbim.validators import origin

if TYPE_CHECKING:
    from rbim.http import Response
    from rbim.transports.httpx import HttpxTransport

__all__ = ["URL_VARIABLE", "Refused", "address", "ask"]

URL_VARIABLE = "RBIM_EMULATOR_URL"
DEFAULT = "http://127.0.0.1:8883"
TIMEOUT = 120.0  # seconds; to advance a clock takes as long as the receivers of copies take
LARGEST = 1 << 30  # bytes of an answer: the log of a long run
OK, INVALID = 200, 400
SHOWN = 400  # characters of a reason
RUN = "Start one with `rbim emulator`, or name its address with --url. During an outage, name that of its control port."
OTHER = (
    f"Nothing was sent to it but this GET. Name the address of an emulator with --url or {URL_VARIABLE}: `rbim emulator` "
    "prints it."
)


class Refused(Exception):
    """A command that was not carried out: the message, the next step, and the exit code."""

    def __init__(self, message: str, hint: str, code: Exit) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def address(url: str | None) -> str:
    """Return the base URL of the emulator: ``--url``, RBIM_EMULATOR_URL, the configured platform, or the default one.

    The address of a control interface is accepted, too. Raises InvalidRequest.
    """
    name, found = "--url", url or current_flags().base_url
    if found is None:
        name, found = URL_VARIABLE, os.environ.get(URL_VARIABLE) or None
    if found is None:
        name, found = "base_url", cast("str | None", configuration()["base_url"])
    try:
        return origin((found or DEFAULT).removesuffix(PREFIX).removesuffix(PREFIX.rstrip("/")))
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", field=name) from None


async def ask(base: str, method: str, path: str, body: Any) -> Any:  # JSON in and out; a body of None is none
    """Send a command and return its answer. Raises Refused, before the command is sent if this is no emulator."""
    from rbim.transports.httpx import HttpxTransport

    async with HttpxTransport(trust_env=False, answer_limit=LARGEST) as transport:
        index = await _send(transport, base, "GET", PREFIX, None)
        about = _document(index)
        told = cast("dict[str, Any]", about).get("about") if isinstance(about, dict) else None
        if index.status != OK or told != ABOUT:
            why = _reason(about)
            said = f": {why}" if why else ""
            raise Refused(f"{base} is no emulator of this rbim: HTTP {index.status} for {PREFIX}{said}", OTHER, Exit.USAGE)
        response = await _send(transport, base, method, path, body)
    document = _document(response)
    if response.status != OK:
        code = Exit.USAGE if response.status == INVALID else Exit.REFUSED
        raise Refused(_reason(document) or f"the emulator answered with HTTP {response.status}", "", code)
    return document


async def _send(transport: HttpxTransport, base: str, method: str, path: str, body: Any) -> Response:  # JSON
    content = b"" if body is None else json.dumps(body)
    headers = {"Content-Type": "application/json"}
    request = Request(method=method, origin=base, path=path, headers=headers, body=content)
    try:
        return await transport.send(request, timeout=TIMEOUT)
    except TransportError as error:
        if isinstance(error, NotSent):
            cause = str(error).removesuffix(f": {EMULATOR}")
            raise Refused(f"no emulator answers at {base}: {cause}", RUN, Exit.NOT_SENT) from None
        raise Refused(f"{base}: {error}", RUN if path == PREFIX else "", BY_OUTCOME[error.outcome]) from None


def _document(response: Response) -> Any:  # JSON; None if it is none
    try:
        return json.loads(response.body)
    except json.NotJson:
        return None


def _reason(document: Any) -> str:  # JSON
    """Return the reason of a refusal by an emulator; empty for any other document."""
    fields = cast("dict[str, Any]", document) if isinstance(document, dict) else {}
    return one_line(str(fields.get("error") or fields.get("statusMsg") or ""), SHOWN)
