"""The configuration of a command, and its client."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rbim.cli.errors import print_note
from rbim.cli.extras import MissingExtra, require
from rbim.cli.global_flags import current_flags
from rbim.cli.telemetry import telemetry
from rbim.dialect_text import NAMES, dialect_fields, flag_of, variable_of
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Unpack

    from rbim.cli.global_flags import GlobalFlags
    from rbim.client.client import AsyncClient, ClientOptions
    from rbim.config.config import Config
    from rbim.credentials import Credentials
    from rbim.jetstream.settings import NatsSettings

__all__ = ["HOW_TO_CONFIGURE", "callback_credentials", "configuration", "make_client", "nats_settings", "pacing"]

HOW_TO_CONFIGURE = (
    "Set RBIM_BASE_URL, RBIM_APP_ID, RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE) and RBIM_USER_NAME, or write a profile in "
    "rbim.toml. `rbim config show` shows the current settings."
)
HOW_TO_CONFIGURE_CALLBACKS = (
    "Set RBIM_APP_ID and RBIM_APP_TOKEN (or RBIM_APP_TOKEN_FILE), or write a profile in rbim.toml. `rbim config show` shows "
    "the current settings."
)
"""For commands that sign or verify deliveries, and make no client."""

NEEDED = {"RBIM_BASE_URL", "RBIM_APP_ID", "RBIM_APP_TOKEN"}
"""Variables without which, or a profile, there is no client."""

KEY_OF_FILE = re.compile(r"\bdialect\.(\w+): ")


def configuration(warn: Callable[[str], object] | None = None) -> Config:
    """Return the configuration from flags, environment and files. Raises InvalidRequest.

    ``warn`` gets a message about each file that is not trusted, or that others can read (default: print it).
    """
    from rbim.config.config import load

    flags = current_flags()
    with _adding_hint():
        try:
            return load(
                flags.profile,
                flags.config,
                warn=_warn if warn is None else warn,
                dialect=_dialect(flags),
                defaults={"transport": "auto"},
                base_url=flags.base_url,
                transport=flags.transport,
            )
        except InvalidRequest as error:
            if error.field not in {"base_url", "transport"}:  # a variable or a key of a file has another name
                raise
            flag, cause = flag_of(error.field), error.message.removeprefix(f"{error.field}: ")
            wrong = InvalidRequest(f"{flag}: {cause}", field=flag)
            wrong.add_note("See: rbim --help")
        raise wrong


def _dialect(flags: GlobalFlags) -> dict[str, object]:
    """Return the documents of the dialect's flags. Raises InvalidRequest that names the wrong flag."""
    found: dict[str, object] = {}
    for name, texts in flags.dialect:
        field = dialect_fields()[name]
        try:
            found[name] = field.parse(*texts)
            field.read(found[name])
        except InvalidRequest as error:
            raise InvalidRequest(f"{field.flag}: {error.message}", field=field.flag) from None
    return found


def make_client(config: Config | None = None, **options: Unpack[ClientOptions]) -> AsyncClient:
    """Make the client of a command. Raises InvalidRequest, and MissingExtra if the transport needs an extra.

    Its calls become spans and metrics if the process has an SDK of OpenTelemetry.
    """
    if (otel := telemetry()) is not None:
        options["observers"] = (otel, *options.get("observers", ()))
    if current_flags().debug:
        from rbim.client.observers import LoggingObserver

        options["observers"] = (*options.get("observers", ()), LoggingObserver())
    config = config or configuration()
    try:
        with _adding_hint():
            return config.client(**options)
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error)) from None


def pacing(config: Config) -> dict[str, Any]:
    """Return the configured settings of a job: ``rates`` and ``concurrency``; defaults are left out."""
    return {key: config[key] for key in ("concurrency", "rates") if not config.values[key].source.is_default}


def callback_credentials(config: Config) -> tuple[Credentials, ...]:
    """Return the credentials whose signatures on callbacks are accepted. Raises InvalidRequest."""
    with _adding_hint(HOW_TO_CONFIGURE_CALLBACKS):
        return config.callback_credentials()


def nats_settings(config: Config) -> NatsSettings:
    """Return how to log in to NATS servers. Raises InvalidRequest, and MissingExtra without the extra."""
    require("nats", "nats")
    from rbim.jetstream.settings import NatsSettings

    return NatsSettings(
        credentials_file=config["nats_creds_file"],
        ca_file=config["nats_ca_file"],
        cert_file=config["nats_cert_file"],
        key_file=config["nats_key_file"],
    )


def _warn(text: str) -> None:
    print_note(f"warning: {text}")


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
    """Return where to read about a field of the dialect, whose flag, variable or key is wrong, or how to configure."""
    for name in NAMES:
        if error.field in {variable_of(name), flag_of(name)}:
            return f"See: rbim dialect {name}"
    found = KEY_OF_FILE.search(error.message)
    if found is not None:
        return f"See: rbim dialect {found[1]}" if found[1] in NAMES else "See: rbim dialect"
    if error.field in NEEDED:
        return how
    if error.field == "profile":
        return "A profile is a table [profiles.NAME] of rbim.toml. `rbim config path` lists the files that are read."
    if error.field.startswith("RBIM_"):
        return f"Correct the environment variable {error.field}, or unset it."
    return "Keys and variables: docs/configuration.md. `rbim config path` lists the files that are read."
