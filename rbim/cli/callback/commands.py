"""``rbim callback``: receive, handle, send, explain and replay deliveries. Heavy imports happen when it is called."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from rbim._support.json_values import json_values
from rbim._support.text import counted
from rbim.cli.callback.inboxes import InboxFile, shown_inbox, with_archive
from rbim.cli.callback.options import SendOptions, ServeOptions, WorkOptions, kind_of, moment_ago, moment_of, shown_kinds
from rbim.cli.confirm import Yes, confirmed
from rbim.cli.errors import require
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import FileName, Json  # noqa: TC001  # cyclopts reads it
from rbim.cli.global_flags import quoted_words
from rbim.cli.json_output import show_json

if TYPE_CHECKING:
    from rbim.callbacks.inbox.stored import Archive

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

callback = App(name="callback", help=HELP, help_format="markdown")


@callback.command(sort_key=0)
def serve(options: ServeOptions) -> int:
    """Receive callbacks and store their events in a file.

    The first line on standard output is the URL it listens at. A delivery is answered with 200 once its event is stored in
    the inbox. Refused deliveries are logged on standard error, at most ten lines a second. Ctrl-C and SIGTERM stop it: it
    finishes the work in progress, for at most 9 seconds, with exit code 0. A second signal ends it at once, with exit code
    130 or 143.
    """
    require("server", "uvicorn")
    from rbim.cli.callback.serve import run

    return run(options)


@callback.command(sort_key=1)
def work(handlers: str, *, options: WorkOptions) -> int:
    """Handle the events of an inbox with the handlers of your application.

    It runs apart from the receiver, which stores the events: `rbim callback serve` without --print, or a Receiver without
    handlers. Several workers may share an inbox: each conversation is handled by one of them at a time, in order. Ctrl-C and
    SIGTERM stop it with exit code 0: running handlers have --drain seconds to end. A second signal ends it at once, with
    exit code 130 or 143; what was not finished is handled again.

    Parameters
    ----------
    handlers
        The router with the handlers, as MODULE:NAME, such as app.handlers:router.
    """
    from rbim.cli.callback.work import run

    return run(handlers, options)


@callback.command(sort_key=2)
def send(text: str | None = None, *, options: SendOptions | None = None) -> int:
    """Send signed test deliveries to a receiver, as the platform does, and print status and milliseconds of each.

    Exit code 0: all were answered with 200. 1: one was not. 3: the receiver cannot be reached. 5: no response within the 5
    seconds that the platform waits.

    Parameters
    ----------
    text
        The text of the message.
    """
    from rbim.cli.callback.send import run

    return run(text, options or SendOptions())


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

    return explain_capture(file, None if at is None else moment_of(at, "--at"), as_json=as_json)


@callback.command(sort_key=4)
def replay(
    *,
    inbox: InboxFile,
    since: str | None = None,
    kind: str | None = None,
    yes: Yes = False,
    as_json: Json = False,
) -> int:
    """Schedule events of an inbox to be handled again, after a confirmation, and print their number.

    Without --since and --kind, it takes all. The question says how many there are of each msgType. `rbim callback letters
    requeue` takes dead letters alone. `rbim callback serve --print` handles them at once if it is running, else when it
    starts.

    Parameters
    ----------
    since
        Only events received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
    kind
        Only events of one kind: a msgType such as TEAM_KICK, or a class such as TeamKick or Notification.
    as_json
        Print one JSON object.
    """
    moment = None if since is None else moment_ago(since, "--since")
    chosen = None if kind is None else kind_of(kind)
    if not yes:
        kinds = with_archive(inbox, lambda one: one.replayable(moment, chosen))
        action = f"have {counted(sum(kinds.values()), 'event')} of {shown_inbox(inbox)} ({shown_kinds(kinds)}) handled again"
        words = ["--inbox", shown_inbox(inbox)]
        words += ["--since", since] if since is not None else []
        words += ["--kind", kind] if kind is not None else []
        unasked = quoted_words("rbim", "callback", "replay", *words, "--yes")
        if kinds and not confirmed(action, unasked, unchanged="nothing was replayed"):
            return Exit.USAGE
    count = with_archive(inbox, lambda one: one.replay(moment, chosen))
    if as_json:
        show_json({"events": count})
    else:
        sys.stdout.write(f"{counted(count, 'event')} will be handled again\n")
    return Exit.DONE


@callback.command(sort_key=5)
def status(inbox: InboxFile, *, as_json: Json = False) -> int:
    """Show how many events of an inbox wait, were handled, are dead letters (of which msgType) or in quarantine.

    It changes nothing, and may run beside the receiver.

    Parameters
    ----------
    as_json
        Print one JSON object. `lag` is the age of the oldest waiting event in seconds, 0 if none waits; `dead_kinds` has the
        number of dead letters by msgType.
    """

    async def read(archive: Archive) -> tuple[dict[str, float], dict[str, int]]:
        counts = await archive.counts()
        found = json_values(counts) | {"lag": round(await archive.lag(), 3)}
        return found, await archive.replayable(dead_only=True) if counts.dead else {}

    found, kinds = with_archive(inbox, read)
    if as_json:
        show_json(found | {"dead_kinds": kinds})
        return Exit.DONE
    oldest = f" (the oldest for {timedelta(seconds=int(found['lag']))})" if found["waiting"] else ""
    of = f" ({shown_kinds(kinds)})" if kinds else ""
    lines = {"waiting": f"{found['waiting']}{oldest}", "handled": found["done"]}
    lines |= {"dead letters": f"{found['dead']}{of}", "in quarantine": found["quarantined"]}
    sys.stdout.write("".join(f"{name:<14} {value}\n" for name, value in lines.items()))
    return Exit.DONE


callback.command("rbim.cli.callback.letters:letters", name="letters", sort_key=6)
