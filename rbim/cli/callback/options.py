"""The flags of ``rbim callback serve``, ``work`` and ``send``, and the times and kinds of events in flags."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from attrs import frozen
from cyclopts import Parameter
from cyclopts.validators import Number

from rbim._support.text import printable
from rbim.cli.flag_types import FileName, Flag, Json, Port, whole  # cyclopts reads it
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.callbacks.events import Event

__all__ = ["Count", "SendOptions", "ServeOptions", "WorkOptions", "kind_of", "moment_ago", "moment_of", "shown_kinds"]

MOST_KINDS = 10
UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}

Count = Annotated[int, Parameter(converter=whole, validator=Number(gte=1))]
Seconds = Annotated[float, Parameter(validator=Number(gt=0))]
Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)]
Conversation = Literal["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]


@Parameter(name="*")
@frozen(kw_only=True)
class ServeOptions:
    """The receiver.

    Parameters
    ----------
    inbox
        The file that stores the events; it is created if it does not exist. Or a PostgreSQL database, for receivers and
        workers on several machines: postgresql://user@host/database, with #NAME for another schema than copies. Leave the
        password to PGPASSWORD or a password file.
    host
        The address to listen on; 0.0.0.0 for all addresses of this machine.
    port
        The port to listen on; 0 picks a free one.
    path
        The only path that accepts deliveries.
    mode
        The callback mode that is set on the platform. In normal mode the platform tries each delivery once: if the inbox is
        too slow, the delivery goes to an overflow file, INBOX-spool. In high-guarantee mode it is answered with 503, and
        the platform retries it.
    printing
        Handle each event by printing it as one line of JSON. Without it, events wait in the inbox for another process.
    certfile
        A certificate (PEM), to serve HTTPS.
    keyfile
        The private key of the certificate, if CERTFILE does not contain it.
    connections
        The maximum number of open connections, if the limit of open files allows as many. While there are more, each request
        is answered with 503.
    forward_to
        Handle each event by posting it to this URL, with the body and the signature headers of the platform, in the order
        of its conversation. Any answer but 200 is a failure: it is tried again, 8 times in about 15 minutes, and is then a
        dead letter. With --print, events are printed when they were forwarded.
    health
        A path that answers GET with 200 if deliveries are stored and handled, else with 503, and with JSON.
    spool
        The overflow file for deliveries that the inbox cannot take in time (default: INBOX-spool). An inbox in a database
        needs one in normal mode.
    """

    inbox: FileName
    host: str = "127.0.0.1"
    port: Port = 8000
    path: str = "/"
    mode: Literal["normal", "high-guarantee"] = "normal"
    printing: Annotated[Flag, Parameter(name="--print")] = False
    certfile: Path | None = None
    keyfile: Path | None = None
    connections: Count = 10_000
    forward_to: str | None = None
    health: str | None = None
    spool: Path | None = None


@Parameter(name="*")
@frozen(kw_only=True)
class WorkOptions:
    """The worker.

    Parameters
    ----------
    inbox
        The file that stores the events, or the PostgreSQL database, such as postgresql://user@host/database. It is created
        if it does not exist.
    around
        A function, as MODULE:NAME, that returns an async context manager for what handlers share, such as a connection pool:
        its value is their `HandlerContext.resource`.
    app_dir
        The directory in which modules are looked for first.
    concurrency
        The maximum number of conversations handled at once.
    timeout
        Seconds that a handler may take for one event.
    drain
        Seconds that running handlers have to end after Ctrl-C or SIGTERM.
    """

    inbox: FileName
    around: str | None = None
    app_dir: Path = Path()
    concurrency: Count = 16
    timeout: Seconds = 60.0
    drain: Seconds = 10.0


@Parameter(name="*")
@frozen(kw_only=True)
class SendOptions:
    """The deliveries to send, their number, and the receiver.

    Parameters
    ----------
    to
        The recipient: an account, or the group.
    sender
        The account that sent the message, or changed the group.
    member
        Accounts in the group, or the accounts that the change concerns.
    msg_type
        The type of the message or change: TEXT, PICTURE, ... or TEAM_JOIN, TEAM_KICK, ...
    conv_type
        The type of the conversation (default: NOTIFY_TEAM if --type begins with TEAM_, else TEAM with a --member, else
        PERSON).
    msg_id
        The id of the message (default: a new one for each). The same id with anything else in the message is no resend: a
        receiver keeps it apart.
    timestamp
        The time of the message, such as 2026-01-31T09:00:00+08:00 (default: now). To send a message again, give its --msg-id
        and its time; with --msg-id, the time is printed on standard error.
    resend
        Mark it as a retry of the platform (resendFlag 1). A retry is the same message: see --timestamp.
    body
        Send the bytes of this file, unchanged, instead of a message.
    times
        The number of deliveries, sent one after the other; with --msg-id, all of the same message.
    url
        The URL of the receiver.
    cacert
        A CA certificate (PEM) to trust, for a receiver with a private CA.
    as_json
        Print one JSON object per line.
    """

    to: str = "1002"
    sender: str = "1001"
    member: Several = ()
    msg_type: Annotated[str, Parameter(name="--type")] = "TEXT"
    conv_type: Conversation | None = None
    msg_id: str | None = None
    timestamp: str | None = None
    resend: Flag = False
    body: Path | None = None
    times: Count = 1
    url: str = "http://127.0.0.1:8000/"
    cacert: Path | None = None
    as_json: Json = False


def moment_ago(text: str, flag: str) -> datetime:
    """Return the time of a flag's text: 7d, 24h or 30m ago, or a time with a zone. Raises InvalidRequest."""
    ago = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    if ago is None:
        return moment_of(text, flag, "7d, 24h, 30m or ")
    try:
        return datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def moment_of(text: str, flag: str, others: str = "") -> datetime:
    """Return the time of a flag's text. Raises InvalidRequest unless it has a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            f"{flag}: invalid time {text!r}: use {others}a time with its zone, such as 2026-01-31T09:00:00+08:00", field=flag
        )
    return moment


def kind_of(text: str) -> type[Event] | str:
    """Return a class of events by its name, or a ``msgType``: a known one in any case, an unknown one in upper case."""
    from rbim.callbacks import events

    classes: dict[str, type[Event]] = {name.lower(): getattr(events, name) for name in events.class_names(events.Event)}
    written = text.replace("-", "_")
    if text.lower() in classes and not text.isupper():
        return classes[text.lower()]
    if written.upper() in {*events.MsgType, *events.Notice} or written.isupper():
        return written.upper()
    names = ", ".join(sorted(kind.__name__ for kind in classes.values()))
    raise InvalidRequest(f"--kind: unknown kind {text!r}: use a msgType such as TEAM_KICK or one of {names}", field="--kind")


def shown_kinds(kinds: Mapping[str, int]) -> str:
    """Return how many events there are of each ``msgType``, for people: the first ten."""
    words = [f"{printable(kind) or '-'} {count}" for kind, count in kinds.items()]
    return ", ".join([*words[:MOST_KINDS], *(["..."] if len(words) > MOST_KINDS else [])])
