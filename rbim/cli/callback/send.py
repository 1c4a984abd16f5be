"""Posting message copies to a receiver: what ``rbim callback send`` does."""

from __future__ import annotations

import json
import secrets
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003  # attrs resolves it
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import anyio
from attrs import frozen

from rbim._support import json as jsontext
from rbim._support.text import excerpt
from rbim.callbacks.events.enums import ConvType
from rbim.callbacks.signature import sign
from rbim.cli.context import callback_credentials
from rbim.cli.errors import BY_OUTCOME, complain
from rbim.cli.exit_codes import Exit
from rbim.emulator.copies.messages import CopiedMessage
from rbim.errors import InvalidRequest, NotSent, TransportError
from rbim.http import Request
from rbim.transports.httpx import HttpxTransport

if TYPE_CHECKING:
    from rbim.credentials import Credentials

__all__ = ["SendOptions", "run"]

ANSWERED = 200
LIMIT = 5.0  # seconds in which a receiver must answer (interface: Delivery rules, 4)
TEAM = "TEAM_"


@frozen(kw_only=True)
class SendOptions:
    """What to send, how often, and where to."""

    msg_type: str
    to: str | None
    sender: str | None
    members: tuple[str, ...]
    text: str | None
    conv_type: str | None
    msg_id: str | None
    resend: bool
    body: Path | None
    times: int
    url: str
    cacert: Path | None
    as_json: bool = False

    def bodies(self, app_id: str) -> list[bytes]:
        """Return what is to be sent. Raises InvalidRequest where that cannot be told."""
        if self.body is not None:
            try:
                return [self.body.read_bytes()] * self.times
            except OSError as error:
                raise InvalidRequest(f"--body: {self.body}: {error.strerror}", field="--body") from None
        message = self._message()
        return [self._written(message, app_id) for _ in range(self.times)]

    def _message(self) -> CopiedMessage:
        if self.to is None or self.sender is None:
            missing = "--to" if self.to is None else "--sender"
            raise InvalidRequest(f"{missing} is needed, or the --body to send", field=missing)
        kind = self.msg_type.upper().replace("-", "_")
        return CopiedMessage(
            conv_type=self._conv_type(kind),
            to=self.to,
            sender=self.sender,
            msg_type=kind,
            text=self.text,
            members=self.members or None,
        )

    def _conv_type(self, kind: str) -> ConvType:
        if self.conv_type is not None:
            return ConvType(self.conv_type)
        if kind.startswith(TEAM):
            return ConvType.NOTIFY_TEAM
        return ConvType.TEAM if self.members else ConvType.PERSON

    def _written(self, message: CopiedMessage, app_id: str) -> bytes:
        msg_id = self.msg_id or f"m8{secrets.token_hex(8)}"
        document = message.body(app_id=app_id, msg_id=msg_id, sent=datetime.now(UTC))
        try:
            return jsontext.dumps(document | {"resendFlag": "1"} if self.resend else document)
        except ValueError:
            raise InvalidRequest("what is to be sent has characters that are no text") from None


def run(sending: SendOptions) -> int:
    """Send, and return the exit code. Raises InvalidRequest before anything is sent."""
    credentials = callback_credentials()[0]
    target = _target(sending.url)
    if sending.cacert is not None and not sending.cacert.is_file():
        raise InvalidRequest(f"--cacert: {sending.cacert}: there is no such file", field="--cacert")
    return anyio.run(_send, sending, sending.bodies(credentials.app_id), target, credentials)


async def _send(sending: SendOptions, bodies: list[bytes], target: Request, credentials: Credentials) -> Exit:
    """Send one after the other, until there is one that nobody answers."""
    code, cacert = Exit.DONE, sending.cacert
    # the way of the platform: no proxy of this machine's
    async with HttpxTransport(trust_env=False, verify=True if cacert is None else str(cacert)) as transport:
        with suppress(NotSent):  # loads what the first request needs, so that its milliseconds are the receiver's
            await transport.send(Request(origin="none://", path="/"), timeout=LIMIT)
        for body in bodies:
            headers = {"Content-Type": "application/json", **sign(body, credentials=credentials, now=datetime.now(UTC))}
            request = Request(
                origin=target.origin, path=target.path, query=target.query, headers=headers, body=body, repeatable=True
            )
            began = time.perf_counter()
            try:
                response = await transport.send(request, timeout=LIMIT)
            except TransportError as error:
                complain(f"{target.origin}: {error}")
                return BY_OUTCOME[error.outcome]
            took = (time.perf_counter() - began) * 1000
            said = excerpt(response.body) if response.status != ANSWERED and response.body else ""
            line = f"{response.status}  {took:.1f} ms{said and f'  {said}'}"
            if sending.as_json:
                line = json.dumps({"status": response.status, "milliseconds": round(took, 1), "body": said})
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            if response.status != ANSWERED:
                code = Exit.REFUSED
    return code


def _target(url: str) -> Request:
    """Return a request to a URL. Raises InvalidRequest where it is none of HTTP."""
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            return Request(origin=f"{parts.scheme}://{parts.netloc}", path=parts.path or "/", query=query)
    except ValueError:  # a port or an IPv6 address that is none
        pass
    raise InvalidRequest(f"--url: an http or https URL is needed, not {url!r}", field="--url")
