"""``rbim callback send``: send signed test deliveries to a receiver."""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003  # attrs resolves it
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import anyio
from attrs import evolve, frozen

from rbim._support import json as rbim_json
from rbim._support.text import excerpt
from rbim.callbacks.events import ConvType
from rbim.callbacks.signature import sign
from rbim.cli.context import callback_credentials, configuration
from rbim.cli.errors import BY_OUTCOME, print_error, print_note
from rbim.cli.exit_codes import Exit
from rbim.cli.json_output import show_json
from rbim.cli.lists import one_value
from rbim.emulator.copies.messages import CopiedMessage
from rbim.errors import InvalidRequest, NotSent, TransportError
from rbim.http import Request
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from rbim.credentials import Credentials
    from rbim.dialect import TimeUnit

__all__ = ["SendOptions", "run", "target_of", "without_user"]


def target_of(url: str, flag: str) -> Request:
    """Return a request to a URL. Raises InvalidRequest, which names the flag, unless it is an HTTP URL."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            return Request(origin=f"{parts.scheme}://{parts.netloc}", path=parts.path or "/", query=query)
    except ValueError:  # an invalid port or IPv6 address
        pass
    raise InvalidRequest(f"{flag}: invalid URL {without_user(url)!r}: use an http or https URL", field=flag)


def without_user(url: str) -> str:
    """Return a URL, which may be invalid, without its user and password."""
    scheme, slashes, rest = url.partition("//") if "//" in url else ("", "", url)
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


OK = 200
RESPONSE_TIMEOUT = 5.0  # seconds in which a receiver must answer (interface: Delivery rules, 4)
TEAM = "TEAM_"


@frozen(kw_only=True)
class SendOptions:
    """The deliveries to send, their number, and the receiver."""

    msg_type: str
    to: str
    sender: str
    members: tuple[str, ...]
    text: str | None
    conv_type: str | None
    msg_id: str | None
    sent: datetime | None
    resend: bool
    body: Path | None
    times: int
    url: str
    cacert: Path | None
    as_json: bool = False

    def bodies(self, app_id: str, unit: TimeUnit) -> list[bytes]:
        """Return the bodies to send. Raises InvalidRequest if flags are missing or a file cannot be read."""
        if self.body is not None:
            try:
                return [self.body.read_bytes()] * self.times
            except OSError as error:
                raise InvalidRequest(f"--body: {self.body}: {error.strerror}", field="--body") from None
        message, sent = self._message(), self.sent or _now()  # copies of one message have one time
        return [self._encoded(message, app_id, unit, sent) for _ in range(self.times)]

    def _message(self) -> CopiedMessage:
        kind = self.msg_type.upper().replace("-", "_")
        return CopiedMessage(
            conv_type=self._conv_type(kind),
            to=self.to,
            sender=self.sender,
            msg_type=kind,
            text=self.text,
            members=[self._member(account) for account in self.members] or None,
        )

    @staticmethod
    def _member(account: str) -> str:
        try:
            return one_value(account, "--body")
        except ValueError as error:
            raise InvalidRequest(f"--member: {error}", field="--member") from None

    def _conv_type(self, kind: str) -> ConvType:
        if self.conv_type is not None:
            return ConvType(self.conv_type)
        if kind.startswith(TEAM):
            return ConvType.NOTIFY_TEAM
        return ConvType.TEAM if self.members else ConvType.PERSON

    def _encoded(self, message: CopiedMessage, app_id: str, unit: TimeUnit, sent: datetime) -> bytes:
        msg_id = self.msg_id or f"m8{secrets.token_hex(8)}"
        document = message.body(app_id=app_id, msg_id=msg_id, sent=sent, unit=unit)
        try:
            return rbim_json.dumps(document | {"resendFlag": "1"} if self.resend else document)
        except ValueError:
            raise InvalidRequest("the message has characters that cannot be encoded in UTF-8") from None


def _now() -> datetime:
    """Return the time to the millisecond, as messages have it."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def run(options: SendOptions) -> int:
    """Send the deliveries and return the exit code. Raises InvalidRequest before anything is sent."""
    again = ""
    if options.msg_id is not None and options.sent is None and options.body is None:
        sent = _now()
        options = evolve(options, sent=sent)
        again = (
            f"to send this message again: --msg-id {options.msg_id} --timestamp {sent.isoformat(timespec='milliseconds')}"
        )
    config = configuration()
    credentials = callback_credentials(config)[0]
    target = target_of(options.url, "--url")
    if options.cacert is not None and not options.cacert.is_file():
        raise InvalidRequest(f"--cacert: {options.cacert}: no such file", field="--cacert")
    bodies = options.bodies(credentials.app_id, config.dialect.message_time_unit)
    code = anyio.run(_send, options, bodies, target, credentials)
    if again and code in {Exit.DONE, Exit.REFUSED}:
        print_note(again)
    return code


async def _send(options: SendOptions, bodies: list[bytes], target: Request, credentials: Credentials) -> Exit:
    """Send one delivery after the other; stop at the first without a response."""
    code, cacert = Exit.DONE, options.cacert
    # like the platform: no proxy of this machine
    async with HttpxTransport(trust_env=False, verify=True if cacert is None else str(cacert)) as transport:
        with suppress(NotSent):  # warm up, so that the first time measured is that of the receiver
            await transport.send(Request(origin="none://", path="/"), timeout=RESPONSE_TIMEOUT)
        for body in bodies:
            headers = {"Content-Type": "application/json", **sign(body, credentials=credentials, now=datetime.now(UTC))}
            request = Request(
                origin=target.origin, path=target.path, query=target.query, headers=headers, body=body, repeatable=True
            )
            began = time.perf_counter()
            try:
                response = await transport.send(request, timeout=RESPONSE_TIMEOUT)
            except TransportError as error:
                print_error(f"delivery to {without_user(target.origin)} failed: {error}")
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
