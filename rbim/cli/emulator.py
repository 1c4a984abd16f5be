"""``rbim emulator``: the emulated platform as a server. Heavy imports wait until it is called."""

from __future__ import annotations

import json
import os
import secrets
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path  # noqa: TC003  # cyclopts reads it
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from rbim._support import json as jsontext
from rbim.cli.errors import complain
from rbim.cli.exit_codes import Exit
from rbim.cli.extras import needed
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator

    from rbim.credentials import Credentials
    from rbim.emulator.emulator import Emulator
    from rbim.emulator.server.server import Server

__all__ = ["emulator"]

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Flag = Annotated[bool, Parameter(negative=(), show_default=False)]

REMEMBERED = 100_000  # requests, and deliveries, that a server which runs for long keeps


def emulator(  # noqa: PLR0913  # flags, each with a default
    *,
    host: str = "127.0.0.1",
    port: Port = 8883,
    faults: Path | None = None,
    seed: int = 0,
    state: Path | None = None,
    emulated_clock: Flag = False,
) -> int:
    """Serve an emulator of the written interface description on this machine. It is not the service, nor made by its vendor.

    The first line on standard output is its base URL. It knows one application: that of RBIM_APP_ID and RBIM_APP_TOKEN (or
    RBIM_APP_TOKEN_FILE), else a freshly made one, whose credentials are printed once, as lines for a shell. The control
    interface under /_emulator/ shows and changes everything without a signature, so keep it to yourself. Ctrl-C and SIGTERM
    stop it; exit code 0.

    Parameters
    ----------
    host
        The address to listen on. Whoever can reach it can use the emulator.
    port
        The port to listen on; 0 picks a free one.
    faults
        A JSON file with a fault plan: a list of objects such as
        {"effect": {"kind": "status", "status": 503}, "operation": "CreateGroup", "probability": 0.1}.
    seed
        The root of all chance in the fault plan.
    state
        A JSON file with the state: read at the start if it exists, written when the emulator stops.
    emulated_clock
        Let time stand still, from now on, until POST /_emulator/clock/advance lets it pass.
    """
    needed("server", "uvicorn")
    from rbim.emulator.server.server import run

    codes: list[Exit] = []

    def begun(server: Server) -> None:
        codes.append(Exit.DONE)
        _tell(server, fresh=fresh)

    def ended() -> None:
        if state is not None:
            codes.append(_save(box, state))

    try:
        credentials, fresh = _credentials()
        box = _made(credentials, seed=seed, emulated_clock=emulated_clock)
        _load(box, faults, state)
    except InvalidRequest as error:
        complain(error.message)
        return Exit.USAGE
    try:
        run(box, host=host, port=port, begun=begun, ended=ended)
    except OSError as error:
        if codes:  # it did listen
            raise
        complain(f"cannot listen on port {port} of {host}: {error.strerror}")
        return Exit.USAGE
    return codes[-1]


def _credentials() -> tuple[Credentials, bool]:
    """Return the configured credentials, or fresh ones and True."""
    from rbim.cli.context import configuration
    from rbim.credentials import Credentials

    config = configuration()
    if config.has_credentials:
        return config.credentials(), False
    return Credentials(app_id=secrets.token_hex(16), app_token=secrets.token_hex(16)), True


def _made(credentials: Credentials, *, seed: int, emulated_clock: bool) -> Emulator:
    from rbim.emulator.clock import EmulatedClock
    from rbim.emulator.emulator import Emulator

    clock = EmulatedClock(datetime.now(UTC)) if emulated_clock else None
    made = Emulator(credentials=credentials, seed=seed, clock=clock)
    made.requests.limit = made.deliveries.limit = REMEMBERED
    return made


def _load(box: Emulator, faults: Path | None, state: Path | None) -> None:
    """Give the emulator what its files say. Raises InvalidRequest that names the file."""
    from rbim.emulator.faults.requests import faults_from

    if faults is not None:
        with _naming(faults):
            box.faults.add(*faults_from(_document(faults)))
    if state is not None:
        with _naming(state):
            if state.exists():
                box.load(_document(state))
            elif not state.parent.is_dir():
                raise InvalidRequest("there is no such directory")


@contextmanager
def _naming(path: Path) -> Generator[None]:
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}") from None


def _document(path: Path) -> Any:  # JSON
    try:
        return jsontext.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(error.strerror or "cannot be read") from None
    except jsontext.NotJson as error:
        raise InvalidRequest(str(error)) from None


def _save(box: Emulator, path: Path) -> Exit:
    """Write the state; a file that exists is replaced at once or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(box.export(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        complain(f"{path}: the state could not be written: {error.strerror}")
        return Exit.USAGE
    return Exit.DONE


def _tell(server: Server, *, fresh: bool) -> None:
    """Write the base URL first, then lines that a shell may read."""
    from rbim.emulator.server.commands import ABOUT, PREFIX

    credentials = server.emulator.credentials
    lines = [server.url, f"# {ABOUT}", f"# Control interface: {server.url}{PREFIX}"]
    if fresh:
        lines += [
            f"export RBIM_BASE_URL={server.url}",
            f"export RBIM_APP_ID={credentials.app_id}",
            f"export RBIM_APP_TOKEN={credentials.app_token.reveal()}",
        ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    if not ip_address(server.host).is_loopback:
        complain(f"warning: whoever reaches {server.host} can read and change the emulator, and make it send requests")
