"""``rbim emulator``: the emulated platform as a server. Heavy imports happen when it is called."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from contextlib import AsyncExitStack, nullcontext
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Any

from rbim._support import json as rbim_json
from rbim._support.private_files import replace_private
from rbim.choices import spelled
from rbim.cli.errors import print_error, print_note, report_error, require
from rbim.cli.exit_codes import Exit
from rbim.cli.flag_types import Flag, Port, Repeated  # noqa: TC001  # cyclopts reads it
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.emulator.emulator import Emulator
    from rbim.emulator.rules import Rules
    from rbim.emulator.server.server import Server

__all__ = ["serve"]

KEPT_RECORDS = 100_000  # requests, and deliveries, that the server keeps; older ones are dropped


def serve(  # noqa: PLR0913  # flags, each with a default
    *,
    host: str = "127.0.0.1",
    port: Port = 8883,
    control_port: Port = 0,
    allowed_host: Repeated = (),
    faults: Path | None = None,
    seed: int = 0,
    state: Path | None = None,
    emulated_clock: Flag = False,
    check_roles: Flag = False,
    rule: Repeated = (),
    strict_dialect: Flag = False,
    sign_copies: Flag = False,
    remote_copies: Flag = False,
    quiet: Flag = False,
) -> int:
    """Run an emulator of the platform's written interface description on this machine.

    It is not the service itself and was not made by its vendor. The first line on standard output is the base URL. It knows
    one application: that of RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE); without these, a new one, whose
    credentials are printed once as export lines for a shell. Each
    request is printed on standard error as it is answered. The control interface under /_emulator/ shows and changes
    everything without a signature, so do not expose it; requests of web pages are refused. Ctrl-C and SIGTERM stop it with
    exit code 0.

    It follows the dialect of flags, environment and profile, and its own rules: see `rbim dialect`. A dialect other than the
    default is printed as an export line.

    Parameters
    ----------
    host
        The address to listen on. Everyone who can reach it can use the emulator.
    port
        The port to listen on; 0 picks a free one.
    control_port
        The port of the control interface alone, which is open during an outage, too; 0 picks a free one.
    allowed_host
        A further name under which the emulator is reached, such as that of a container. It can be repeated.
    faults
        A JSON file with a fault plan: a list of objects such as
        {"effect": {"kind": "status", "status": 503}, "operation": "CreateGroup", "probability": 0.1}.
    seed
        The random seed of the fault plan.
    state
        A JSON file for the state: read at the start if it exists, written when the emulator stops.
    emulated_clock
        Use a clock that starts at the current time and moves only by POST /_emulator/clock/advance.
    check_roles
        Refuse an operation to members without the role for it (rule allowed_roles).
    rule
        A rule of the emulator, such as invited_member_fails=true; it can be repeated. `rbim dialect` lists them.
    strict_dialect
        Answer a request whose effect depends on the dialect with HTTP 500 and the name of the field, without any effect.
    sign_copies
        Let message copies to another machine be signed with the configured token. Those to this machine are, in any case.
    remote_copies
        Let the control interface set a target of message copies on another machine.
    quiet
        Do not print a line on standard error for each request and each delivery of a message copy.
    """
    require("server", "uvicorn")
    import asyncio

    from rbim.cli.context import configuration
    from rbim.cli.live_lines import live_lines
    from rbim.emulator.clock import EmulatedClock
    from rbim.emulator.emulator import Emulator
    from rbim.emulator.server.server import serve as server_of

    try:
        config = configuration()
    except InvalidRequest as error:
        return report_error(error, "rbim emulator")
    try:
        box = Emulator(
            credentials=config.credentials() if config.has_credentials else None,
            dialect=config.dialect,
            rules=_rules(rule),
            clock=EmulatedClock(datetime.now(UTC)) if emulated_clock else None,
            check_roles=check_roles,
            strict_dialect=strict_dialect,
            seed=seed,
        )
        _load(box, faults, state)
        with nullcontext() if quiet else live_lines(box, sys.stderr) as lines:
            server = server_of(
                box,
                host=host,
                port=port,
                control_port=control_port,
                allowed_hosts=allowed_host,
                sign_copies=sign_copies,
                remote_copies=remote_copies,
                watch=None if lines is None else lines.request,
            )
            return asyncio.run(_serve(server, state, sign_copies=sign_copies))
    except InvalidRequest as error:
        print_error(error.message.replace("allowed_hosts", "--allowed-host", 1))
        return Exit.USAGE


async def _serve(server: Server, state: Path | None, *, sign_copies: bool) -> Exit:
    """Serve until Ctrl-C, SIGTERM or SIGHUP, then write the state, which a second signal does not interrupt."""
    import asyncio

    from rbim.cli.callback.signals import stopping_signals

    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)

    previous = {number: signal.signal(number, on_signal) for number in stopping_signals()}
    try:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(server)
            except OSError as error:
                flags = "--port, --control-port or --host"
                print_error(f"cannot listen on {error.filename} ({error.strerror}): choose another {flags}")
                return Exit.USAGE
            _print_address(server, sign_copies=sign_copies)
            await stop.wait()
        if state is None:
            return Exit.DONE
        document = json.dumps(server.emulator.export(), ensure_ascii=False, indent=1)
        try:
            with replace_private(state) as stream:  # an existing file is replaced as a whole or not at all
                stream.write(f"{document}\n".encode())
        except OSError as error:
            print_error(f"cannot write the state to {state}: {error.strerror}")
            return Exit.USAGE
        return Exit.DONE
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _rules(texts: tuple[str, ...]) -> Rules:
    """Return the rules of the flag ``--rule``. Raises InvalidRequest that names it."""
    from rbim.config import pairs_of
    from rbim.emulator.rules import Rules

    found = pairs_of(",".join(texts), "--rule", [gap.name for gap in Rules.gaps()])
    try:
        return Rules.from_document(found)
    except InvalidRequest as error:
        raise InvalidRequest(f"--rule: {error.message}", field="rule") from None


def _load(box: Emulator, faults: Path | None, state: Path | None) -> None:
    """Load the fault plan and the state from their files. Raises InvalidRequest that names the file."""
    from rbim.emulator.faults import faults_from

    def load(path: Path, take: Callable[[Any], object]) -> None:
        try:
            take(rbim_json.loads(path.read_bytes()))
        except (InvalidRequest, OSError, rbim_json.NotJson) as error:
            why = error.strerror if isinstance(error, OSError) else getattr(error, "message", error)
            raise InvalidRequest(f"{path}: {why or 'cannot be read'}") from None

    box.requests.limit = box.deliveries.limit = KEPT_RECORDS
    if faults is not None:
        load(faults, lambda document: box.faults.add(*faults_from(document)))
    if state is not None and state.exists():
        load(state, box.load)
    elif state is not None and not state.parent.is_dir():
        raise InvalidRequest(f"{state}: its directory does not exist")


def _print_address(server: Server, *, sign_copies: bool) -> None:
    """Print the base URL, then lines that a shell can evaluate, and warn about what the flags allow to others."""
    from rbim.emulator.server.control import ABOUT, PREFIX

    emulator, credentials = server.emulator, server.emulator.credentials
    lines = [
        server.url,
        f"# {ABOUT}",
        f"# Page and control interface: {server.url}{PREFIX}, also during an outage: {server.control_url}",
        f"export RBIM_BASE_URL={server.url}",
    ]
    if emulator.own_credentials:
        lines += [f"export RBIM_APP_ID={credentials.app_id}", f"export RBIM_APP_TOKEN={credentials.app_token.reveal()}"]
    if document := emulator.dialect.to_document():  # the same for a client and a receiver
        pairs = ",".join(f"{key}={spelled(each)}" for key, each in document.items())
        lines.append(f"export RBIM_DIALECT={shlex.quote(pairs)}")
    lines.append(f"export RBIM_EMULATOR_URL={server.control_url.removesuffix(PREFIX)}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    if not ip_address(server.host).is_loopback:
        print_note(
            f"warning: everyone who can reach {server.host} can read and change the emulator, and make it send requests"
        )
    if sign_copies and not emulator.own_credentials:
        print_note(
            "warning: message copies are signed with the configured RBIM_APP_TOKEN, for everyone who can reach the emulator"
        )
