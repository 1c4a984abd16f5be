"""``rbim callback``: receive, handle, send, explain and replay deliveries. Heavy imports happen when it is called."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rbim._support.json_values import json_values
from rbim.cli.callback.filters import kind_of, moment_ago, moment_of
from rbim.cli.callback.inboxes import Unusable, with_archive
from rbim.cli.confirm import Yes, confirmed
from rbim.cli.errors import report_error
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import require
from rbim.cli.file_names import FileName  # noqa: TC001  # cyclopts reads it
from rbim.cli.json_output import show_json
from rbim.cli.printable import printable
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from rbim.callbacks.inbox.protocols import Archive

__all__ = ["callback", "explain", "replay", "send", "serve", "status", "work"]

HELP = """\
Receive callbacks, send test deliveries, and explain why a delivery is refused. Callbacks, which the platform calls message
copies, are signed requests to your server when a message is sent or a group changes. Each request is a delivery.

Signatures are checked with RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE). RBIM_CALLBACK_CREDENTIALS_FILE may name
a JSON file with more credentials, `[{"app_id": "...", "app_token": "..."}]`, for other applications or for older tokens
during a token rotation.

To try it on this machine, run `rbim callback serve --inbox events.db --print` in one terminal, and in another, with the
same environment, `rbim callback send "hello"`.
"""

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Seconds = Annotated[float, Parameter(validator=Number(gt=0))]
Several = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=(), show_default=False)]
Mode = Literal["normal", "high-guarantee"]
Conversation = Literal["PERSON", "TEAM", "CUSTOM_PERSON", "CUSTOM_TEAM", "NOTIFY_TEAM"]

callback = App(name="callback", help=HELP, help_format="markdown")


@callback.command(sort_key=0)
def serve(  # noqa: PLR0913  # flags, each with a default
    *,
    inbox: Annotated[FileName, Parameter(name=("--inbox", "--sink"))],
    host: str = "127.0.0.1",
    port: Port = 8000,
    path: str = "/",
    mode: Mode = "normal",
    print_events: Annotated[bool, Parameter(name="--print", negative=(), show_default=False)] = False,
    certfile: Path | None = None,
    keyfile: Path | None = None,
    connections: Count = 10_000,
    forward_to: str | None = None,
    health: str | None = None,
    spool: Annotated[Path | None, Parameter(show_default=False)] = None,
) -> int:
    """Receive callbacks and store their events in a file.

    The first line on standard output is the URL it listens at. A delivery is answered with 200 once its event is stored in
    the inbox. Refused deliveries are logged on standard error, at most ten lines a second. Ctrl-C and SIGTERM stop it: it
    finishes the work in progress, for at most 9 seconds, with exit code 0. A second signal ends it at once, with exit code
    130 or 143.

    Parameters
    ----------
    inbox
        The file that stores the events; it is created if it does not exist.
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
    print_events
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
        The overflow file for deliveries that the inbox cannot take in time (default: INBOX-spool).
    """
    require("server", "uvicorn")
    from rbim.cli.callback.serve import ServeOptions, run

    try:
        return run(
            ServeOptions(
                inbox=inbox,
                spool=spool,
                host=host,
                port=port,
                path=path,
                mode=mode,
                printing=print_events,
                certfile=certfile,
                keyfile=keyfile,
                connections=connections,
                forward_to=forward_to,
                health=health,
            )
        )
    except RbimError as error:
        return report_error(error, "rbim callback serve")


@callback.command(sort_key=1)
def work(  # noqa: PLR0913  # flags, each with a default
    handlers: str,
    *,
    inbox: FileName,
    around: Annotated[str | None, Parameter(show_default=False)] = None,
    app_dir: Path = Path(),
    concurrency: Count = 16,
    timeout: Seconds = 60.0,
    drain: Seconds = 10.0,
) -> int:
    """Handle the events of an inbox with the handlers of your application.

    It runs apart from the receiver, which stores the events: `rbim callback serve` without --print, or a Receiver without
    handlers. Several workers may share an inbox: each conversation is handled by one of them at a time, in order. Ctrl-C and
    SIGTERM stop it with exit code 0: running handlers have --drain seconds to end. A second signal ends it at once, with
    exit code 130 or 143; what was not finished is handled again.

    Parameters
    ----------
    handlers
        The router with the handlers, as MODULE:NAME, such as app.handlers:router.
    inbox
        The file that stores the events; it is created if it does not exist.
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
    from rbim.cli.callback.work import WorkOptions, run

    try:
        return run(
            WorkOptions(
                handlers=handlers,
                inbox=inbox,
                around=around,
                app_dir=app_dir,
                concurrency=concurrency,
                timeout=timeout,
                drain=drain,
            )
        )
    except RbimError as error:
        return report_error(error, "rbim callback work")


@callback.command(sort_key=2)
def send(  # noqa: PLR0913  # flags, each with a default
    text: str | None = None,
    *,
    to: str = "1002",
    sender: str = "1001",
    member: Several = (),
    msg_type: Annotated[str, Parameter(name="--type")] = "TEXT",
    conv_type: Conversation | None = None,
    msg_id: str | None = None,
    timestamp: str | None = None,
    resend: Flag = False,
    body: Path | None = None,
    times: Count = 1,
    url: str = "http://127.0.0.1:8000/",
    cacert: Path | None = None,
    as_json: Json = False,
) -> int:
    """Send signed test deliveries to a receiver, as the platform does, and print status and milliseconds of each.

    Exit code 0: all were answered with 200. 1: one was not. 3: the receiver cannot be reached. 5: no response within the 5
    seconds that the platform waits.

    Parameters
    ----------
    text
        The text of the message.
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
                sent=None if timestamp is None else moment_of(timestamp, "--timestamp"),
                resend=resend,
                body=body,
                times=times,
                url=url,
                cacert=cacert,
                as_json=as_json,
            )
        )
    except InvalidRequest as error:
        return report_error(error, "rbim callback send")


@callback.command(sort_key=3)
def explain(
    file: Annotated[FileName, Parameter(allow_leading_hyphen=True)], *, at: str | None = None, as_json: Json = False
) -> int:
    """Explain why a captured delivery is not accepted, and how to fix it.

    Exit code 0: it is accepted. 1: it is not. 2: the file cannot be read.

    Parameters
    ----------
    file
        The raw HTTP request: header lines (optionally after a request line), an empty line, the body. Or a JSON object
        with `headers` (an object, or a list of pairs) and `body` or `body_base64`. `-` reads standard input.
    at
        Check it as of this time, such as 2026-01-31T09:00:00+08:00 (default: now).
    as_json
        Print one JSON object; its reason is null if the delivery is accepted.
    """
    from rbim.cli.callback.capture import explain_capture

    try:
        return explain_capture(file, None if at is None else moment_of(at, "--at"), as_json=as_json)
    except InvalidRequest as error:
        return report_error(error, "rbim callback explain")


MOST_KINDS = 5


@callback.command(sort_key=4)
def replay(  # noqa: PLR0913  # flags, each with a default
    *,
    inbox: FileName,
    since: str | None = None,
    kind: str | None = None,
    dead: Flag = False,
    dry_run: Flag = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Schedule events of an inbox to be handled again, and print their number.

    Without --since, --kind or --dead it asks first, since all events are handled again.
    `rbim callback serve --print` handles them at once if it is running, else when it starts.

    Parameters
    ----------
    inbox
        The file in which `rbim callback serve` stores events.
    since
        Only events received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
    kind
        Only events of one kind: a msgType such as TEAM_KICK, or a class such as TeamKick or Notification.
    dead
        Only dead letters: events that failed in their last attempt.
    dry_run
        Print how many events would be handled again, by msgType, and change nothing.
    as_json
        Print one JSON object.
    """
    unasked = f"rbim callback replay --inbox {inbox} --yes"
    try:
        moment = None if since is None else moment_ago(since, "--since")
        chosen = None if kind is None else kind_of(kind)
        if dry_run:
            kinds = with_archive(inbox, lambda one: one.replayable(moment, chosen, dead_only=dead))
            return _print_replayable(kinds, as_json=as_json)
        if since is None and kind is None and not (dead or yes):
            every = sum(with_archive(inbox, lambda one: one.replayable()).values())
            action = f"have all {_events(every)} of {inbox} handled again"
            if every and not confirmed(action, unasked, unchanged="nothing was replayed"):
                return Exit.USAGE
        count = with_archive(inbox, lambda one: one.replay(moment, chosen, dead_only=dead))
    except Unusable as unusable:
        return unusable.code
    except InvalidRequest as error:
        return report_error(error, "rbim callback replay")
    if as_json:
        show_json({"events": count})
    else:
        sys.stdout.write(f"{_events(count)} will be handled again\n")
    return Exit.DONE


def _print_replayable(kinds: dict[str, int], *, as_json: bool) -> Exit:
    """Print what a replay would do."""
    if as_json:
        show_json({"events": sum(kinds.values()), "kinds": kinds})
        return Exit.DONE
    sys.stdout.write(f"{_events(sum(kinds.values()))} would be handled again\n")
    shown = {printable(kind) or "-": count for kind, count in kinds.items()}
    width = max(map(len, shown), default=0)
    sys.stdout.write("".join(f"{kind:<{width}}  {count}\n" for kind, count in shown.items()))
    return Exit.DONE


@callback.command(sort_key=5)
def status(inbox: FileName, *, as_json: Json = False) -> int:
    """Show how many events of an inbox wait, were handled, are dead letters (of which msgType) or in quarantine.

    It changes nothing, and may run beside the receiver.

    Parameters
    ----------
    inbox
        The file in which `rbim callback serve` stores events.
    as_json
        Print one JSON object. `lag` is the age of the oldest waiting event in seconds, 0 if none waits; `dead_kinds` has the
        number of dead letters by msgType.
    """

    async def read(archive: Archive) -> tuple[dict[str, float], dict[str, int]]:
        counts = await archive.counts()
        found = json_values(counts) | {"lag": round(await archive.lag(), 3)}
        return found, await archive.replayable(dead_only=True) if counts.dead else {}

    try:
        found, kinds = with_archive(inbox, read)
    except Unusable as unusable:
        return unusable.code
    except InvalidRequest as error:
        return report_error(error, "rbim callback status")
    if as_json:
        show_json(found | {"dead_kinds": kinds})
        return Exit.DONE
    oldest = f" (the oldest for {timedelta(seconds=int(found['lag']))})" if found["waiting"] else ""
    of = ", ".join(f"{printable(kind) or '-'} {count}" for kind, count in [*kinds.items()][:MOST_KINDS])
    of = f" ({of}{', ...' if len(kinds) > MOST_KINDS else ''})" if of else ""
    lines = {"waiting": f"{found['waiting']}{oldest}", "handled": found["done"]}
    lines |= {"dead letters": f"{found['dead']}{of}", "in quarantine": found["quarantined"]}
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines.items()))
    return Exit.DONE


def _events(count: int) -> str:
    return f"{count} {'event' if count == 1 else 'events'}"


callback.command("rbim.cli.callback.letters:letters", name="letters", sort_key=6)
