"""The configuration of a command, and its client."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rbim.cli.errors import MissingExtra, print_note
from rbim.cli.global_flags import current_flags
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Unpack

    from rbim.client.client import AsyncClient, ClientOptions
    from rbim.client.limits import Rate
    from rbim.config import Config
    from rbim.credentials import Credentials
    from rbim.otel.observer import OtelObserver

__all__ = [
    "HOW_TO_CONFIGURE",
    "callback_credentials",
    "configuration",
    "make_client",
    "pacing",
    "take_shared_rates",
    "telemetry",
]

HOW_TO_CONFIGURE = (
    "Set RBIM_BASE_URL, RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE), or write a profile in "
    "the file that `rbim config path` shows. `rbim config show` shows the current settings."
)
HOW_TO_CONFIGURE_CALLBACKS = (
    "Set RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE), or write a profile in the file that `rbim config path` "
    "shows. `rbim config show` shows the current settings."
)
"""For commands that sign or verify deliveries, and make no client."""

NEEDED = {"RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN"}  # variables without which, or a profile, there is no client

DIALECT = "dialect"


def configuration(warn: Callable[[str], object] | None = None) -> Config:
    """Return the configuration from flags, environment and files. Raises InvalidRequest.

    ``warn`` gets a message about each file with a token that others can read (default: print it).
    """
    from rbim.config import FIELDS, load, pairs_of

    flags = current_flags()
    with _adding_hint():
        try:
            return load(
                flags.profile,
                flags.config,
                warn=warn or (lambda text: print_note(f"warning: {text}")),
                dialect=pairs_of(",".join(flags.dialect), DIALECT, FIELDS) if flags.dialect else None,
                defaults={"transport": "auto"},
                base_url=flags.base_url,
                transport=flags.transport,
            )
        except InvalidRequest as error:
            if error.field not in {"base_url", "transport", DIALECT}:  # a variable or a key of a file has another name
                raise
            flag, cause = f"--{error.field.replace('_', '-')}", error.message.removeprefix(f"{error.field}: ")
            wrong = InvalidRequest(f"{flag}: {cause}", field=flag)
            wrong.add_note("See: rbim dialect" if error.field == DIALECT else "See: rbim --help")
        raise wrong


def make_client(config: Config | None = None, **options: Unpack[ClientOptions]) -> AsyncClient:
    """Make the client of a command. Raises InvalidRequest, and MissingExtra if the transport needs an extra.

    Its calls become spans and metrics if the process has an SDK of OpenTelemetry.
    """
    if (otel := telemetry()) is not None:
        options["observers"] = (otel, *options.get("observers", ()))
    if current_flags().debug:
        from rbim.observers import LoggingObserver

        options["observers"] = (*options.get("observers", ()), LoggingObserver())
    config = config or configuration()
    try:
        with _adding_hint():
            return config.client(**options)
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error)) from None


def pacing(config: Config) -> dict[str, Any]:
    """Return the configured settings of a job: ``rates`` and ``concurrency``; defaults are left out."""
    return {key: config[key] for key in ("concurrency", "rates") if config.values[key].source != "default"}


def take_shared_rates(settings: dict[str, Any], configured: Iterable[Rate]) -> tuple[Rate, ...]:
    """Take the shared rates out of the settings of a job, which its client keeps, and return them.

    ``configured``: the rates to look for them in if none were given.
    """
    rates = settings.get("rates")
    if rates is not None:
        settings["rates"] = [rate for rate in rates if rate.shared is None]
    return tuple(rate for rate in (configured if rates is None else rates) if rate.shared is not None)


def callback_credentials(config: Config) -> tuple[Credentials, ...]:
    """Return the credentials whose signatures on callbacks are accepted. Raises InvalidRequest."""
    with _adding_hint(HOW_TO_CONFIGURE_CALLBACKS):
        return config.callback_credentials()


@contextmanager
def _adding_hint(how: str = HOW_TO_CONFIGURE) -> Generator[None]:
    """Add a note on how to configure to an InvalidRequest that has no note yet; ``how``: if a needed variable is not set."""
    try:
        yield
    except InvalidRequest as error:
        if not getattr(error, "__notes__", ()):
            error.add_note(_hint(error, how))
        raise


def _hint(error: InvalidRequest, how: str) -> str:
    """Return how to configure, or where to read about a wrong setting."""
    if error.field == "RBIM_DIALECT" or f"{DIALECT}: " in error.message:
        return "See: rbim dialect"
    if error.field in NEEDED:
        return how
    if error.field == "profile":
        return (
            "A profile is a table [profiles.NAME] of the configuration file. `rbim config path` shows which file is read; "
            "--config names another."
        )
    if error.field.startswith("RBIM_"):
        return f"Correct the environment variable {error.field}, or unset it."
    return "Keys and variables: `rbim help configuration`. `rbim config path` shows the file that is read."


def telemetry() -> OtelObserver | None:
    """Return an observer for the global providers, or None if no SDK is in this process: then nothing would be recorded."""
    if "opentelemetry.sdk" not in sys.modules:
        return None
    from rbim.otel.observer import OtelObserver

    return OtelObserver()
