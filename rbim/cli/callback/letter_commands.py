"""The commands below ``rbim callback dead`` and ``rbim callback quarantine``: the same five, with other words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rbim._support.text import quoted
from rbim.cli.callback.archive import Unusable
from rbim.cli.confirm import Yes  # noqa: TC001  # cyclopts reads it
from rbim.cli.errors import report_error
from rbim.cli.file_names import FileName  # noqa: TC001  # cyclopts reads it
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cyclopts import Token

    from rbim.cli.callback.letters import Kept

__all__ = ["dead", "quarantine"]

C = TypeVar("C", bound="Callable[..., object]")

Json = Annotated[bool, Parameter(name="--json", negative=(), show_default=False)]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def _whole(_kind: object, tokens: Sequence[Token]) -> int:
    """Return a whole number: 1.5 must not be another event's number. Raises ValueError."""
    if not re.fullmatch("-?[0-9]{1,100}", tokens[0].value):
        raise ValueError(f"invalid number {quoted(tokens[0].value)}: use a whole number, such as 17")
    return int(tokens[0].value)


Positive = Annotated[int, Parameter(converter=_whole, validator=Number(gte=1))]
After = Annotated[int, Parameter(converter=_whole, validator=Number(gte=0), show_default=False)]

DEAD_HELP = """\
List, show, requeue or delete dead letters: events whose last attempt failed.

They stay in the inbox, with the traceback, until someone decides: correct the cause and requeue them, or delete them. The
commands may run beside the receiver.
"""

QUARANTINE_HELP = """\
List, show, requeue or delete events in quarantine: authentic deliveries that cannot be handled.

The body cannot be read, it is of another application, or it has the `msgId` of an earlier event and other content. They stay
in the inbox until someone decides: requeue those that can be read now, after an update of rbim for example, or delete them.
The commands may run beside the receiver.
"""

EXIT_LEFT = "Exit code 1: some cannot be handled, and are left in quarantine. 2: a number is wrong, and nothing was changed."
EXIT_WRONG = "Exit code 2: a number is wrong, and nothing was changed."


def _app(name: str, text: str, one: str, several: str, place: int) -> App:  # noqa: C901  # five commands
    app = App(name=name, help=text, help_format="markdown", sort_key=place)
    command = f"rbim callback {name}"
    exits = EXIT_WRONG if name == "dead" else EXIT_LEFT

    def worded(function: C) -> C:
        function.__doc__ = (
            (function.__doc__ or "").replace("{one}", one).replace("{several}", several).replace("{exits}", exits)
        )
        return function

    def done(act: Callable[[], int], called: str) -> int:
        try:
            return act()
        except Unusable as unusable:
            return unusable.code
        except InvalidRequest as error:
            return report_error(error, f"{command} {called}")

    @app.command(name="list", sort_key=0)
    @worded
    def list_them(  # noqa: PLR0913  # flags, each with a default
        inbox: FileName,
        /,
        *,
        limit: Positive = 100,
        after: After = 0,
        since: str | None = None,
        kind: str | None = None,
        conversation: str | None = None,
        as_json: Json = False,
    ) -> int:
        """List {several}, the oldest first: one line for each, with the first line of its error.

        Parameters
        ----------
        inbox
            The file in which `rbim callback serve` stores events.
        limit
            At most this many.
        after
            Only those with higher numbers: for the next page, the last number of this one.
        since
            Only those received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
        kind
            Only those of one kind: a msgType such as TEAM_KICK, or a class such as TeamKick or Notification.
        conversation
            Only those of one conversation, as the list shows it.
        as_json
            Print one JSON object per line, with everything but the body. The body is in `show`.
        """
        from rbim.cli.callback import letters

        return done(
            lambda: letters.print_list(
                kept(), inbox, letters.Chosen.of(since, kind, conversation), limit=limit, after=after, as_json=as_json
            ),
            "list",
        )

    @app.command(sort_key=1)
    @worded
    def show(inbox: FileName, number: Positive, /, *, as_json: Json = False, body: Flag = False) -> int:
        """Show one {one}: where it is from, its error, and its body.

        Parameters
        ----------
        inbox
            The file in which `rbim callback serve` stores events.
        number
            Its number, as in the list.
        as_json
            Print one JSON object: `document` is the body, or null if it is no JSON object, `body_base64` its bytes.
        body
            Write only the body, byte by byte as it came: for a file or another program.
        """
        from rbim.cli.callback import letters

        return done(lambda: letters.print_one(kept(), inbox, number, as_json=as_json, body=body), "show")

    @app.command(sort_key=2)
    @worded
    def requeue(  # noqa: PLR0913  # flags, each with a default
        inbox: FileName,
        /,
        *numbers: Positive,
        every: Annotated[bool, Parameter(name="--all", negative=(), show_default=False)] = False,
        since: str | None = None,
        kind: str | None = None,
        conversation: str | None = None,
        as_json: Json = False,
    ) -> int:
        """Have {several} handled again, and print how many.

        Each has its old place in its conversation, and as many attempts as a new event. `rbim callback serve` handles it at
        once if it is running and has handlers, else when it starts.

        {exits}

        Parameters
        ----------
        inbox
            The file in which `rbim callback serve` stores events.
        numbers
            Their numbers, as in the list.
        every
            All of them, or of those that --since, --kind and --conversation choose.
        since
            With --all: only those received since then: 7d, 24h, 30m, or 2026-01-31T09:00:00+08:00.
        kind
            With --all: only those of one kind: a msgType such as TEAM_KICK, or a class such as TeamKick or Notification.
        conversation
            With --all: only those of one conversation, as the list shows it.
        as_json
            Print one JSON object: the number of `events`, and the numbers of those that are `left`.
        """
        from rbim.cli.callback import letters

        return done(
            lambda: letters.requeue(
                kept(), inbox, numbers, letters.Chosen.of(since, kind, conversation), every=every, as_json=as_json
            ),
            "requeue",
        )

    @app.command(sort_key=3)
    @worded
    def discard(inbox: FileName, /, *numbers: Positive, yes: Yes = False, as_json: Json = False) -> int:
        """Delete {several} by their numbers, after a confirmation.

        Nothing of them stays, not even their keys: if the platform sends one again, it is handled as a new event.
        Exit code 2: a number is wrong or it was not confirmed, and nothing was changed.

        Parameters
        ----------
        inbox
            The file in which `rbim callback serve` stores events.
        numbers
            Their numbers, as in the list.
        as_json
            Print one JSON object.
        """
        from rbim.cli.callback import letters

        return done(lambda: letters.discard(kept(), inbox, numbers, yes=yes, as_json=as_json), "discard")

    @app.command(sort_key=4)
    @worded
    def purge(inbox: FileName, /, *, before: str | None = None, yes: Yes = False, as_json: Json = False) -> int:
        """Delete all {several}, or the old ones, after a confirmation.

        It works in small steps, so that deliveries are accepted meanwhile.

        Parameters
        ----------
        inbox
            The file in which `rbim callback serve` stores events.
        before
            Only those received before then: 7d, 24h, 30m ago, or 2026-01-31T09:00:00+08:00.
        as_json
            Print one JSON object.
        """
        from rbim.cli.callback import letters
        from rbim.cli.callback.filters import moment_ago

        def act() -> int:
            moment = None if before is None else moment_ago(before, "--before")
            return letters.purge(kept(), inbox, moment, yes=yes, as_json=as_json)

        return done(act, "purge")

    def kept() -> Kept:
        from rbim.cli.callback.letters import DEAD, QUARANTINE

        return DEAD if name == DEAD.command else QUARANTINE

    return app


dead = _app("dead", DEAD_HELP, "dead letter", "dead letters", 6)
quarantine = _app("quarantine", QUARANTINE_HELP, "event in quarantine", "events in quarantine", 7)
