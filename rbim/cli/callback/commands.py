"""``rbim callback``: receive message copies, send one, explain one, have some handled again. Heavy imports wait."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rbim.cli.errors import complain, report
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import needed
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from rbim.callbacks.events.types import Event

__all__ = ["callback", "explain", "replay", "send", "serve"]

HELP = """\
Message copies: what the platform posts to your server, signed, when somebody says something or a group changes.

A copy is signed by the application that RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) describe.
RBIM_CALLBACK_CREDENTIALS_FILE may name a JSON list of more, `[{"app_id": "...", "app_token": "..."}]`: other applications,
and older tokens of one while a rotation lasts.

To try it on this machine: `rbim callback serve --inbox events.db --print` in one terminal, and in another, with the same
environment, `rbim callback send TEXT --to 1002 --sender 1001 --text hello`.
"""

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)]
Mode = Literal["normal", "high-guarantee"]
Conversation = Literal["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]

callback = App(name="callback", help=HELP, help_format="markdown")


@callback.command(sort_key=0)
def serve(  # noqa: PLR0913  # flags, each with a default
    *,
    inbox: Path,
    host: str = "127.0.0.1",
    port: Port = 8000,
    path: str = "/",
    mode: Mode = "normal",
    print_events: Annotated[bool, Parameter(name="--print", negative=(), show_default=False)] = False,
    certfile: Path | None = None,
    keyfile: Path | None = None,
) -> int:
    """Receive message copies and keep them in a file.

    The first line on standard output is the URL it listens at. A copy is answered 200 when it is safe in the inbox. What is
    refused is said on standard error, at most ten lines a second. Ctrl-C and SIGTERM stop it: what was begun is completed,
    for at most 9 seconds; exit code 0. Once more, and it ends at once; exit code 130, or 143.

    Parameters
    ----------
    inbox
        The file that events are kept in; it is made if it is not there.
    host
        The address to listen on: 0.0.0.0 for all of this machine's.
    port
        The port to listen on; 0 picks a free one.
    path
        The only path at which copies are received.
    mode
        The mode of copying that is set on the platform. In normal mode it tries once, so that a copy for which the inbox is
        too slow goes into a second file, INBOX-spool; in high-guarantee mode it is answered 503 and comes again.
    print_events
        Handle events by printing them, each as one line of JSON. Without it they wait in the inbox for another process.
    certfile
        A certificate (PEM), with which HTTPS is served.
    keyfile
        The certificate's private key, where CERTFILE does not have it.
    """
    needed("server", "uvicorn")
    from rbim.cli.callback.serve import ServeOptions, run

    try:
        return run(
            ServeOptions(
                inbox=inbox,
                host=host,
                port=port,
                path=path,
                mode=mode,
                printing=print_events,
                certfile=certfile,
                keyfile=keyfile,
            )
        )
    except RbimError as error:
        return report(error, "rbim callback serve")


@callback.command(sort_key=1)
def send(  # noqa: PLR0913  # flags, each with a default
    msg_type: str = "TEXT",
    *,
    to: str | None = None,
    sender: str | None = None,
    member: Several = (),
    text: str | None = None,
    conv_type: Conversation | None = None,
    msg_id: str | None = None,
    resend: Flag = False,
    body: Path | None = None,
    times: Count = 1,
    url: str = "http://127.0.0.1:8000/",
    cacert: Path | None = None,
    as_json: Json = False,
) -> int:
    """Post message copies to a receiver, signed as the platform signs them, and print each one's status and milliseconds.

    Exit code 0: all were answered 200. 1: one was not. 3: the receiver cannot be reached. 5: no answer within the platform's
    5 seconds.

    Parameters
    ----------
    msg_type
        What is said or has happened: TEXT, PICTURE, ... or TEAM_JOIN, TEAM_KICK, ...
    to
        The receiver's account, or the group.
    sender
        The account that says it, or that changed the group.
    member
        Accounts in the group, or whom the change concerns.
    text
        What is said.
    conv_type
        Unless told, NOTIFY_TEAM for a MSG-TYPE that begins with TEAM_; for others TEAM where there is a --member, else
        PERSON.
    msg_id
        The message's id. Unless told, each message has a new one.
    resend
        Say that the platform sends it again (resendFlag 1).
    body
        Send a file's bytes as they stand in place of a message.
    times
        How many to send, one after the other: with --msg-id, copies of the same message.
    url
        Where to.
    cacert
        A CA certificate (PEM) to trust, for a receiver with a certificate of one's own.
    as_json
        Print a JSON object in each line.
    """
    from rbim.cli.callback.send import SendOptions, run

    try:
        return run(
            SendOptions(
                msg_type=msg_type,
                to=to,
                sender=sender,
                members=member,
                text=text,
                conv_type=conv_type,
                msg_id=msg_id,
                resend=resend,
                body=body,
                times=times,
                url=url,
                cacert=cacert,
                as_json=as_json,
            )
        )
    except InvalidRequest as error:
        return report(error, "rbim callback send")


@callback.command(sort_key=2)
def explain(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)], *, at: str | None = None, as_json: Json = False
) -> int:
    """Say why one captured message copy is not accepted, and what to do about it.

    Exit code 0: it is accepted. 1: it is not. 2: the file cannot be read.

    Parameters
    ----------
    file
        The HTTP request as it came: header lines (a request line may come first), an empty line, the body. Or a JSON object
        with `headers` (an object, or a list of pairs) and `body` or `body_base64`. `-` reads standard input.
    at
        Judge it as of then, such as 2026-01-31T09:00:00+08:00, and not as of now.
    as_json
        Print a JSON list of what is the matter; the reason is null where it is accepted.
    """
    from rbim.cli.callback.capture import explain_capture

    try:
        return explain_capture(file, None if at is None else _moment(at, "--at"), as_json=as_json)
    except InvalidRequest as error:
        return report(error, "rbim callback explain")


@callback.command(sort_key=3)
def replay(
    *, inbox: Path, since: str | None = None, kind: str | None = None, dead: Flag = False, as_json: Json = False
) -> int:
    """Have events in an inbox handled again, and print how many. A receiver that prints does it at once, or when it starts.

    Parameters
    ----------
    inbox
        The file that `rbim callback serve` keeps events in.
    since
        Only those that were received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
    kind
        Only those of one kind: a msgType such as TEAM_KICK, or a class of events such as TeamKick or Notification.
    dead
        Only those that were given up after their last attempt.
    as_json
        Print one JSON object.
    """
    import sqlite3

    import anyio

    from rbim.callbacks.inbox.sqlite import SqliteInbox

    async def replayed() -> int:
        async with SqliteInbox(inbox) as opened:
            return await opened.replay(moment, chosen, dead_only=dead)

    try:
        moment = None if since is None else _since(since)
        chosen = None if kind is None else _kind(kind)
        if not inbox.is_file():
            complain(f"{inbox}: there is no such file")
            return Exit.USAGE
        count = anyio.run(replayed)
    except InvalidRequest as error:
        return report(error, "rbim callback replay")
    except (OSError, sqlite3.Error) as error:
        complain(f"{inbox}: {error}")
        return Exit.USAGE
    said = (
        json.dumps({"events": count}) if as_json else f"{count} {'event' if count == 1 else 'events'} will be handled again"
    )
    sys.stdout.write(f"{said}\n")
    return Exit.DONE


_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _since(text: str) -> datetime:
    ago = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    if ago is None:
        return _moment(text, "--since", "7d, 24h, 30m or ")
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _moment(text: str, flag: str, others: str = "") -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            f"{flag}: {others}a time with its zone is needed, such as 2026-01-31T09:00:00+08:00, not {text!r}", field=flag
        )
    return moment


def _kind(text: str) -> type[Event] | str:
    """Return a class of events by its name, or a ``msgType``: in any case where it is known, in upper case as it stands."""
    from rbim.callbacks.events.enums import MsgType, Notice
    from rbim.callbacks.events.types import Event

    classes, written = _classes(Event), text.replace("-", "_")
    if text.lower() in classes and not text.isupper():
        return classes[text.lower()]
    if written.upper() in {*MsgType, *Notice} or written.isupper():
        return written.upper()
    names = ", ".join(sorted(kind.__name__ for kind in classes.values()))
    raise InvalidRequest(f"--kind: a msgType such as TEAM_KICK or one of {names} is needed, not {text!r}", field="--kind")


def _classes(kind: type[Event]) -> dict[str, type[Event]]:
    found = {kind.__name__.lower(): kind}
    for each in kind.__subclasses__():
        found |= _classes(each)
    return found
