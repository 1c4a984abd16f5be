"""``rbim callback send``: send signed test deliveries to a receiver."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
from attrs import evolve

from rbim._support import json as rbim_json
from rbim._support.text import excerpt
from rbim.callbacks.events import ConvType
from rbim.callbacks.signature import sign
from rbim.cli.callback.options import moment_of
from rbim.cli.context import callback_credentials, configuration
from rbim.cli.errors import BY_OUTCOME, print_error, print_note
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import one_value
from rbim.cli.json_output import show_json
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.targets import split_url
from rbim.errors import InvalidRequest, NotSent, TransportError
from rbim.http import Request
from rbim.transports._shared.connecting import EMULATOR
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from rbim.cli.callback.options import SendOptions
    from rbim.credentials import Credentials
    from rbim.dialect import TimeUnit

__all__ = ["run", "target_of", "without_secrets"]


def target_of(url: str, flag: str) -> Request:
    """Return a request to a URL. Raises InvalidRequest, which names the flag, unless it is an HTTP URL."""
    try:
        origin, path, query = split_url(url)
    except InvalidRequest:
        raise InvalidRequest(f"{flag}: invalid URL {without_secrets(url)!r}: use an http or https URL", field=flag) from None
    return Request(origin=origin, path=path, query=query)


def without_secrets(url: str) -> str:
    """Return a URL, which may be invalid, without user, password and query, which may have a key."""
    scheme, slashes, rest = url.partition("//") if "//" in url else ("", "", url)
    return f"{scheme}{slashes}{rest.rpartition('@')[2].partition('?')[0]}"


OK = 200
RECEIVER = "Is the receiver running? `rbim callback serve` starts one."
RESPONSE_TIMEOUT = 5.0  # seconds in which a receiver must answer (interface: Delivery rules, 4)
TEAM = "TEAM_"


def run(text: str | None, options: SendOptions) -> int:
    """Send the deliveries and return the exit code. Raises InvalidRequest before anything is sent."""
    now = datetime.now(UTC)
    now = now.replace(microsecond=now.microsecond // 1000 * 1000)  # as messages have it
    sent = now if options.timestamp is None else moment_of(options.timestamp, "--timestamp")
    config = configuration()
    credentials = callback_credentials(config)[0]
    target = target_of(options.url, "--url")
    if options.cacert is not None and not options.cacert.is_file():
        raise InvalidRequest(f"--cacert: {options.cacert}: no such file", field="--cacert")
    if options.body is None:
        bodies = _bodies(text, options, sent, credentials.app_id, config.dialect.message_time_unit)
    else:
        try:
            bodies = [options.body.read_bytes()] * options.times
        except OSError as error:
            raise InvalidRequest(f"--body: {options.body}: {error.strerror}", field="--body") from None
    code = anyio.run(_send, options, bodies, target, credentials)
    unknown_time = options.msg_id is not None and options.timestamp is None and options.body is None
    if unknown_time and code in {Exit.DONE, Exit.REFUSED}:
        when = now.isoformat(timespec="milliseconds")
        print_note(f"to send this message again: --msg-id {options.msg_id} --timestamp {when}")
    return code


def _bodies(text: str | None, options: SendOptions, sent: datetime, app_id: str, unit: TimeUnit) -> list[bytes]:
    """Return the bodies to send; copies of one message have one time. Raises InvalidRequest if flags are missing."""
    kind = options.msg_type.upper().replace("-", "_")
    conv_type = ConvType.NOTIFY_TEAM if kind.startswith(TEAM) else ConvType.TEAM if options.member else ConvType.PERSON
    try:
        members = [one_value(account, "--body") for account in options.member]
    except ValueError as error:
        raise InvalidRequest(f"--member: {error}", field="--member") from None
    message = CopiedMessage(
        conv_type=conv_type if options.conv_type is None else ConvType(options.conv_type),
        to=options.to,
        sender=options.sender,
        msg_type=kind,
        text=text,
        members=members or None,
    )
    found: list[bytes] = []
    for _ in range(options.times):
        msg_id = options.msg_id or f"m8{secrets.token_hex(8)}"
        document = message.body(app_id=app_id, msg_id=msg_id, sent=sent, unit=unit)
        try:
            found.append(rbim_json.dumps(document | {"resendFlag": "1"} if options.resend else document))
        except ValueError:
            raise InvalidRequest("the message has characters that cannot be encoded in UTF-8") from None
    return found


async def _send(options: SendOptions, bodies: list[bytes], target: Request, credentials: Credentials) -> Exit:
    """Send one delivery after the other; stop at the first without a response."""
    code, cacert = Exit.DONE, options.cacert
    # like the platform: no proxy of this machine
    async with HttpxTransport(trust_env=False, verify=True if cacert is None else str(cacert)) as transport:
        with suppress(NotSent):  # warm up, so that the first time measured is that of the receiver
            await transport.send(Request(origin="none://", path="/"), timeout=RESPONSE_TIMEOUT)
        for body in bodies:
            headers = {"Content-Type": "application/json", **sign(body, credentials=credentials, now=datetime.now(UTC))}
            request = evolve(target, headers=headers, body=body, repeatable=True)
            began = time.perf_counter()
            try:
                response = await transport.send(request, timeout=RESPONSE_TIMEOUT)
            except TransportError as error:
                cause, emulator, _ = str(error).partition(f": {EMULATOR}")
                print_error(f"delivery to {without_secrets(target.origin)} failed: {cause}", RECEIVER if emulator else "")
                return BY_OUTCOME[error.outcome]
            took = (time.perf_counter() - began) * 1000
            shown = excerpt(response.body) if response.status != OK and response.body else ""
            if options.as_json:
                show_json({"status": response.status, "milliseconds": round(took, 1), "body": shown}, more=True)
            else:
                sys.stdout.write(f"{response.status}  {took:.1f} ms{shown and f'  {shown}'}\n")
            sys.stdout.flush()
            if response.status != OK:
                code = Exit.REFUSED
    return code
